// The panel: everything that is known of what was clicked, with ways on to what it touches.

import { count, gbps, nameOf } from "./describe.js";
import { make } from "./elements.js";
import { farEnd, portAt } from "./fabric.js";

const CABLES_SHOWN_MAX = 200;
const KINDS = { switch: "switch", adapter: "adapter", node: "node", cable: "cable", replica: "replica" };
const TIERS = { leaf: "leaf switch", spine: "spine switch", core: "core switch" };
const KNOWN = { guid: "by its GUID, which the node's agent reports", description: "a guess, from what it calls itself" };

export class Panel {
  /** `select` is called with the item to go on to, or null. */
  constructor(element, select) {
    this.element = element;
    this.select = select;
  }

  get open() {
    return !this.element.hidden;
  }

  /** Shows an item, or nothing. A refresh keeps where it was scrolled to, and the focus. */
  show(item, fabric) {
    const { element } = this;
    if (item === null) {
      element.hidden = true;
      element.replaceChildren();
      return;
    }
    const same = element.dataset.key === item.key && !element.hidden;
    const scrolled = same ? element.scrollTop : 0;
    const buttons = [...element.querySelectorAll("button")];
    const focused = same ? buttons.indexOf(document.activeElement) : -1;
    element.dataset.key = item.key;
    const close = make("button", { type: "button", className: "close", title: "Close  ( Esc )" }, "✕");
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => this.select(null));
    const body = { switch: ofSwitch, adapter: ofAdapter, node: ofNode, replica: ofReplica, cable: ofCable }[item.kind];
    element.replaceChildren(
      make("header", {}, make("h2", { id: "panel-title" }, nameOf(item)), close),
      make("p", { className: "quiet" }, TIERS[item.tier] ?? (item.router ? "router" : KINDS[item.kind])),
      ...body(item, fabric, (to, words) => this.#link(to, words)).filter(Boolean),
    );
    element.hidden = false;
    element.scrollTop = scrolled;
    if (focused >= 0) element.querySelectorAll("button")[Math.min(focused, element.querySelectorAll("button").length - 1)].focus();
  }

  #link(item, words = nameOf(item)) {
    const button = make("button", { type: "button", className: "link" }, words);
    button.addEventListener("click", () => this.select(item));
    return button;
  }
}

function ofSwitch(item, fabric, link) {
  const cables = [...item.cables].sort((one, other) => portAt(one, item) - portAt(other, item));
  return [
    ...cables.filter((each) => each.slow).map((each) => trouble(`▼ Port ${portAt(each, item)}: ${each.slow.why}`)),
    facts([
      ["GUID", item.guid],
      ["LID", item.lid],
      ["Ports", item.ports === undefined ? undefined : `${item.ports}, ${count(cables.length, "cable")}`],
      ["Calls itself", item.name !== item.label ? item.name : undefined],
      ...managers(item),
    ]),
    ...table(item, cables, link),
  ];
}

function ofAdapter(item, fabric, link) {
  const node = fabric.find(`node ${item.owner}`);
  return [
    ...item.live.filter((port) => port.down).map((port) => trouble(`✕ ${port.why}`)),
    ...item.cables.filter((each) => each.slow).map((each) => trouble(`▼ ${each.slow.why}`)),
    facts([
      ["Node", node === null ? "unknown" : link(node)],
      ["Known", KNOWN[item.known_by]],
      ["Rail", item.rail],
      ["GUID", item.guid],
      ["LID", item.lid],
      ["Calls itself", item.label],
      ...managers(item),
    ]),
    ...table(item, item.cables, link),
    ...item.live.flatMap((port) => ofPort(port)),
    ...replicas(item.replicas ?? [], link),
    item.live.length === 0 && make("p", { className: "quiet" }, "No agent reports this adapter, so its traffic and counters are unknown."),
  ];
}

function ofPort(port) {
  const counters = Object.entries(port.counters ?? {});
  return [
    make("h3", {}, `Port ${port.port} of ${port.adapter}, as its node says`),
    facts([
      ["State", `${port.down ? "✕ " : ""}${port.state ?? "unknown"}${port.phys_state ? `, ${port.phys_state}` : ""}`],
      ["Rate", port.rate_text ?? "unknown"],
      ["Sends", gbps(port.tx_gbps)],
      ["Receives", gbps(port.rx_gbps)],
      ["LID", port.lid],
      ["Manager's LID", port.sm_lid],
    ]),
    make("h3", {}, "Counters that are not zero"),
    counters.length === 0
      ? make("p", { className: "quiet" }, "none")
      : make("table", {}, make("tbody", {}, counters.map(([name, value]) => make("tr", {}, make("td", {}, name), make("td", {}, value.toLocaleString("en"))))),
      ),
  ];
}

