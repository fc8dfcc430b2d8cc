// Colours: read from the stylesheet, so that light, dark and pages agree; and which of them an item has.

import { loadOf } from "./fabric.js";

const RATES = { SDR: "slow", DDR: "slow", QDR: "slow", FDR10: "fdr", FDR: "fdr", EDR: "edr", HDR: "hdr", NDR: "ndr", XDR: "xdr" };
const MANY = ["one", "two", "three", "four", "five", "six", "seven", "eight"];
const LOADS = [
  [0.02, "load-0", "under 2 %"],
  [0.25, "load-1", "to 25 %"],
  [0.5, "load-2", "to 50 %"],
  [0.8, "load-3", "to 80 %"],
  [Infinity, "load-4", "more"],
];
const NAMES = [
  "ground", "sheet", "raised", "ink", "quiet", "line", "strong", "accent", "bad", "unknown",
  ...new Set(Object.values(RATES)), ...MANY, ...LOADS.map((each) => each[1]),
];

export class Palette {
  constructor() {
    this.by = "rate";
    this.read();
  }

  /** Reads the colours again: the theme has changed. */
  read() {
    const style = getComputedStyle(document.documentElement);
    this.of = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  /** The colour of a rate such as `4xNDR`. */
  rate(text) {
    return this.of[RATES[text.replace(/^\d+x/, "")] ?? "unknown"];
  }

  /** The colour of cables between switches. */
  trunk(cable) {
    return this.by === "rate" ? this.rate(cable.rate) : this.of.unknown;
  }

  /** The colour of an adapter, and so of its cable. */
  adapter(adapter, fabric) {
    if (this.by === "rate") return this.rate(adapter.cables[0]?.rate ?? "unknown");
    if (this.by === "rail") return adapter.rail === undefined ? this.of.unknown : this.of[MANY[(adapter.rail - 1) % MANY.length]];
    if (this.by === "load") {
      const load = loadOf(adapter);
      return load === null ? this.of.unknown : this.of[LOADS.find(([limit]) => load <= limit)[1]];
    }
    const replica = adapter.replicas?.find((each) => each.spans) ?? adapter.replicas?.[0];
    return replica === undefined ? this.of.unknown : this.of[MANY[fabric.replicas.indexOf(replica) % MANY.length]];
  }

  /** [colour, words] of each colour that is on the sheet. */
  legend(fabric) {
    if (this.by === "rail") {
      const rails = fabric.rails.map((rail) => [
        this.of[MANY[(rail.rail - 1) % MANY.length]], `rail ${rail.rail}${rail.aligned ? "" : " (not aligned)"}`,
      ]);
      return rails.length ? rails : [[this.of.unknown, "nothing tells rails apart here"]];
    }
    if (this.by === "load") return [...LOADS.map(([, name, words]) => [this.of[name], words]), [this.of.unknown, "unknown"]];
    if (this.by === "replica") {
      const shown = fabric.replicas.slice(0, MANY.length).map((each, at) => [this.of[MANY[at % MANY.length]], each.replica_id]);
      return [...shown, [this.of.unknown, fabric.replicas.length ? "none" : "no replica runs here"]];
    }
    const counts = new Map();
    for (const cable of fabric.cables) counts.set(cable.rate, (counts.get(cable.rate) ?? 0) + 1);
    const rates = [...counts].sort((one, other) => other[1] - one[1]).slice(0, 8);
    return rates.map(([rate, count]) => [this.rate(rate), `${count} × ${rate}`]);
  }
}
