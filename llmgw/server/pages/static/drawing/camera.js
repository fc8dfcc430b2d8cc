// What part of the drawing's world is on the sheet: `scale` pixels a unit, `x` and `y` at the upper left corner.

const CLOSEST = 5;
const MARGIN = 22;
const GLIDE_MS = 380;

export class Camera {
  constructor() {
    this.scale = 1;
    this.x = 0;
    this.y = 0;
    this.width = 1;
    this.height = 1;
    this.world = [0, 0, 1, 1];
    this.calm = false;
    this.glide = null;
    this.bottom = 0;
  }

  /** The sheet has another size; its middle stays where it is. */
  resize(width, height) {
    this.x += (this.width - width) / 2 / this.scale;
    this.y += (this.height - height) / 2 / this.scale;
    this.width = width;
    this.height = height;
  }

  /** World to sheet. */
  toSheet(x, y) {
    return [(x - this.x) * this.scale, (y - this.y) * this.scale];
  }

  /** Sheet to world. */
  toWorld(x, y) {
    return [x / this.scale + this.x, y / this.scale + this.y];
  }

  /** The visible part of the world: [left, top, right, bottom]. */
  get view() {
    return [this.x, this.y, this.x + this.width / this.scale, this.y + this.height / this.scale];
  }

  /** Whether a box of the world is on the sheet. */
  sees(left, top, right, bottom) {
    const view = this.view;
    return right >= view[0] && left <= view[2] && bottom >= view[1] && top <= view[3];
  }

  pan(dx, dy) {
    this.glide = null;
    this.x += dx / this.scale;
    this.y += dy / this.scale;
    this.#hold();
  }

  /** Zooms by a factor around a point of the sheet, which stays under the pointer. */
  zoom(factor, at = [this.width / 2, this.height / 2]) {
    this.glide = null;
    const [x, y] = this.toWorld(...at);
    this.scale = this.#bounded(this.scale * factor);
    this.x = x - at[0] / this.scale;
    this.y = y - at[1] / this.scale;
    this.#hold();
  }

  /** The place from which a box of the world fills the sheet, `closest` at most. `right`, `bottom`: pixels that are covered. */
  placeFor(box, closest = CLOSEST, { right = 0, bottom = this.bottom } = {}) {
    const width = Math.max(80, this.width - 2 * MARGIN - right);
    const height = Math.max(80, this.height - 2 * MARGIN - bottom);
    const scale = Math.min(closest, width / Math.max(1, box[2] - box[0]), height / Math.max(1, box[3] - box[1]));
    return {
      scale,
      x: (box[0] + box[2]) / 2 - (MARGIN + width / 2) / scale,
      y: (box[1] + box[3]) / 2 - (MARGIN + height / 2) / scale,
    };
  }

  /** Goes there: smoothly, or at once for whoever wants no motion. */
  go(place, now = performance.now()) {
    if (this.calm) {
      this.glide = null;
      Object.assign(this, place);
    } else this.glide = { from: { scale: this.scale, x: this.x, y: this.y }, to: place, began: now };
  }

  /** Takes a step of a glide; true while there is one. */
  step(now) {
    if (this.glide === null) return false;
    const { from, to, began } = this.glide;
    const part = Math.min(1, Math.max(0, (now - began) / GLIDE_MS));
    const eased = 1 - (1 - part) ** 3;
    // Scales are eased by their ratio, and the middle of the sheet along with it.
    this.scale = from.scale * (to.scale / from.scale) ** eased;
    const middle = (one, size) => one[size === "width" ? "x" : "y"] + this[size] / 2 / one.scale;
    for (const [axis, size] of [["x", "width"], ["y", "height"]]) {
      const target = middle(from, size) + (middle(to, size) - middle(from, size)) * eased;
      this[axis] = target - this[size] / 2 / this.scale;
    }
    if (part === 1) {
      Object.assign(this, to);
      this.glide = null;
    }
    return true;
  }

  get farthest() {
    return Math.min(1, this.placeFor(this.world, 1).scale * 0.6);
  }

  #bounded(scale) {
    return Math.min(CLOSEST, Math.max(this.farthest, scale));
  }

  /** The world never leaves the sheet altogether. */
  #hold() {
    const [left, top, right, bottom] = this.world;
    const wide = this.width / this.scale;
    const high = this.height / this.scale;
    this.x = Math.min(right - wide * 0.2, Math.max(left - wide * 0.8, this.x));
    this.y = Math.min(bottom - high * 0.2, Math.max(top - high * 0.8, this.y));
  }
}
