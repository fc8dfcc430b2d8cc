// The drawing of one fabric: puts the parts together and decides when a frame is drawn.

import { Camera } from "./camera.js";
import { ago, count, describe } from "./describe.js";
import { make } from "./elements.js";
import { Fabric } from "./fabric.js";
import { showHead } from "./head.js";
import { listenToKeys, stops } from "./keys.js";
import { showLegend } from "./legend.js";
import { Moving } from "./moving.js";
import { News } from "./news.js";
import { Palette } from "./palette.js";
import { Panel } from "./panel.js";
import { pick } from "./pick.js";
import { listen } from "./pointer.js";
import { Search } from "./search.js";
import { Still } from "./still.js";

const HEAVY_ADAPTERS = 3000;
const HEAVY_PATIENCE_MS = 110;
const FADE_MS = 140;
const LOST_SHOWN_MAX = 8;

const part = (id) => document.getElementById(id);

class Drawing {
  constructor(root) {
    this.root = root;
    this.sheet = part("sheet");
    this.still = new Still(part("still"));
    this.moving = new Moving(part("moving"));
    this.camera = new Camera();
    this.palette = new Palette();
    this.fabric = null;
    this.selected = null;
    this.hovered = null;
    this.cursor = null;
    this.focus = null;
    this.fade = 0;
    this.stale = true;
    this.drawnFrom = null;
    this.movedAt = 0;
    this.asked = false;
    this.last = 0;
    this.worstAt = -1;
    this.drawn = 0;
    this.ratio = 1;
    this.panel = new Panel(part("panel"), (item) => this.select(item, { go: item !== null }));
    this.search = new Search(part("find"), part("found"), (item) => {
      this.select(item, { go: true });
      this.sheet.focus({ preventScroll: true });
    });
    this.news = new News(root.dataset.source, root.dataset.login, {
      take: (graph, live) => this.take(graph, live),
      say: (text, stale, login) => this.say(text, stale, login),
    });
    this.calmly = matchMedia("(prefers-reduced-motion: reduce)");
    this.camera.calm = this.calmly.matches;
    this.#listen();
  }

  get heavy() {
    return this.fabric.adapters.length > HEAVY_ADAPTERS;
  }

  /** Takes what the server told; what is in view and what is selected stay. */
  take(graph, live) {
    const first = this.fabric === null;
    if (graph !== null || first) {
      this.fabric = new Fabric(graph ?? EMPTY);
      this.still.forget();
    }
    const { fabric } = this;
    fabric.take(live);
    fabric.mapError = live.map_error;
    showHead({ figures: part("map-text"), managers: part("managers"), problems: part("problems") }, live);
    if (["load", "replica"].includes(this.palette.by)) this.still.forget();
    this.camera.world = [0, 0, fabric.sizes.width, fabric.sizes.height];
    for (const name of ["selected", "hovered", "cursor"]) this[name] = this[name] && fabric.find(this[name].key);
    this.search.learn(fabric);
    showLegend(part("legend"), fabric, this.palette);
    this.#showTroubles();
    if (first) this.fit(true);
    this.panel.show(this.selected, fabric);
    this.#refocus();
    this.redraw();
  }

  /** Says how the news goes, and the way to log in again. */
  say(text, stale, login) {
    const news = part("news");
    const age = this.fabric?.mappedAt ? `map of ${ago(Date.now() / 1000 - this.fabric.mappedAt)} ago` : "";
    const words = text || age;
    if (news.textContent !== words) news.replaceChildren(words);
    if (login !== undefined) news.append(" ", make("a", { href: login }, "Log in again"));
    news.classList.toggle("stale", stale);
  }

  /** Selects an item and opens its panel; null closes it. `go`: bring it into view. */
  select(item, { go = false } = {}) {
    this.selected = item;
    if (item !== null) this.cursor = null;
    this.panel.show(item, this.fabric);
    if (item !== null) {
      this.tell(describe(item, this.fabric));
      if (go) this.goTo(item);
    }
    this.#refocus();
    this.redraw();
  }

  /** The keyboard is at an item; null: at none. */
  visit(item) {
    this.cursor = item;
    if (item !== null) {
      const list = stops(this.fabric);
      const at = list.indexOf(item);
      this.tell(`${describe(item, this.fabric)}${at < 0 ? "" : ` (${at + 1} of ${list.length})`}`);
      this.#bringIn(item);
    }
    this.#refocus();
    this.redraw();
  }

  tell(text) {
    part("told").textContent = text;
  }

