// What does not move: tiers, bundled cables, fans, switches and their words. Drawn again only when something changed.

import { drawBadge } from "./badge.js";
import { trace } from "./curves.js";

const FAINT = 0.17;
const GROUP_SHOWN_PX = 4;
const DOTS_SHOWN_PX = 7;
const WORDS_SHOWN_PX = 17;
const SWITCH_WORDS_PX = 20;
const FONT = '-apple-system, "Segoe UI", Roboto, "Noto Sans", system-ui, sans-serif';
const TIER_WORDS = { leaf: "leaves", spine: "spines", core: "cores", untiered: "no adapter in reach" };

export class Still {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.paths = null;
  }

  /** Something that paths depend on has changed: the map, the colours, or what they tell. */
  forget() {
    this.paths = null;
  }

  /** Draws everything. `focus` (keys, cables) is full, and by `fade` (0 to 1) all else is faint. */
  draw(camera, fabric, palette, { focus, fade, ratio }) {
    const { context } = this;
    const { scale } = camera;
    this.ratio = ratio;
    this.paths ??= buildPaths(fabric, palette);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(ratio * scale, 0, 0, ratio * scale, -camera.x * scale * ratio, -camera.y * scale * ratio);
    const seen = fabric.switches.filter((each) => inView(camera, fabric, each));
    context.globalAlpha = 1 - (1 - FAINT) * fade;
    this.#tiers(camera, fabric, palette);
    this.#trunks(scale);
    this.#fans(camera, fabric, palette, seen);
    this.#switches(camera, fabric, palette, seen, null);
    if (focus !== null && fade > 0) {
      context.globalAlpha = fade;
      this.#focus(camera, fabric, palette, seen, focus);
    }
    context.globalAlpha = 1;
  }

  #tiers(camera, fabric, palette) {
    const { context } = this;
    const px = 1 / camera.scale;
    const [left, , right] = camera.view;
    for (const tier of fabric.tiers) {
      const y = tier.y + fabric.sizes.switch_height / 2;
      context.strokeStyle = palette.of.line;
      context.lineWidth = px;
      context.setLineDash([2 * px, 5 * px]);
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(right, y);
      context.stroke();
      context.setLineDash([]);
    }
    this.#words(camera, 11, 600, "left", () => {
      context.fillStyle = palette.of.quiet;
      for (const tier of fabric.tiers) {
        context.fillText(`${tier.switches} ${TIER_WORDS[tier.tier] ?? tier.tier}`, 10, camera.toSheet(0, tier.y)[1] - 7);
      }
    });
  }

  #trunks(scale) {
    const { context } = this;
    const alpha = context.globalAlpha;
    for (const { path, colour, weight, between } of this.paths.trunks.values()) {
      // Thousands of bundles on one another are a wall of colour; the more there are, the finer they are.
      const many = this.paths.between.get(between);
      const thin = many > 1500 ? 0.45 : many > 300 ? 0.7 : 1;
      const dense = 0.42 * Math.min(1.4, (512 / many) ** 0.8);
      context.globalAlpha = alpha * Math.min(0.6, dense * (1 + scale * 6));
      context.strokeStyle = colour;
      context.lineWidth = (Math.min(weight * thin, 7) * Math.min(1.5, Math.max(0.6, scale))) / scale;
      context.stroke(path);
    }
    context.globalAlpha = alpha;
  }

  #fans(camera, fabric, palette, seen) {
    const { context } = this;
    const { scale } = camera;
    const { group_width: wide, group_height: high } = fabric.sizes;
    const size = high * scale;
    if (size < GROUP_SHOWN_PX) {
      this.#blocks(palette, seen, scale);
      return;
    }
    const alpha = context.globalAlpha;
    context.globalAlpha = alpha * Math.min(0.65, 0.2 + scale * 0.5);
    context.lineWidth = Math.max(0.5, Math.min(1.6, scale * 1.1)) / scale;
    for (const each of seen) {
      for (const [colour, path] of this.paths.fans.get(each.key) ?? []) {
        context.strokeStyle = colour;
        context.stroke(path);
      }
    }
    context.globalAlpha = alpha;
    const groups = [];
    for (const each of [...seen.map((one) => one.groups), fabric.loose]) {
      for (const group of each) if (camera.sees(group.x, group.y, group.x + wide, group.y + high)) groups.push(group);
    }
    this.#groups(camera, fabric, palette, groups);
  }

  /** From afar a fan is one block in its adapters' colour. */
  #blocks(palette, seen, scale) {
    const { context } = this;
    for (const each of seen) {
      const [left, top, right, bottom] = each.fan;
      if (right < left) continue;
      context.fillStyle = palette.of.line;
      context.fillRect(left, top, right - left, bottom - top);
      let at = left;
      for (const [colour, , count] of this.paths.fans.get(each.key) ?? []) {
        const part = ((right - left) * count) / each.groups.reduce((sum, group) => sum + group.adapters.length, 0);
        context.fillStyle = colour;
        context.fillRect(at, top, part, Math.max(6, 2.5 / scale));
        at += part;
      }
      context.fillStyle = palette.of.strong;
      context.fillRect(each.x - 1.5, each.y, 3, top - each.y);
    }
  }

  #groups(camera, fabric, palette, groups) {
    const { context } = this;
    const { scale } = camera;
    const { group_width: wide, group_height: high } = fabric.sizes;
    const size = high * scale;
    // The cluster's own nodes stand out from what only happens to be on the fabric.
    for (const own of [false, true]) {
      context.beginPath();
      for (const group of groups) {
        if (isOwn(group) !== own) continue;
        if (size < 9) context.rect(group.x, group.y, wide, high);
        else context.roundRect(group.x, group.y, wide, high, 5);
      }
      // Small boxes of others are filled, since their faint lines alone would not be seen.
      context.fillStyle = size < WORDS_SHOWN_PX && !own ? palette.of.line : palette.of.raised;
      context.fill();
      if (size < 9 && !own) continue;
      context.strokeStyle = own ? palette.of.strong : palette.of.line;
      context.lineWidth = Math.min(own ? 1.4 : 1, scale * (own ? 3 : 1.6)) / scale;
      context.stroke();
    }
    const dots = new Map();
    const radius = size < DOTS_SHOWN_PX ? 4.5 : 3.4;
    for (const group of groups) {
      for (const adapter of group.adapters) {
        const colour = palette.adapter(adapter, fabric);
        let path = dots.get(colour);
        if (path === undefined) dots.set(colour, (path = new Path2D()));
        if (size < DOTS_SHOWN_PX) path.rect(adapter.x - radius, adapter.y - 1, radius * 2, radius * 2);
        else {
          path.moveTo(adapter.x + radius, adapter.y);
          path.arc(adapter.x, adapter.y, radius, 0, 2 * Math.PI);
        }
      }
    }
    for (const [colour, path] of dots) {
      context.fillStyle = colour;
      context.fill(path);
    }
    if (size < WORDS_SHOWN_PX) return;
    this.#words(camera, 10.5, 400, "center", () => {
      for (const group of groups) {
        context.fillStyle = isOwn(group) ? palette.of.ink : palette.of.quiet;
        const [x, y] = camera.toSheet(group.x + wide / 2, group.y + high / 2 + 3);
        context.fillText(cut(group.label, wide * scale - 8, 5.7), x, y + 4.5);
      }
    });
  }

  /** Words are drawn in pixels of the sheet: a font of another size for each zoom would be shaped anew each time. */
  #words(camera, size, weight, align, write) {
    const { context, ratio } = this;
    const { scale } = camera;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = `${weight} ${size}px ${FONT}`;
    context.textAlign = align;
    write();
    context.setTransform(ratio * scale, 0, 0, ratio * scale, -camera.x * scale * ratio, -camera.y * scale * ratio);
  }

  #switches(camera, fabric, palette, switches, filled) {
    const { context } = this;
    const { scale } = camera;
    const { switch_width: wide, switch_height: high } = fabric.sizes;
    context.beginPath();
    for (const each of switches) {
      if (high * scale < 8) context.rect(each.x - wide / 2, each.y, wide, high);
      else context.roundRect(each.x - wide / 2, each.y, wide, high, 6);
    }
    context.fillStyle = high * scale < 6 ? palette.of.strong : palette.of.raised;
    context.fill();
    context.strokeStyle = filled ?? palette.of.strong;
    context.lineWidth = Math.min(1.4, Math.max(0.7, scale * 1.4)) / scale;
    context.stroke();
    if (wide * scale >= SWITCH_WORDS_PX) {
      const font = Math.round(Math.min(12, Math.max(8.5, wide * scale * 0.105)) * 2) / 2;
      this.#words(camera, font, 600, "center", () => {
        context.fillStyle = palette.of.ink;
        for (const each of switches) {
          const [x, y] = camera.toSheet(each.x, each.y + high / 2);
          context.fillText(shortened(each.label, wide * scale - 6, font * 0.57), x, y + font * 0.36);
        }
      });
    }
    for (const each of switches) {
      if (each.managers.length > 0) drawBadge(context, palette, scale, each.x + wide / 2, each.y, each.managers);
    }
  }

  #focus(camera, fabric, palette, seen, focus) {
    const { context } = this;
    const { scale } = camera;
    const lines = new Map();
    for (const cable of focus.cables) {
      const colour = cable.fanOf === undefined ? palette.trunk(cable) : palette.adapter(cable.a.kind === "adapter" ? cable.a : cable.b, fabric);
      let path = lines.get(colour);
      if (path === undefined) lines.set(colour, (path = new Path2D()));
      trace(path, cable.curve);
    }
    context.lineWidth = Math.max(1.4, Math.min(2.4, scale * 2)) / scale;
    for (const [colour, path] of lines) {
      context.strokeStyle = colour;
      context.stroke(path);
    }
    const groups = new Set();
    for (const key of focus.keys) {
      const group = fabric.find(key)?.group;
      if (group !== undefined) groups.add(group);
    }
    if (fabric.sizes.group_height * scale >= 2) this.#groups(camera, fabric, palette, [...groups]);
    this.#switches(camera, fabric, palette, seen.filter((each) => focus.keys.has(each.key)), palette.of.accent);
  }
}

