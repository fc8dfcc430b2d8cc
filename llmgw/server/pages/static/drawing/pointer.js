// Mouse, touch and pen: drag, wheel, pinch, hover, click.

const CLICK_PX = 5;

/** `on` has pan(dx, dy), zoom(factor, at), hover(x, y) or hover(null), and click(x, y). */
export function listen(sheet, on) {
  const held = new Map();
  let moved = 0;
  let apart = 0;
  const where = (event) => {
    const box = sheet.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const spread = () => {
    const [[ax, ay], [bx, by]] = [...held.values()];
    return { apart: Math.hypot(ax - bx, ay - by), middle: [(ax + bx) / 2, (ay + by) / 2] };
  };
  sheet.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    sheet.setPointerCapture(event.pointerId);
    if (held.size === 0) moved = 0;
    held.set(event.pointerId, where(event));
    if (held.size === 2) apart = spread().apart;
  });
  sheet.addEventListener("pointermove", (event) => {
    const at = where(event);
    const before = held.get(event.pointerId);
    if (before === undefined) {
      on.hover(...at);
      return;
    }
    held.set(event.pointerId, at);
    moved += Math.hypot(at[0] - before[0], at[1] - before[1]);
    if (held.size === 1) {
      if (moved > CLICK_PX) on.pan(before[0] - at[0], before[1] - at[1]);
    } else if (held.size === 2) {
      on.pan((before[0] - at[0]) / 2, (before[1] - at[1]) / 2);
      const now = spread();
      if (apart > 0) on.zoom(now.apart / apart, now.middle);
      apart = now.apart;
    }
  });
  const release = (event) => {
    if (!held.delete(event.pointerId)) return;
    if (event.type === "pointerup" && held.size === 0 && moved <= CLICK_PX) on.click(...where(event));
  };
  sheet.addEventListener("pointerup", release);
  sheet.addEventListener("pointercancel", release);
  sheet.addEventListener("pointerleave", () => on.hover(null));
  sheet.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    on.zoom(Math.exp(-Math.max(-240, Math.min(240, event.deltaY * lines)) * 0.0018), where(event));
  }, { passive: false });
}
