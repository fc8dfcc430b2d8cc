// Follows the output of a shard: asks for what has come since, and stops while somebody reads further up.

import { morph } from "./morph.js";
import { plainLine } from "./plain_text.js";

const EVERY_MS = 1000;
const AFTER_FAILURE_MS = [1000, 2000, 5000, 10_000];
const LOOK_EVERY_MS = 3000;
const PATIENCE_MS = 20_000;
const LINES_KEPT = 5000;
const OPEN_CHARS_MAX = 400_000;
const NEAR_END_PX = 24;

const log = document.getElementById("log");
const shard = document.getElementById("shard");
const said = document.getElementById("log-said");
const button = document.getElementById("follow");
const url = log.dataset.url;

let offset = null;
let open = "";
let openLine = null;
let dropped = 0;
let failures = 0;
let following = true;
let over = false;
let asking = false;
let timer = null;

/** The next piece of the output; the first time, its last lines. */
async function ask() {
  if (asking || over || !following || document.hidden) return;
  asking = true;
  clearTimeout(timer);
  let wait = EVERY_MS;
  try {
    const query = offset === null ? `lines=${log.dataset.lines}` : `offset=${offset}`;
    const answer = await fetch(`${url}&${query}`, {
      credentials: "same-origin", cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(PATIENCE_MS),
    });
    const view = await answer.json().catch(() => ({}));
    if (!answer.ok) refused(answer.status, view.code, view.message ?? `the server answered ${answer.status}`);
    else {
      await take(view);
      // What is behind by more than one piece is caught up with at once.
      if (view.text !== "") wait = view.text.length > 65_536 ? 0 : EVERY_MS / 4;
    }
  } catch (error) {
    const why = { TimeoutError: "it takes too long", TypeError: "it cannot be reached" }[error.name] ?? error.message;
    wait = failed(`No answer from the server (${why}); trying again.`);
  }
  asking = false;
  if (failures > 0) wait = AFTER_FAILURE_MS[Math.min(failures, AFTER_FAILURE_MS.length) - 1];
  if (!over) timer = setTimeout(ask, wait);
}

function refused(status, code, message) {
  if (status === 401) {
    end("Your session has ended.");
    const login = document.createElement("a");
    login.href = `/admin/login?over=1&next=${encodeURIComponent(location.pathname + location.search)}`;
    login.textContent = "Log in again";
    said.append(" ", login);
  } else if (code === "unknown-replica" && offset !== null) {
    shard.textContent = "The replica has ended.";
    end("The replica is gone; nothing more will come.");
  } else {
    failed(`${message[0].toUpperCase()}${message.slice(1)}; trying again.`);
  }
}

function failed(words) {
  failures += 1;
  tell(`▲ ${words}`, true);
}

async function take(view) {
  failures = 0;
  if (offset === null) log.replaceChildren();
  else if (view.offset > offset) note(`${(view.offset - offset).toLocaleString("en")} bytes were rotated away before they could be read`);
  offset = view.next_offset;
  add(view.text);
  if (view.shard_over && view.text === "") {
    // Its last state is what is looked for when it is over.
    await look();
    end("The shard is over: this is all that it said.");
  } else tell(dropped > 0 ? `Following; the last ${LINES_KEPT.toLocaleString("en")} lines are kept here.` : "Following.");
}

/** Text is cut anywhere: the line that has not ended is written again with each piece. */
function add(text) {
  if (text === "") return;
  const lines = (open + text).split("\n");
  open = lines.pop().slice(-OPEN_CHARS_MAX);
  const made = document.createDocumentFragment();
  openLine?.remove();
  for (const line of lines.slice(-LINES_KEPT)) made.append(lineOf(line));
  openLine = open === "" ? null : lineOf(open);
  if (openLine !== null) made.append(openLine);
  log.append(made);
  while (log.childElementCount > LINES_KEPT) {
    log.firstElementChild.remove();
    dropped += 1;
  }
  toEnd();
}

function lineOf(text) {
  const line = document.createElement("div");
  line.textContent = plainLine(text);
  return line;
}

function note(words) {
  const line = lineOf(`— ${words} —`);
  line.className = "note";
  log.append(line);
}

/** What stands above the output, of this very page as it is now, with as little of the output as there can be. */
async function look() {
  const address = new URL(location.href);
  address.searchParams.set("lines", "1");
  try {
    const answer = await fetch(address, {
      headers: { accept: "text/html" }, credentials: "same-origin", cache: "no-store", redirect: "error", signal: AbortSignal.timeout(PATIENCE_MS),
    });
    // Also when its node does not answer.
    const told = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("shard");
    if (told !== null) morph(shard, told);
  } catch {
    // The next time; that the server does not answer is said below.
  }
}

async function lookOn() {
  if (over) return;
  if (!document.hidden) await look();
  setTimeout(lookOn, LOOK_EVERY_MS);
}

function end(words) {
  over = true;
  clearTimeout(timer);
  button.hidden = true;
  tell(words);
}

function tell(words, problem = false) {
  if (said.textContent === words) return;
  said.textContent = words;
  said.className = problem ? "problem" : "quiet";
}

function toEnd() {
  log.scrollTop = log.scrollHeight;
}

function follow(wanted) {
  if (following === wanted || over) return;
  following = wanted;
  button.setAttribute("aria-pressed", String(wanted));
  button.textContent = wanted ? "Following" : "Follow";
  if (wanted) {
    toEnd();
    ask();
  } else {
    clearTimeout(timer);
    tell("Paused, as you read further up. What comes is read when you follow again.");
  }
}

log.addEventListener("scroll", () => {
  follow(log.scrollHeight - log.scrollTop - log.clientHeight <= NEAR_END_PX);
}, { passive: true });
button.addEventListener("click", () => {
  follow(!following);
});
document.addEventListener("visibilitychange", ask);
button.hidden = false;
toEnd();
ask();
setTimeout(lookOn, LOOK_EVERY_MS);
