// Relative times keep current between two answers of the server, in the words of times.py.

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

// By the server's clock, which may differ from this machine's.
const told = Number(document.querySelector('meta[name="now"]')?.content);
const ahead = Number.isFinite(told) && told > 0 ? Date.now() / 1000 - told : 0;

/** `12 s ago`, `5 min ago`, `3 h ago`, `4 d ago`; `in 5 min`. Both in seconds since the epoch. */
export function relative(at, now) {
  const apart = Math.trunc(Math.abs(now - at));
  let span = `${Math.trunc(apart / DAY)} d`;
  if (apart < MINUTE) span = `${apart} s`;
  else if (apart < HOUR) span = `${Math.trunc(apart / MINUTE)} min`;
  else if (apart < 2 * DAY) span = `${Math.trunc(apart / HOUR)} h`;
  return at - now >= 1 ? `in ${span}` : `${span} ago`;
}

/** Every `<time class="ago">` of the page, as of now. */
export function tell() {
  const now = Date.now() / 1000 - ahead;
  for (const time of document.querySelectorAll("time.ago")) {
    const at = Date.parse(time.dateTime) / 1000;
    if (Number.isNaN(at)) continue;
    const words = relative(at, now);
    if (time.firstChild?.nodeType === Node.TEXT_NODE && time.firstChild.data !== words) time.firstChild.data = words;
  }
}

setInterval(() => {
  if (!document.hidden) tell();
}, 1000);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) tell();
});