  goTo(item) {
    const box = this.fabric.bounds(item);
    const room = [box[0] - 90, box[1] - 60, box[2] + 90, box[3] + 60];
    this.camera.go(this.camera.placeFor(room, 1.7, this.#covered()));
    this.redraw();
  }

  fit(atOnce = false) {
    this.camera.bottom = part("legend").offsetHeight + 14;
    const place = this.camera.placeFor(this.camera.world, 1.6);
    if (atOnce) Object.assign(this.camera, place, { glide: null });
    else this.camera.go(place);
    this.redraw();
  }

  /** Has a frame drawn, the still part too. */
  redraw() {
    this.stale = true;
    this.ask();
  }

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame((now) => {
      this.asked = false;
      this.frame(now);
    });
  }

  /** One frame. `still`: the still part is drawn, whether anything has changed or not. */
  frame(now, { still = false } = {}) {
    if (this.fabric === null || this.camera.width < 2) return;
    const step = Math.min(100, Math.max(0, now - this.last));
    this.last = now;
    if (this.camera.step(now)) this.#moved();
    this.#fadeBy(step);
    const waits = this.heavy && now - this.movedAt < HEAVY_PATIENCE_MS && this.drawnFrom !== null;
    if (still || (this.stale && !waits)) {
      this.still.draw(this.camera, this.fabric, this.palette, { focus: this.focus, fade: this.fade, ratio: this.ratio });
      this.stale = false;
      this.drawnFrom = { scale: this.camera.scale, x: this.camera.x, y: this.camera.y };
    }
    this.#slide();
    const focus = this.fade > 0 ? this.focus : null;
    this.moving.draw(this.camera, this.fabric, this.palette, {
      now, calm: this.camera.calm, focus, selected: this.selected, cursor: this.cursor, ratio: this.ratio,
    });
    this.drawn += 1;
    const stirs = !this.camera.calm && this.moving.stirs(this.fabric);
    if (stirs || this.stale || this.camera.glide !== null) this.ask();
  }

  /** Where an item is on the sheet, in pixels: for tests, and for nothing else. */
  place(key) {
    const item = this.fabric.find(key);
    const box = item.kind === "adapter" ? [item.x, item.y, item.x, item.y] : this.fabric.bounds(item);
    return this.camera.toSheet((box[0] + box[2]) / 2, (box[1] + box[3]) / 2);
  }

  /** Shows the still canvas where it would be if it were drawn now: big maps are drawn again when hands rest. */
  #slide() {
    const { canvas } = this.still;
    const { drawnFrom: from, camera } = this;
    const same = from.scale === camera.scale && from.x === camera.x && from.y === camera.y;
    const moved = `translate(${(from.x - camera.x) * camera.scale}px, ${(from.y - camera.y) * camera.scale}px) scale(${camera.scale / from.scale})`;
    canvas.style.transform = same ? "" : moved;
  }

