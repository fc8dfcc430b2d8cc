// The fabric as the drawing knows it: the API's graph with everything joined up, and what is alive on it.

import { fanCurve, trunkCurve } from "./curves.js";

const SHIFT = 7;

export class Fabric {
  constructor(graph) {
    this.version = graph.version;
    this.mappedAt = graph.at;
    this.asked = graph.asked;
    this.problems = graph.problems ?? [];
    this.sizes = graph.sizes;
    this.tiers = graph.tiers;
    this.rails = graph.rails;
    this.switches = graph.switches.map((each) => ({
      ...each, kind: "switch", key: each.id, cables: [], bundles: [], groups: [],
    }));
    this.adapters = graph.adapters.map((each) => ({
      ...each, kind: "adapter", key: each.id, router: each.kind === "router", cables: [], live: [], managers: [],
    }));
    this.byKey = new Map();
    for (const item of [...this.switches, ...this.adapters]) this.byKey.set(item.key, item);
    this.cables = graph.cables.map((each) => ({
      ...each, kind: "cable", key: `cable ${each.a} ${each.a_port} ${each.b} ${each.b_port}`, a: this.byKey.get(each.a), b: this.byKey.get(each.b),
    }));
    this.nodes = new Map();
    this.replicas = [];
    this.lost = [];
    this.managers = [];
    this.liveNodes = new Map();
    this.#joinGroups(graph.groups);
    this.#joinCables();
  }

  /** The item of a key, or null: maps change, and what was selected may be gone. */
  find(key) {
    return this.byKey.get(key) ?? null;
  }

  /** Takes what is alive: ports, nodes, replicas and managers. */
  take(live) {
    for (const each of this.adapters) {
      each.live = [];
      each.managers = [];
      each.replicas = null;
    }
    for (const each of this.switches) each.managers = [];
    for (const key of this.replicas.map((each) => each.key)) this.byKey.delete(key);
    this.lost = [];
    this.liveNodes = new Map((live.nodes ?? []).map((each) => [each.node, each]));
    for (const port of live.ports ?? []) {
      const adapter = this.byKey.get(port.id);
      if (adapter === undefined) this.lost.push(port);
      else adapter.live.push(port);
    }
    this.managers = live.managers ?? [];
    for (const manager of this.managers) this.byKey.get(manager.id)?.managers?.push(manager);
    this.replicas = (live.replicas ?? []).map((each) => ({ ...each, kind: "replica", key: `replica ${each.replica_id}` }));
    for (const replica of this.replicas) this.byKey.set(replica.key, replica);
    for (const port of live.ports ?? []) this.#nodeOf(port.node);
    this.alive = this.adapters.filter((each) => each.live.length > 0);
    for (const adapter of this.alive) {
      const name = adapter.live[0].node;
      adapter.replicas = this.replicas.filter((each) => each.nodes.includes(name));
      const node = this.#nodeOf(name);
      if (!node.adapters.includes(adapter)) node.adapters.push(adapter);
    }
    this.managed = this.adapters.filter((each) => each.managers.length > 0);
    this.down = this.alive.filter((each) => each.live.some((port) => port.down));
  }

  /** What an item touches: keys of switches and adapters, and the cables between them. */
  touches(item) {
    const keys = new Set();
    const cables = new Set();
    const take = (cable) => {
      cables.add(cable);
      keys.add(cable.a.key).add(cable.b.key);
    };
    if (item.kind === "cable") take(item);
    else if (item.kind === "switch" || item.kind === "adapter") {
      keys.add(item.key);
      item.cables.forEach(take);
    } else {
      for (const adapter of this.adaptersOf(item)) {
        keys.add(adapter.key);
        adapter.cables.forEach(take);
      }
    }
    return { keys, cables };
  }

  /** The adapters of a node or of a replica's nodes. */
  adaptersOf(item) {
    if (item.kind === "node") return item.adapters;
    return item.nodes.flatMap((name) => this.nodes.get(name)?.adapters ?? []);
  }

