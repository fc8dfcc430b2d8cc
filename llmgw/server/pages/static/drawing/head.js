// What stands above the drawing in words: the map's figures, who manages the fabric, and what is wrong with it.

import { make } from "./elements.js";

/** Tells what is so now; what stands there already is left alone, so that nobody is read it again. */
export function showHead({ figures, managers, problems }, live) {
  say(figures, live.map_text ?? "no map yet");
  say(managers, live.managers_text ?? "");
  const sentences = [live.map_error, ...(live.problems ?? [])].filter(Boolean).map((each) => `▲ ${each}`);
  const told = [...problems.children].map((each) => each.textContent);
  if (told.join("\n") !== sentences.join("\n")) problems.replaceChildren(...sentences.map((each) => make("li", {}, each)));
}

function say(element, words) {
  if (element.textContent !== words) element.textContent = words;
}
