// Items in words: for the hint at the pointer, for the screen reader, and for the panel.

import { farEnd, portAt } from "./fabric.js";

/** One line that names an item. */
export function nameOf(item) {
  if (item.kind === "cable") return `${endOf(item, item.a)} – ${endOf(item, item.b)}`;
  if (item.kind === "node") return item.name;
  if (item.kind === "replica") return item.replica_id;
  if (item.kind === "adapter" && item.owner !== undefined) return `${item.owner} ${item.adapter}`;
  return item.label;
}

/** `leaf-1[3]`: an end of a cable. */
export function endOf(cable, item) {
  return `${nameOf(item)}[${portAt(cable, item)}]`;
}

/** Everything that matters about an item, in one or two sentences. */
export function describe(item, fabric) {
  const said = [nameOf(item)];
  if (item.kind === "switch") said.push(...ofSwitch(item));
  else if (item.kind === "adapter") said.push(...ofAdapter(item));
  else if (item.kind === "cable") said.push(`runs at ${item.rate}${item.slow ? `, should at ${item.slow.expected}: ${item.slow.why}` : ""}`);
  else {
    const adapters = fabric.adaptersOf(item);
    said.push(count(adapters.length, "adapter"));
    const down = adapters.filter((each) => each.live.some((port) => port.down));
    if (down.length) said.push(`${down.length} down`);
    if (item.kind === "replica") said.push(`${item.model}/${item.profile}, ${item.state}, on ${item.nodes.join(", ")}`);
    const slow = adapters.flatMap((each) => each.cables.filter((cable) => cable.slow));
    if (slow.length) said.push(`${count(slow.length, "slow cable")}`);
  }
  return said.join(", ");
}

function ofSwitch(item) {
  const up = item.cables.filter((cable) => farEnd(cable, item).kind === "switch").length;
  const down = item.cables.length - up;
  const slow = item.cables.filter((cable) => cable.slow).length;
  const said = [item.tier ? `${item.tier} switch` : "switch without adapters in reach"];
  if (down) said.push(count(down, "adapter"));
  if (up) said.push(`${count(up, "cable")} to switches`);
  if (slow) said.push(count(slow, "slow cable"));
  if (item.managers.length) said.push(`subnet manager (${item.managers.map((each) => each.role).join(", ")})`);
  return said;
}

function ofAdapter(item) {
  const said = [];
  const cable = item.cables[0];
  if (cable === undefined) said.push("no cable");
  else said.push(`${cable.rate} to ${endOf(cable, farEnd(cable, item))}`);
  for (const port of item.live) {
    said.push(port.down ? `port ${port.port} is down: ${port.why}` : `${port.state}, sends ${gbps(port.tx_gbps)}, receives ${gbps(port.rx_gbps)}`);
  }
  if (cable?.slow) said.push(`slow: ${cable.slow.why}`);
  if (item.managers.length) said.push(`subnet manager (${item.managers.map((each) => each.role).join(", ")})`);
  return said;
}

/** `12.3 Gb/s`; unknown is said, never 0. */
export function gbps(value) {
  if (value === undefined || value === null) return "unknown";
  return `${value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} Gb/s`;
}

/** `1 adapter`, `2 adapters`. */
export function count(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

/** `3 min`: how long something is ago. */
export function ago(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}