  /** The box around an item: [left, top, right, bottom]. */
  bounds(item) {
    const box = [Infinity, Infinity, -Infinity, -Infinity];
    const grow = (left, top, right, bottom) => {
      box[0] = Math.min(box[0], left);
      box[1] = Math.min(box[1], top);
      box[2] = Math.max(box[2], right);
      box[3] = Math.max(box[3], bottom);
    };
    const around = (each) => {
      if (each.kind === "switch") {
        const half = this.sizes.switch_width / 2;
        grow(each.x - half, each.y, each.x + half, each.y + this.sizes.switch_height);
      } else grow(each.x - this.sizes.group_width / 2, each.y - 10, each.x + this.sizes.group_width / 2, each.y + this.sizes.group_height);
    };
    if (item.kind === "cable") [item.a, item.b].forEach(around);
    else if (item.kind === "switch" || item.kind === "adapter") around(item);
    else this.adaptersOf(item).forEach(around);
    return Number.isFinite(box[0]) ? box : [0, 0, this.sizes.width, this.sizes.height];
  }

  #nodeOf(name) {
    let node = this.nodes.get(name);
    if (node === undefined) {
      node = { kind: "node", key: `node ${name}`, name, adapters: [] };
      this.nodes.set(name, node);
      this.byKey.set(node.key, node);
    }
    return node;
  }

  #joinGroups(groups) {
    this.groups = groups.map((each) => ({
      ...each, adapters: each.adapters.map((id) => this.byKey.get(id)), at: this.byKey.get(each.switch) ?? null,
    }));
    this.loose = [];
    for (const group of this.groups) {
      (group.at === null ? this.loose : group.at.groups).push(group);
      for (const adapter of group.adapters) adapter.group = group;
      if (group.owner !== undefined) this.#nodeOf(group.owner).adapters.push(...group.adapters);
    }
    const { group_width: wide, group_height: high } = this.sizes;
    for (const each of this.switches) {
      each.fan = each.groups.reduce(
        (box, group) => [
          Math.min(box[0], group.x), Math.min(box[1], group.y), Math.max(box[2], group.x + wide), Math.max(box[3], group.y + high),
        ],
        [Infinity, Infinity, -Infinity, -Infinity],
      );
    }
  }

  #joinCables() {
    const bundles = new Map();
    this.slow = [];
    for (const cable of this.cables) {
      this.byKey.set(cable.key, cable);
      cable.a.cables.push(cable);
      if (cable.b !== cable.a) cable.b.cables.push(cable);
      if (cable.slow !== undefined) this.slow.push(cable);
      if (cable.a.kind === "switch" && cable.b.kind === "switch") {
        if (cable.a === cable.b) {
          cable.curve = trunkCurve(cable.a, { ...cable.b, x: cable.b.x + 30 }, this.sizes);
          continue;
        }
        const key = `${cable.a.id} ${cable.b.id}`;
        let bundle = bundles.get(key);
        if (bundle === undefined) {
          bundle = { a: cable.a, b: cable.b, cables: [], slow: [], curve: trunkCurve(cable.a, cable.b, this.sizes) };
          bundles.set(key, bundle);
          cable.a.bundles.push(bundle);
          cable.b.bundles.push(bundle);
        }
        (cable.slow === undefined ? bundle.cables : bundle.slow).push(cable);
        cable.curve = cable.slow === undefined ? bundle.curve : trunkCurve(cable.a, cable.b, this.sizes, SHIFT * bundle.slow.length);
      } else {
        const [at, adapter] = cable.a.kind === "switch" ? [cable.a, cable.b] : [cable.b, cable.a];
        if (at.kind === "switch") {
          cable.curve = fanCurve(at, adapter, this.sizes);
          cable.fanOf = at;
        } else cable.curve = [at.x, at.y, at.x, at.y - 30, adapter.x, adapter.y - 30, adapter.x, adapter.y];
      }
    }
    this.bundles = [...bundles.values()];
    // The slowest against what it should be comes first: it is what people come for.
    const part = (cable) => (cable.gbps ?? 0) / (cable.slow.expected_gbps || 1);
    this.slow.sort((one, other) => part(one) - part(other));
  }
}

/** The other end of a cable. */
export function farEnd(cable, item) {
  return cable.a === item ? cable.b : cable.a;
}

/** The port of a cable's end in `item`. */
export function portAt(cable, item) {
  return cable.a === item ? cable.a_port : cable.b_port;
}

/** What an adapter does at most, sent or received, as a part of its rate; null: unknown. */
export function loadOf(adapter) {
  let most = null;
  for (const port of adapter.live) {
    const rate = port.rate_gbps ?? adapter.cables[0]?.gbps;
    const busy = Math.max(port.tx_gbps ?? -1, port.rx_gbps ?? -1);
    if (rate && busy >= 0) most = Math.max(most ?? 0, busy / rate);
  }
  return most;
}