function ofNode(item, fabric, link) {
  const alive = fabric.liveNodes.get(item.name);
  const lost = fabric.lost.filter((port) => port.node === item.name);
  return [
    alive?.unusable && trouble(`▲ Not offered here: ${alive.unusable}`),
    ...lost.map((port) => trouble(`${port.down ? "✕ " : ""}${port.adapter}:${port.port} is not on the map. ${port.why ?? ""}`)),
    facts([
      ["State", alive?.state ?? "no agent reports it: known from descriptions only"],
      ["Heard", alive?.heard_s === undefined ? undefined : `${Math.round(alive.heard_s)} s ago`],
      ["Adapters here", item.adapters.length],
    ]),
    make("h3", {}, "Adapters"),
    make("table", {},
      make("thead", {}, make("tr", {}, ["Adapter", "Leaf", "State", "Sends", "Receives"].map((each) => make("th", {}, each)))),
      make("tbody", {}, item.adapters.map((each) => {
        const port = each.live[0];
        const leaf = each.group.at;
        const slow = each.cables.some((cable) => cable.slow) ? " ▼" : "";
        return make("tr", {},
          make("td", {}, link(each, each.adapter ?? each.label)), make("td", {}, leaf ? link(leaf) : "none"),
          make("td", {}, `${port?.down ? "✕ " : ""}${port?.state ?? "?"}${slow}`),
          make("td", {}, port ? gbps(port.tx_gbps).replace(" Gb/s", "") : "?"), make("td", {}, port ? gbps(port.rx_gbps) : "?"));
      }))),
    ...replicas(fabric.replicas.filter((each) => each.nodes.includes(item.name)), link),
  ];
}

function ofReplica(item, fabric, link) {
  return [
    facts([
      ["Model", `${item.model}/${item.profile}`],
      ["State", item.state],
      ["On this fabric", item.spans ? "its shards talk to each other over it" : "no: it talks to no other node over it"],
    ]),
    make("h3", {}, "Nodes, its leader first"),
    make("ul", {}, item.nodes.map((name) => make("li", {}, fabric.find(`node ${name}`) ? link(fabric.find(`node ${name}`)) : name))),
  ];
}

function ofCable(item, fabric, link) {
  return [
    item.slow && trouble(`▼ ${item.slow.why}`),
    facts([
      ["From", [link(item.a), ` port ${item.a_port}`]],
      ["To", [link(item.b), ` port ${item.b_port}`]],
      ["Runs at", `${item.rate}${item.gbps ? `, ${item.gbps} Gb/s` : ""}`],
      ["Should", item.slow && `${item.slow.expected}${item.slow.expected_gbps ? `, ${item.slow.expected_gbps} Gb/s` : ""}`],
      ["Short of", item.slow?.fault],
      ["Judged by", item.slow && { kinds: "the kinds of both ends", trunk: "the other cables of its trunk", likes: "others of its kind on this switch" }[item.slow.judged_by]],
    ]),
  ];
}

function table(item, cables, link) {
  if (cables.length === 0) return [];
  const shown = cables.slice(0, CABLES_SHOWN_MAX);
  return [
    make("h3", {}, "Cables"),
    make("table", {},
      make("thead", {}, make("tr", {}, ["Port", "Goes to", "Rate"].map((each) => make("th", {}, each)))),
      make("tbody", {}, shown.map((each) => make("tr", {},
        make("td", {}, String(portAt(each, item))),
        make("td", {}, link(farEnd(each, item)), ` [${portAt(each, farEnd(each, item))}]`),
        make("td", {}, each.slow ? make("b", { className: "bad" }, `▼ ${each.rate} of ${each.slow.expected}`) : each.rate))))),
    cables.length > shown.length && make("p", { className: "quiet" }, `and ${cables.length - shown.length} more`),
  ];
}

function managers(item) {
  return item.managers.map((each) => ["Subnet manager", `${each.role}${each.priority === undefined ? "" : `, priority ${each.priority}`}`]);
}

function replicas(list, link) {
  return [
    make("h3", {}, "Replicas whose shards sit here"),
    list.length === 0
      ? make("p", { className: "quiet" }, "none")
      : make("ul", {}, list.map((each) => make("li", {}, link(each), ` ${each.state}${each.spans ? ", over this fabric" : ""}`))),
  ];
}

function facts(rows) {
  const known = rows.filter(([, value]) => value !== undefined && value !== null && value !== false);
  return make("dl", {}, known.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, ...(Array.isArray(value) ? value : [value instanceof Node ? value : String(value)]))]));
}

function trouble(text) {
  return make("p", { className: "trouble" }, text);
}