  #moved() {
    this.movedAt = performance.now();
    this.stale = true;
  }

  #fadeBy(step) {
    const wanted = (this.hovered ?? this.cursor ?? this.selected) === null ? 0 : 1;
    if (this.fade === wanted) return;
    const most = this.camera.calm || this.heavy ? 1 : step / FADE_MS;
    this.fade = wanted > this.fade ? Math.min(1, this.fade + most) : Math.max(0, this.fade - most);
    if (this.fade === 0) this.focus = null;
    this.stale = true;
  }

  #refocus() {
    const item = this.hovered ?? this.cursor ?? this.selected;
    if (item !== null) this.focus = this.fabric.touches(item);
  }

  #covered() {
    const panel = part("panel");
    if (!this.panel.open) return {};
    const beside = panel.offsetWidth < this.camera.width * 0.6;
    return beside ? { right: panel.offsetWidth + 12 } : { bottom: panel.offsetHeight + 12 };
  }

  #bringIn(item) {
    const [left, top, right, bottom] = this.fabric.bounds(item);
    const view = this.camera.view;
    const inside = left >= view[0] && right <= view[2] && top >= view[1] && bottom <= view[3];
    const legible = this.fabric.sizes.switch_width * this.camera.scale > 40;
    if (!inside || !legible) this.goTo(item);
  }

  #hover(x, y) {
    const item = x === null || this.fabric === null ? null : pick(this.camera, this.fabric, this.moving, x, y);
    const hint = part("hint");
    this.sheet.classList.toggle("over", item !== null);
    if (item === null) hint.hidden = true;
    else {
      if (item !== this.hovered || hint.hidden) hint.textContent = describe(item, this.fabric);
      hint.hidden = false;
      const left = Math.min(x + 16, this.camera.width - hint.offsetWidth - 8);
      const below = y + 20 + hint.offsetHeight < this.camera.height;
      hint.style.left = `${Math.max(8, left)}px`;
      hint.style.top = `${below ? y + 20 : y - hint.offsetHeight - 12}px`;
    }
    if (item !== this.hovered) {
      this.hovered = item;
      if (this.heavy) this.movedAt = performance.now();
      this.#refocus();
      this.redraw();
    }
  }

  #showTroubles() {
    const { fabric } = this;
    const worst = part("worst");
    worst.hidden = fabric.slow.length === 0;
    worst.textContent = `▼ ${fabric.slow.length} slow`;
    worst.title = `${count(fabric.slow.length, "cable")} below their rate; goes to the next one`;
    const lost = part("lost");
    const chips = fabric.lost.slice(0, LOST_SHOWN_MAX).map((port) => {
      const chip = make("button", { type: "button", className: port.down ? "down" : "", title: port.why ?? "the map does not have it" }, `${port.down ? "✕ " : ""}${port.node} ${port.adapter}:${port.port}`);
      chip.addEventListener("click", () => this.select(fabric.find(`node ${port.node}`), { go: true }));
      return chip;
    });
    if (chips.length) chips.unshift(make("span", {}, "Not on the map:"));
    if (fabric.lost.length > LOST_SHOWN_MAX) chips.push(make("span", {}, `and ${fabric.lost.length - LOST_SHOWN_MAX} more`));
    lost.replaceChildren(...chips);
    lost.hidden = chips.length === 0;
    const none = part("none");
    none.hidden = fabric.switches.length + fabric.adapters.length > 0;
    none.textContent = `There is no map to draw yet. ${fabric.mapError ?? "A map is taken within a few minutes after a node of the fabric has joined."}`;
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = this.sheet;
    this.ratio = Math.min(3, window.devicePixelRatio || 1);
    for (const canvas of [this.still.canvas, this.moving.canvas]) {
      canvas.width = Math.round(width * this.ratio);
      canvas.height = Math.round(height * this.ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const first = this.camera.width < 2;
    this.camera.resize(width, height);
    this.drawnFrom = null;
    if (this.fabric === null) return;
    if (first) this.fit(true);
    // The canvases are empty now: drawn at once, nobody sees them so.
    this.stale = true;
    this.frame(performance.now(), { still: true });
  }

  #listen() {
    const act = (change) => {
      if (this.fabric === null) return;
      change();
      this.#moved();
      this.ask();
    };
    const on = {
      fabric: () => this.fabric,
      cursor: () => this.cursor,
      visit: (item) => this.visit(item),
      open: (item) => {
        // Once more goes into the panel, whose buttons lead on.
        if (this.selected === item && this.panel.open) part("panel").querySelector("button").focus();
        else this.select(item);
        this.cursor = item;
      },
      close: () => {
        if (this.panel.open) this.sheet.focus({ preventScroll: true });
        if (this.panel.open) this.select(null);
        else this.visit(null);
      },
      pan: (dx, dy) => act(() => this.camera.pan(dx, dy)),
      zoom: (factor, at) => act(() => this.camera.zoom(factor, at)),
      fit: () => act(() => this.fit()),
      find: () => part("find").select(),
      hover: (x, y) => this.#hover(x, y),
      click: (x, y) => this.fabric && this.select(pick(this.camera, this.fabric, this.moving, x, y)),
    };
    listen(this.sheet, on);
    listenToKeys(this.sheet, on);
    this.sheet.addEventListener("blur", () => {
      if (this.cursor !== null) this.visit(null);
    });
    part("closer").addEventListener("click", () => on.zoom(1.35));
    part("farther").addEventListener("click", () => on.zoom(1 / 1.35));
    part("fit").addEventListener("click", on.fit);
    part("worst").addEventListener("click", () => {
      this.worstAt = (this.worstAt + 1) % this.fabric.slow.length;
      this.select(this.fabric.slow[this.worstAt], { go: true });
    });
    part("by").addEventListener("change", (event) => {
      this.palette.by = event.target.value;
      this.#recolour();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.palette.read();
      this.#recolour();
    });
    this.calmly.addEventListener("change", () => {
      this.camera.calm = this.calmly.matches;
      this.redraw();
    });
    new ResizeObserver(() => this.#resize()).observe(this.sheet);
    setInterval(() => this.news.tell(), 5000);
  }

  #recolour() {
    if (this.fabric === null) return;
    this.still.forget();
    showLegend(part("legend"), this.fabric, this.palette);
    this.redraw();
  }
}

const EMPTY = {
  version: null, at: 0, asked: "", tiers: [], switches: [], adapters: [], groups: [], cables: [], rails: [],
  sizes: { width: 800, height: 400, switch_width: 124, switch_height: 30, group_width: 78, group_height: 27 },
};

const root = part("drawing");
root.hidden = false;
/** The drawing of this page. */
export const drawing = new Drawing(root);
drawing.news.ask();
