// What moves: slow cables that march, ports that are down and glow, particles as fast as adapters send and receive.

import { drawBadge } from "./badge.js";
import { endOfCurve, pointOn, trace } from "./curves.js";

const PARTICLES_MAX = 1500;
const GLOWS_MAX = 400;
const MARKERS_MAX = 60;
const FONT = '600 11px -apple-system, "Segoe UI", Roboto, "Noto Sans", system-ui, sans-serif';

export class Moving {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.markers = [];
  }

  /** Whether anything here changes with time. */
  stirs(fabric) {
    return fabric.slow.length > 0 || fabric.down?.length > 0 || fabric.alive?.some(busy);
  }

  /** One frame at `now` (ms). `calm`: nothing marches, nothing flies, nothing pulses. */
  draw(camera, fabric, palette, { now, calm, focus, selected, cursor, ratio }) {
    const { context } = this;
    const { scale } = camera;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(ratio * scale, 0, 0, ratio * scale, -camera.x * scale * ratio, -camera.y * scale * ratio);
    const seconds = now / 1000;
    this.#march(camera, fabric, palette, calm ? 0 : seconds, focus);
    if (!calm) this.#fly(camera, fabric, palette, seconds, focus);
    this.#glow(camera, fabric, palette, calm ? 0.5 : seconds);
    this.#badges(camera, fabric, palette, focus);
    for (const [item, colour, wide] of [[selected, palette.of.accent, 2.2], [cursor, palette.of.ink, 1.6]]) {
      if (item) this.#frame(camera, fabric, item, colour, wide);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#mark(camera, fabric, palette, focus);
  }

  #march(camera, fabric, palette, seconds, focus) {
    const { context } = this;
    const { scale } = camera;
    const shown = fabric.slow.filter((cable) => seesCurve(camera, cable.curve));
    context.lineCap = "butt";
    for (const part of [false, true]) {
      const path = new Path2D();
      for (const cable of shown) if ((focus === null || focus.cables.has(cable)) === part) trace(path, cable.curve);
      context.globalAlpha = part ? 1 : 0.25;
      context.setLineDash([]);
      context.strokeStyle = palette.of.sheet;
      context.lineWidth = 5 / scale;
      context.stroke(path);
      context.strokeStyle = palette.of.bad;
      context.lineWidth = 2.6 / scale;
      context.setLineDash([9 / scale, 6 / scale]);
      context.lineDashOffset = (-seconds * 26) / scale;
      context.stroke(path);
    }
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  #fly(camera, fabric, palette, seconds, focus) {
    const { context } = this;
    const { scale } = camera;
    const size = Math.max(1.1, Math.min(2.6, scale * 2.4)) / scale;
    const sends = new Path2D();
    const receives = new Path2D();
    const at = [0, 0];
    let left = PARTICLES_MAX;
    for (const adapter of fabric.alive ?? []) {
      if (left <= 0) break;
      const cable = adapter.cables.find((each) => each.fanOf !== undefined);
      if (cable === undefined || (focus !== null && !focus.cables.has(cable)) || !seesCurve(camera, cable.curve)) continue;
      for (const port of adapter.live) {
        if (port.down) continue;
        const rate = port.rate_gbps ?? cable.gbps ?? 400;
        for (const [gbps, path, up] of [[port.tx_gbps, sends, true], [port.rx_gbps, receives, false]]) {
          if (!gbps) continue;
          // The root: a tenth of the rate is seen to move, and all of it not too fast to follow.
          const part = Math.sqrt(Math.min(1, gbps / rate));
          const count = 1 + Math.round(part * 4);
          const begin = seconds * (0.12 + 1.1 * part) + hash(adapter.id) + (up ? 0.5 : 0);
          for (let each = 0; each < count; each += 1) {
            const along = (begin + each / count) % 1;
            pointOn(cable.curve, up ? 1 - along : along, at);
            path.moveTo(at[0] + size, at[1]);
            path.arc(at[0], at[1], size, 0, 6.3);
          }
          left -= count;
        }
      }
    }
    // Full and hollow, and in no colour: those tell rates, rails, load or replicas. A rim sets them off their cable.
    context.lineWidth = 1.2 / scale;
    for (const [path, fill, rim] of [[receives, palette.of.sheet, palette.of.ink], [sends, palette.of.ink, palette.of.sheet]]) {
      context.strokeStyle = rim;
      context.stroke(path);
      context.fillStyle = fill;
      context.fill(path);
    }
  }

  #glow(camera, fabric, palette, seconds) {
    const { context } = this;
    const { scale } = camera;
    const pulse = 0.5 + 0.5 * Math.sin(seconds * 3.2);
    const cables = new Path2D();
    const halos = new Path2D();
    const marks = new Path2D();
    const radius = Math.max(3.6, Math.min(5.5, 5 * scale)) / scale;
    for (const adapter of (fabric.down ?? []).slice(0, GLOWS_MAX)) {
      const { x, y } = adapter;
      if (!camera.sees(x - 40 / scale, y - 40 / scale, x + 40 / scale, y + 40 / scale)) continue;
      for (const cable of adapter.cables) trace(cables, cable.curve);
      halos.moveTo(x + radius * (2.1 + pulse), y);
      halos.arc(x, y, radius * (2.1 + pulse), 0, 2 * Math.PI);
      marks.moveTo(x - radius, y - radius);
      marks.lineTo(x + radius, y + radius);
      marks.moveTo(x + radius, y - radius);
      marks.lineTo(x - radius, y + radius);
    }
    context.strokeStyle = palette.of.bad;
    context.lineWidth = 1.6 / scale;
    context.setLineDash([2 / scale, 4 / scale]);
    context.stroke(cables);
    context.setLineDash([]);
    context.fillStyle = palette.of.bad;
    context.globalAlpha = 0.18 + 0.22 * (1 - pulse);
    context.fill(halos);
    context.globalAlpha = 1;
    context.lineWidth = 2.2 / scale;
    context.stroke(marks);
  }

  #badges(camera, fabric, palette, focus) {
    const { context } = this;
    const { scale } = camera;
    for (const adapter of fabric.managed) {
      context.globalAlpha = focus === null || focus.keys.has(adapter.key) ? 1 : 0.25;
      drawBadge(context, palette, scale, adapter.group.x + fabric.sizes.group_width, adapter.group.y, adapter.managers);
    }
    context.globalAlpha = 1;
  }

  /** A frame around what is selected, or where the keyboard is. */
  #frame(camera, fabric, item, colour, wide) {
    const { context } = this;
    const { scale } = camera;
    const { switch_width, switch_height, group_width, group_height } = fabric.sizes;
    const gap = 4 / scale;
    context.beginPath();
    const around = (each) => {
      if (each.kind === "switch") {
        context.roundRect(each.x - switch_width / 2 - gap, each.y - gap, switch_width + 2 * gap, switch_height + 2 * gap, 6 + gap);
      } else if (item.kind === "adapter") {
        const radius = Math.max(6, 7 / scale);
        context.moveTo(each.x + radius, each.y);
        context.arc(each.x, each.y, radius, 0, 2 * Math.PI);
      } else context.roundRect(each.group.x - gap, each.group.y - gap, group_width + 2 * gap, group_height + 2 * gap, 5 + gap);
    };
    if (item.kind === "cable") {
      // A slow one is red already, and all else is faint.
      if (item.slow === undefined) trace(context, item.curve);
    } else if (item.kind === "switch" || item.kind === "adapter") around(item);
    else fabric.adaptersOf(item).forEach(around);
    context.strokeStyle = colour;
    context.lineWidth = wide / scale;
    context.stroke();
  }

  /** Pills that say from what to what; on cables that run side by side they stand apart. */
  #mark(camera, fabric, palette, focus) {
    const { context } = this;
    this.markers = [];
    const at = [0, 0];
    // On a small sheet they would cover what they mark; the panel and the hint tell the rest.
    const short = camera.width < 560 && camera.scale < 0.8;
    context.font = FONT;
    context.textAlign = "center";
    for (const cable of fabric.slow) {
      if (this.markers.length >= MARKERS_MAX) break;
      const text = short ? `▼ ${cable.rate}` : `▼ ${cable.slow.expected} → ${cable.rate}`;
      const half = context.measureText(text).width / 2 + 9;
      let box = null;
      for (const part of [0.5, 0.4, 0.6, 0.3, 0.7, 0.22, 0.78]) {
        pointOn(cable.curve, part, at);
        const [x, y] = camera.toSheet(at[0], at[1]);
        if (x < -half || y < -12 || x > camera.width + half || y > camera.height + 12) continue;
        const middle = Math.min(camera.width - half - 4, Math.max(half + 4, x));
        const tried = [middle - half, y - 11, middle + half, y + 11];
        if (this.markers.every(({ box: other }) => tried[2] < other[0] || tried[0] > other[2] || tried[3] < other[1] || tried[1] > other[3])) {
          box = tried;
          break;
        }
      }
      if (box === null) continue;
      this.markers.push({ box, cable });
      context.globalAlpha = focus === null || focus.cables.has(cable) ? 1 : 0.3;
      context.beginPath();
      context.roundRect(box[0], box[1], box[2] - box[0], 22, 11);
      context.fillStyle = palette.of.bad;
      context.fill();
      context.strokeStyle = palette.of.sheet;
      context.lineWidth = 2;
      context.stroke();
      context.fillStyle = palette.of.sheet;
      context.fillText(text, (box[0] + box[2]) / 2, box[1] + 15);
    }
    context.globalAlpha = 1;
  }
}

function busy(adapter) {
  return adapter.live.some((port) => port.tx_gbps > 0 || port.rx_gbps > 0);
}

function seesCurve(camera, curve) {
  const [x, y] = endOfCurve(curve);
  return camera.sees(Math.min(curve[0], x) - 30, Math.min(curve[1], curve[3], y), Math.max(curve[0], x) + 30, Math.max(curve[1], y));
}

/** A part between 0 and 1 that is an id's own, so that particles do not go in step. */
function hash(text) {
  let sum = 0;
  for (let at = text.length - 6; at < text.length; at += 1) sum = (sum * 31 + (text.charCodeAt(at) || 0)) % 1009;
  return sum / 1009;
}
