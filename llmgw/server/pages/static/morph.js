// Changes one tree into another where they differ and nowhere else, so that what somebody does in it goes on.
// Rows and items that come and go are best given an `id`: then each stays itself wherever it moves.

/**
 * `old` becomes like `told`, a tree of another document. Children are matched by `id`, else by position and tag.
 * Kept are: open <details> and <dialog>, what is being typed or chosen, focus, scroll positions, what is selected,
 * and everything within an element with `data-keep`. Returns whether something was left as it was for a selection.
 */
export function morph(old, told) {
  const kept = new Kept(old);
  const work = new Morph();
  work.children(old, told);
  kept.restore();
  return work.held;
}

class Morph {
  constructor() {
    const selection = document.getSelection();
    this.selection = selection === null || selection.isCollapsed ? null : selection;
    this.held = false;
  }

  children(old, told) {
    // What is the same at the end stays there: a new first row makes no other of each that follows.
    let end = null;
    let last = told.lastChild;
    for (let each = old.lastChild; each !== null && last !== null && each.isEqualNode(last); each = each.previousSibling) {
      end = each;
      last = last.previousSibling;
    }
    if (last === null && end === old.firstChild) return;
    const byId = new Map();
    for (const child of old.children) if (idOf(child) !== null) byId.set(idOf(child), child);
    const wanted = new Set([...told.children].map(idOf));
    wanted.delete(null);
    let at = old.firstChild;
    for (let next = last === null ? null : told.firstChild; next !== null; next = next === last ? null : next.nextSibling) {
      const id = idOf(next);
      let found = id === null ? at : byId.get(id) ?? null;
      // By position: the next of its kind; those with an id that is still wanted wait for their turn.
      if (id === null) while (found !== end && (wanted.has(idOf(found)) || !alike(found, next))) found = found.nextSibling;
      if (found === null || (id === null && found === end) || !alike(found, next)) {
        old.insertBefore(document.importNode(next, true), at);
        continue;
      }
      if (found === at) at = at.nextSibling;
      else old.insertBefore(found, at);
      this.node(found, next);
    }
    while (at !== end && at !== null) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }

  node(old, told) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data === told.data) return;
      if (this.selection?.containsNode(old, true)) this.held = true;
      else old.data = told.data;
      return;
    }
    if (old.hasAttribute("data-keep")) return;
    if (old.localName === "select" && (old === document.activeElement || chosen(old))) return;
    const typed = old.localName === "textarea" && old.value !== old.defaultValue;
    attributes(old, told);
    if (!typed) this.children(old, told);
  }
}

/** Its id or null. Not by the property, which for a form may be a field of that name. */
function idOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("id") : null;
}

function alike(one, other) {
  if (one.nodeType !== other.nodeType) return false;
  if (one.nodeType !== Node.ELEMENT_NODE) return true;
  return one.localName === other.localName && one.namespaceURI === other.namespaceURI && idOf(one) === idOf(other);
}

function attributes(old, told) {
  const own = OWN[old.localName]?.(old) ?? [];
  for (const { name, value } of told.attributes) {
    if (!own.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!own.includes(name) && !told.hasAttribute(name)) old.removeAttribute(name);
  }
}

/** What belongs to whoever looks, and not to the server. */
const OWN = {
  details: () => ["open"],
  dialog: () => ["open"],
  input: (input) => {
    if (input.type === "hidden") return [];
    return [...(input.value !== input.defaultValue ? ["value"] : []), ...(input.checked !== input.defaultChecked ? ["checked"] : [])];
  },
};

function chosen(select) {
  const options = [...select.options];
  if (select.multiple || options.some((option) => option.defaultSelected)) return options.some((option) => option.selected !== option.defaultSelected);
  return select.selectedIndex > 0;
}

/** Focus and scroll positions, which an element loses when it is moved. */
class Kept {
  constructor(root) {
    const active = document.activeElement;
    this.active = active !== null && root.contains(active) ? active : null;
    this.href = this.active?.getAttribute("href") ?? null;
    this.root = root;
    this.range = this.active !== null && "selectionStart" in this.active ? [this.active.selectionStart, this.active.selectionEnd] : null;
    this.scrolled = [...root.querySelectorAll(".scroll, [data-scroll]")].map((each) => [each, each.scrollLeft, each.scrollTop]);
  }

  restore() {
    for (const [each, left, top] of this.scrolled) {
      if (each.scrollLeft !== left) each.scrollLeft = left;
      if (each.scrollTop !== top) each.scrollTop = top;
    }
    if (this.active === null || document.activeElement === this.active) return;
    if (this.active.isConnected) {
      this.active.focus({ preventScroll: true });
      if (this.range !== null && this.range[0] !== null) this.active.setSelectionRange(...this.range);
    } else if (this.href !== null) {
      // Another element that leads to the same place.
      [...this.root.querySelectorAll("a")].find((link) => link.getAttribute("href") === this.href)?.focus({ preventScroll: true });
    }
  }
}
