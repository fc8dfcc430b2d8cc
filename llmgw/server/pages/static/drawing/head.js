// What stands above the drawing in words: the map's figures, who manages the fabric, and what is wrong with it.

import { make } from "./elements.js";

/** Tells what is so now; what stands there already is left alone, so that nobody is read it again. */
export function showHead({ figures, managers, problems }, live) {
  say(figures, live.map_text ?? "no map yet");
  say(managers, live.managers_text ?? "");
  const errors = new Set(live.errors ?? []);
  const wrong = [live.map_error, ...(live.problems ?? [])].filter(Boolean);
  const lines = wrong.map((each) => (errors.has(each) ? make("li", {}, `✕ ${each}`) : make("li", { class: "warn" }, `▲ ${each}`)));
  if (worded([...problems.children]) !== worded(lines)) problems.replaceChildren(...lines);
}

function worded(lines) {
  return lines.map((each) => each.textContent).join("\n");
}

function say(element, words) {
  if (element.textContent !== words) element.textContent = words;
}
