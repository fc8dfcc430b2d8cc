// The legend: what the colours of the moment mean, and the signs that do not depend on colour.

import { make } from "./elements.js";

/** Fills the legend anew. */
export function showLegend(element, fabric, palette) {
  const line = (colour, words, kind = "") => {
    const sign = make("i", { className: kind });
    sign.style.color = colour;
    sign.style.borderColor = colour;
    return make("span", {}, sign, words);
  };
  const entries = palette.legend(fabric).map(([colour, words]) => line(colour, words, palette.by === "rate" ? "" : "dot"));
  if (fabric.slow.length) entries.push(line(palette.of.bad, `${fabric.slow.length} below rate`, "dashed"));
  if (fabric.down?.length) entries.push(line(palette.of.bad, `✕ ${fabric.down.length} down`, "down"));
  if (fabric.alive?.length) entries.push(line(palette.of.ink, "sends", "dot"), line(palette.of.ink, "receives", "ring"));
  const roles = new Set(fabric.managers.filter((each) => each.id !== undefined).map((each) => each.role));
  for (const role of ["master", "standby"]) {
    if (roles.has(role)) entries.push(make("span", {}, make("b", { className: `sm ${role}` }, "SM"), role));
  }
  element.replaceChildren(...entries);
}
