// Finding something by name: a combobox over nodes, switches, adapters and replicas.

import { nameOf } from "./describe.js";
import { make } from "./elements.js";

const SHOWN_MAX = 12;
const KINDS = { node: "node", switch: "switch", adapter: "adapter", replica: "replica" };

export class Search {
  /** `choose` is called with what was chosen. */
  constructor(input, list, choose) {
    this.input = input;
    this.list = list;
    this.choose = choose;
    this.entries = [];
    this.found = [];
    this.at = 0;
    input.addEventListener("input", () => this.#look());
    input.addEventListener("focus", () => this.#look());
    input.addEventListener("blur", () => this.#close());
    input.addEventListener("keydown", (event) => this.#key(event));
    list.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      const option = event.target.closest("li");
      if (option !== null) this.#take([...list.children].indexOf(option));
    });
  }

  /** What there is to be found. */
  learn(fabric) {
    const of = (item, ...words) => ({ item, name: nameOf(item).toLowerCase(), words: words.filter(Boolean).join(" ").toLowerCase() });
    this.entries = [
      ...[...fabric.nodes.values()].map((each) => of(each)),
      ...fabric.switches.map((each) => of(each, each.guid, each.name)),
      ...fabric.replicas.map((each) => of(each, each.model)),
      ...fabric.adapters.map((each) => of(each, each.guid, each.label)),
    ];
  }

  #look() {
    const wanted = this.input.value.trim().toLowerCase();
    if (wanted === "") {
      this.#close();
      return;
    }
    const rank = (each) => {
      if (each.name === wanted) return 0;
      if (each.name.startsWith(wanted)) return 1;
      if (each.name.includes(wanted)) return 2;
      return each.words.includes(wanted) ? 3 : 9;
    };
    const ranked = [];
    for (const each of this.entries) {
      const place = rank(each);
      if (place < 9) ranked.push([place, each.item]);
    }
    // A stable sort: nodes stay before switches, and these before adapters.
    ranked.sort((one, other) => one[0] - other[0]);
    this.found = ranked.slice(0, SHOWN_MAX).map((each) => each[1]);
    this.at = 0;
    this.#show(ranked.length);
  }

  #show(total) {
    const options = this.found.map((item, at) => make("li", { role: "option", id: `found-${at}` }, nameOf(item), make("span", { className: "quiet" }, KINDS[item.kind])));
    if (options.length === 0) options.push(make("li", { role: "option", className: "quiet" }, "nothing here is called that"));
    if (total > SHOWN_MAX) options.push(make("li", { role: "presentation", className: "quiet" }, `and ${total - SHOWN_MAX} more`));
    this.list.replaceChildren(...options);
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.#mark();
  }

  #mark() {
    [...this.list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === this.at && this.found.length > 0)));
    if (this.found.length) this.input.setAttribute("aria-activedescendant", `found-${this.at}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  #key(event) {
    if (event.key === "Escape") {
      this.input.value = "";
      this.#close();
      this.input.blur();
    } else if (event.key === "Enter") {
      event.preventDefault();
      this.#take(this.at);
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && this.found.length) {
      event.preventDefault();
      this.at = (this.at + (event.key === "ArrowDown" ? 1 : this.found.length - 1)) % this.found.length;
      this.#mark();
    }
  }

  #take(at) {
    const item = this.found[at];
    if (item === undefined || this.list.hidden) return;
    this.#close();
    this.choose(item);
  }

  #close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}
