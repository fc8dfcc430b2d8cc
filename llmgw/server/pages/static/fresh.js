// Pages of words keep up: each asks for itself again every fifteen seconds, and changes where it differs.

const EVERY_MS = 15_000;
const PATIENCE_MS = 30_000;

const main = document.getElementById("main");
const news = document.getElementById("fresh");
let cameAt = Date.now();
let over = false;
let asking = false;
let timer = null;

async function ask() {
  if (asking || over) return;
  asking = true;
  clearTimeout(timer);
  try {
    const answer = await fetch(location.href, {
      credentials: "same-origin", cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(PATIENCE_MS),
    });
    over = answer.type === "opaqueredirect";
    if (over) throw new Error("the session has ended");
    if (!answer.ok) throw new Error(`it answered ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    take(page.getElementById("main"));
    cameAt = Date.now();
    tell("");
  } catch (error) {
    const why = { TimeoutError: "it takes too long", TypeError: "it cannot be reached" }[error.name] ?? error.message;
    const since = new Date(cameAt).toLocaleTimeString();
    if (over) tell("Your session has ended.", `/admin/login?over=1&next=${encodeURIComponent(location.pathname + location.search)}`);
    else tell(`No news from the server since ${since} (${why}); all is shown as it was then.`);
  }
  asking = false;
  if (!over) later();
}

function take(told) {
  if (told === null) throw new Error("the answer cannot be read");
  // What somebody is copying is left to them; what is focused is so again.
  const reading = getSelection();
  if (told.innerHTML === main.innerHTML || (!reading.isCollapsed && main.contains(reading.anchorNode))) return;
  const at = main.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  main.replaceChildren(...told.childNodes);
  if (at !== null) [...main.querySelectorAll("a")].find((link) => link.getAttribute("href") === at)?.focus({ preventScroll: true });
}

function tell(words, login) {
  if (news.textContent.startsWith(words) && words !== "") return;
  news.replaceChildren(words);
  if (login !== undefined) {
    const link = document.createElement("a");
    link.href = login;
    link.textContent = "Log in again";
    news.append(" ", link);
  }
  news.hidden = words === "";
}

function later() {
  timer = setTimeout(() => (document.hidden ? later() : ask()), EVERY_MS);
}

document.addEventListener("visibilitychange", () => {
  // Without waiting for the next turn: it may have been hidden for hours.
  if (!document.hidden && !over && Date.now() - cameAt >= EVERY_MS) ask();
});
later();
