// What programs print, as a page may show it; `plain_text.py` does the same to what a page is rendered with.

const LINE_CHARS_MAX = 20_000;
const ESCAPES = /(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?/g;
const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** One line as a terminal would leave it: after a carriage return, only what was written last. Bounded. */
export function plainLine(line) {
  const left = line.replace(ESCAPES, "").replace(/\r+$/, "");
  const plain = left.slice(left.lastIndexOf("\r") + 1).replace(UNSEEN, "");
  const characters = plain.length > LINE_CHARS_MAX ? [...plain] : [];
  if (characters.length <= LINE_CHARS_MAX) return plain;
  return `${characters.slice(0, LINE_CHARS_MAX).join("")} … and ${characters.length - LINE_CHARS_MAX} characters more`;
}