function buildPaths(fabric, palette) {
  const trunks = new Map();
  const between = new Map();
  for (const bundle of fabric.bundles) {
    if (bundle.cables.length === 0) continue;
    const colour = palette.trunk(bundle.cables[0]);
    const weight = 1.3 + Math.log2(bundle.cables.length);
    const tiers = `${bundle.a.y} ${bundle.b.y}`;
    between.set(tiers, (between.get(tiers) ?? 0) + 1);
    const key = `${tiers} ${colour} ${weight.toFixed(1)}`;
    let found = trunks.get(key);
    if (found === undefined) trunks.set(key, (found = { path: new Path2D(), colour, weight, between: tiers }));
    trace(found.path, bundle.curve);
  }
  const fans = new Map();
  for (const cable of fabric.cables) {
    const at = cable.fanOf;
    if (at === undefined || cable.slow !== undefined) continue;
    const colour = palette.adapter(cable.a === at ? cable.b : cable.a, fabric);
    let colours = fans.get(at.key);
    if (colours === undefined) fans.set(at.key, (colours = new Map()));
    let found = colours.get(colour);
    if (found === undefined) colours.set(colour, (found = [colour, new Path2D(), 0]));
    trace(found[1], cable.curve);
    found[2] += 1;
  }
  const listed = new Map([...fans].map(([key, colours]) => [key, [...colours.values()].sort((a, b) => b[2] - a[2])]));
  return { trunks, between, fans: listed };
}

/** Whether an agent of the cluster reports an adapter of this box. */
function isOwn(group) {
  return group.adapters.some((each) => each.live.length > 0);
}

function inView(camera, fabric, each) {
  const half = fabric.sizes.switch_width / 2;
  const left = Math.min(each.x - half, each.fan[0]);
  const right = Math.max(each.x + half, each.fan[2]);
  return camera.sees(left, each.y, right, Math.max(each.y + fabric.sizes.switch_height, each.fan[3]));
}

/** What tells a switch from its neighbours where its name does not fit: the number that it ends with. */
function shortened(text, width, character) {
  if (text.length * character <= width) return text;
  return width < 8 * character ? (/\d+$/.exec(text)?.[0] ?? cut(text, width, character)) : cut(text, width, character);
}

/** As much of a text as so many pixels hold. */
function cut(text, width, character) {
  const most = Math.max(1, Math.floor(width / character));
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}
