// The keyboard: moving over the sheet, from item to item along cables, and the letters.

import { farEnd } from "./fabric.js";

const STEP_PX = 70;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** What Tab goes through: what is wrong, then the switches from above. */
export function stops(fabric) {
  return [...fabric.slow, ...(fabric.down ?? []), ...fabric.switches];
}

/** `on` has fabric(), cursor(), visit(item), open(item), close(), pan, zoom, fit, find. */
export function listenToKeys(sheet, on) {
  sheet.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || on.fabric() === null) return;
    const cursor = on.cursor();
    if (event.key === "Tab") {
      const list = stops(on.fabric());
      const at = cursor === null ? (event.shiftKey ? -1 : 0) : list.indexOf(cursor) + (event.shiftKey ? -1 : 1);
      // Before the first and behind the last, Tab goes where it goes on every page.
      if (at < 0 || at >= list.length) on.visit(null);
      else {
        event.preventDefault();
        on.visit(list[at]);
      }
    } else if (event.key in ARROWS) {
      event.preventDefault();
      const [dx, dy] = ARROWS[event.key];
      const next = cursor === null || event.shiftKey ? null : neighbour(on.fabric(), cursor, dx, dy);
      if (next !== null) on.visit(next);
      else if (cursor === null || event.shiftKey) on.pan(dx * STEP_PX, dy * STEP_PX);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (cursor !== null) on.open(cursor);
      else on.visit(stops(on.fabric())[0] ?? null);
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const writing = event.target.closest?.("input, select, textarea") !== null && event.target !== document.body;
    if (event.key === "Escape") {
      if (!writing) on.close();
      return;
    }
    if (writing) return;
    const action = { "+": () => on.zoom(1.35), "=": () => on.zoom(1.35), "-": () => on.zoom(1 / 1.35), f: on.fit, "/": on.find }[event.key];
    if (action !== undefined) {
      event.preventDefault();
      action();
    }
  });
}

/** The item next to one: beside it in its row, or along a cable up or down. */
function neighbour(fabric, item, dx, dy) {
  if (item.kind === "cable") return dy < 0 || dx < 0 ? item.a : item.b;
  if (item.kind !== "switch" && item.kind !== "adapter") return fabric.adaptersOf(item)[0] ?? null;
  if (dy !== 0) {
    const ends = item.cables.map((cable) => farEnd(cable, item)).filter((each) => (dy < 0 ? each.y < item.y : each.y > item.y));
    return nearest(ends, item);
  }
  const row = item.kind === "switch"
    ? fabric.switches.filter((each) => each.y === item.y)
    : (item.group.at?.groups ?? fabric.loose).flatMap((group) => group.adapters);
  const inOrder = item.kind === "switch" ? [...row].sort((one, other) => one.x - other.x) : row;
  return inOrder[inOrder.indexOf(item) + dx] ?? null;
}

function nearest(list, item) {
  let found = null;
  for (const each of list) if (found === null || Math.abs(each.x - item.x) < Math.abs(found.x - item.x)) found = each;
  return found;
}
