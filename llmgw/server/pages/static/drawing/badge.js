// The badge of a subnet manager: filled for the master, an outline for a standby.

/** Draws it around a point of the world; in pixels it has one size at every zoom. */
export function drawBadge(context, palette, scale, x, y, managers) {
  const master = managers.some((each) => each.role === "master");
  context.beginPath();
  context.roundRect(x - 13 / scale, y - 8 / scale, 26 / scale, 15 / scale, 7.5 / scale);
  context.fillStyle = master ? palette.of.accent : palette.of.raised;
  context.fill();
  context.strokeStyle = palette.of.accent;
  context.lineWidth = 1.2 / scale;
  context.stroke();
  context.fillStyle = master ? palette.of.sheet : palette.of.accent;
  context.font = `700 ${9 / scale}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.fillText("SM", x, y + 2.8 / scale);
}
