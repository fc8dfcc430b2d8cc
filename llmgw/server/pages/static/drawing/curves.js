// Where cables run: every cable is one cubic curve in the drawing's world, as eight numbers; or several that follow each other, six more for each.

const SPREAD = 0.42;
const GUTTER = 6.5;
const HOOK = 10;

/** The curve from switch `upper` down to switch `lower`; side by side, a bow above both. `shift` moves it across. */
export function trunkCurve(a, b, sizes, shift = 0) {
  const [upper, lower] = a.y <= b.y ? [a, b] : [b, a];
  const out = spread(upper, lower, sizes) + shift;
  const into = spread(lower, upper, sizes) + shift;
  if (upper.y === lower.y) {
    const bow = 40 + Math.min(Math.abs(b.x - a.x) / 7, 260) + shift;
    return [upper.x, upper.y, upper.x, upper.y - bow, lower.x, lower.y - bow, lower.x, lower.y];
  }
  const top = upper.y + sizes.switch_height;
  const middle = (top + lower.y) / 2;
  return [upper.x + out, top, upper.x + out, middle, lower.x + into, middle, lower.x + into, lower.y];
}

/** The curve from a switch down to an adapter's dot: to a lower row through the gap beside its column. */
export function fanCurve(at, adapter, sizes) {
  const top = at.y + sizes.switch_height;
  const half = sizes.switch_width * SPREAD;
  const first = at.fan[1];
  const lower = adapter.group !== undefined && adapter.group.at === at && adapter.group.y > first + 1;
  const x = lower ? adapter.group.x - GUTTER : adapter.x;
  const y = lower ? first : adapter.y;
  const out = at.x + Math.max(-half, Math.min(half, (x - at.x) * 0.3));
  const reach = y - top;
  const head = [out, top, out, top + reach * 0.62, x, top + reach * 0.3, x, y];
  if (!lower) return head;
  // Down beside the boxes, and over to the dot in the gap above its own.
  const turn = adapter.y - HOOK;
  const straight = [x, y + (turn - y) / 3, x, y + ((turn - y) * 2) / 3, x, turn];
  return [...head, ...straight, x, turn + HOOK * 0.7, adapter.x, turn + HOOK * 0.2, adapter.x, adapter.y];
}

/** The point of a curve after the part `t` (0 to 1) of its way, into `into` (x, y). */
export function pointOn(curve, t, into) {
  let from = 0;
  let part = t;
  if (curve.length > 8) {
    let whole = 0;
    for (let at = 0; at + 7 < curve.length; at += 6) whole += chord(curve, at);
    let left = t * whole;
    while (from + 13 < curve.length && left > chord(curve, from)) {
      left -= chord(curve, from);
      from += 6;
    }
    part = Math.min(1, left / Math.max(0.001, chord(curve, from)));
  }
  const u = 1 - part;
  const a = u * u * u;
  const b = 3 * u * u * part;
  const c = 3 * u * part * part;
  const d = part * part * part;
  into[0] = a * curve[from] + b * curve[from + 2] + c * curve[from + 4] + d * curve[from + 6];
  into[1] = a * curve[from + 1] + b * curve[from + 3] + c * curve[from + 5] + d * curve[from + 7];
  return into;
}

/** Adds a curve to a path (a Path2D or a context). */
export function trace(path, curve) {
  path.moveTo(curve[0], curve[1]);
  for (let at = 2; at < curve.length; at += 6) {
    path.bezierCurveTo(curve[at], curve[at + 1], curve[at + 2], curve[at + 3], curve[at + 4], curve[at + 5]);
  }
}

/** Where a curve ends: [x, y]. */
export function endOfCurve(curve) {
  return [curve[curve.length - 2], curve[curve.length - 1]];
}

/** How far a point is from a curve, by samples. */
export function distanceTo(curve, x, y) {
  let least = Infinity;
  const at = [0, 0];
  for (let step = 0; step <= 24; step += 1) {
    pointOn(curve, step / 24, at);
    least = Math.min(least, Math.hypot(at[0] - x, at[1] - y));
  }
  return least;
}

function chord(curve, at) {
  return Math.hypot(curve[at + 6] - curve[at], curve[at + 7] - curve[at + 1]);
}

function spread(from, to, sizes) {
  const half = sizes.switch_width * SPREAD;
  return Math.max(-half, Math.min(half, (to.x - from.x) * 0.1));
}
