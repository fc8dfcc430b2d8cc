// Pages keep up: on news from the server a page asks for itself again, and changes where it differs.
//
// After each change the document gets the event `fresh`. A page whose own script draws leaves this module out
// ({% block live %}), or marks what is the script's own with `data-keep`.

import { tell as tellTimes } from "./ago.js";
import { morph } from "./morph.js";

const EVENTS = "/admin/events";
const SAID = "said";
// The server speaks at least every 30 s.
const SILENCE_MS = 45_000;
// Without a stream.
const EVERY_MS = 15_000;
const STREAM_AGAIN_MS = 60_000;
const PATIENCE_MS = 30_000;
const GAP_MS = 900;
// A page that takes long to make is asked for less often.
const REST = 4;

const main = document.getElementById("main");
// With the word for what a form has just done, which whoever copies or reloads the address would say again.
const source = location.href;
const line = document.getElementById("fresh");

let cameAt = Date.now();
let tookMs = 0;
let etag = null;
// What this page is made of, in the server's words.
let version = document.querySelector('meta[name="news"]')?.content ?? "";
let over = false;
let asking = false;
let wanted = false;
let held = false;
let timer = null;
let stream = null;
let silence = null;
let opening = null;

/** Asks soon: as soon as the last answer's cost allows. */
function want() {
  if (over || document.hidden) return;
  if (asking) {
    wanted = true;
    return;
  }
  const since = Date.now() - cameAt;
  later(Math.max(0, Math.max(GAP_MS, REST * tookMs) - since));
}

function later(ms) {
  clearTimeout(timer);
  timer = setTimeout(ask, ms);
}

async function ask() {
  clearTimeout(timer);
  if (asking || over || document.hidden) return;
  asking = true;
  wanted = false;
  const began = Date.now();
  try {
    const headers = { accept: "text/html", ...(etag === null ? {} : { "if-none-match": etag }) };
    const answer = await fetch(source, {
      headers, credentials: "same-origin", cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (answer.type === "opaqueredirect") {
      // To the login, or to where what is shown has gone.
      const who = await fetch("/api/v1/server", { method: "HEAD", cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
      if (who.status === 401) end();
      else location.reload();
    } else if (answer.status === 304) {
      came(began);
    } else {
      if (answer.status === 404) throw new Error("what this page shows is not there any more");
      if (!answer.ok) throw new Error(`it answered ${answer.status}`);
      const told = new DOMParser().parseFromString(await answer.text(), "text/html");
      held = take(told);
      // What was left for a selection is asked for again.
      etag = held ? null : answer.headers.get("etag");
      came(began);
    }
  } catch (error) {
    const why = { TimeoutError: "it takes too long", TypeError: "it cannot be reached" }[error.name] ?? error.message;
    const since = new Date(cameAt).toLocaleTimeString();
    tell(`No news from the server since ${since} (${why}); all is shown as it was then.`);
  }
  asking = false;
  if (over) return;
  if (wanted) want();
  else if (!isOpen() || line.hidden === false) later(EVERY_MS);
}

function came(began) {
  cameAt = Date.now();
  tookMs = cameAt - began;
  tell("");
}

function take(told) {
  const fresh = told.getElementById("main");
  if (fresh === null) throw new Error("the answer cannot be read");
  if (styles(told) !== styles(document)) {
    // Another version of llmgw: its scripts and styles belong to it.
    if (main.querySelector("[data-keep]") === null && !typing()) location.reload();
    throw new Error("it is another version of llmgw now: load this page again");
  }
  const left = morph(main, fresh);
  version = told.querySelector('meta[name="news"]')?.content ?? "";
  if (document.title !== told.title) document.title = told.title;
  tellTimes();
  document.dispatchEvent(new Event("fresh"));
  return left;
}

function styles(page) {
  return page.querySelector('link[rel="stylesheet"]')?.getAttribute("href");
}

function typing() {
  return [...main.querySelectorAll("input, textarea")].some((each) => each.value !== each.defaultValue);
}

/** In the line above the page, where it is said that something does not go well; "" when it does. */
function tell(words, login) {
  if (words !== "" && line.textContent.startsWith(words)) return;
  line.replaceChildren(words);
  if (login !== undefined) {
    const link = document.createElement("a");
    link.href = login;
    link.textContent = "Log in again";
    line.append(" ", link);
  }
  line.hidden = words === "";
}

function end() {
  over = true;
  close();
  clearTimeout(timer);
  tell("Your session has ended.", `/admin/login?over=1&next=${encodeURIComponent(location.pathname + location.search)}`);
}

// The stream.

function open() {
  close();
  if (over || document.hidden || typeof EventSource === "undefined") return;
  stream = new EventSource(`${EVENTS}?after=${encodeURIComponent(version)}`);
  stream.addEventListener("open", heard);
  stream.addEventListener("news", () => {
    heard();
    want();
  });
  stream.addEventListener("over", end);
  stream.addEventListener("error", () => {
    // Refused: the browser does not try again. Broken: it does, and what was missed is asked for.
    if (stream?.readyState === EventSource.CLOSED) {
      close();
      opening = setTimeout(open, STREAM_AGAIN_MS);
    }
    want();
  });
  heard();
}

function heard() {
  clearTimeout(silence);
  silence = setTimeout(() => {
    open();
    want();
  }, SILENCE_MS);
}

function close() {
  clearTimeout(silence);
  clearTimeout(opening);
  stream?.close();
  stream = null;
}

function isOpen() {
  return stream?.readyState === EventSource.OPEN;
}

document.addEventListener("visibilitychange", () => {
  // A hidden page holds no connection, of which a browser has few; it may have been hidden for hours.
  if (document.hidden) close();
  else {
    open();
    want();
  }
});
document.addEventListener("selectionchange", () => {
  if (held && document.getSelection().isCollapsed) want();
});
addEventListener("pagehide", close);
addEventListener("pageshow", (event) => {
  if (event.persisted) {
    open();
    want();
  }
});

const plain = new URL(source);
if (plain.searchParams.has(SAID)) {
  plain.searchParams.delete(SAID);
  history.replaceState(history.state, "", plain);
}

open();
later(EVERY_MS);
