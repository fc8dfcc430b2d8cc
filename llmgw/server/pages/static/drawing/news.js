// Asking the server: the whole graph at first and when the map is another, and every fifteen seconds what is alive.

const EVERY_MS = 15_000;
const STALE_MS = 40_000;
const PATIENCE_MS = 30_000;

export class News {
  /** `take(graph or null, live)` for what came, `say(text, stale)` for how it goes, `login` when nobody is known. */
  constructor(source, login, { take, say }) {
    this.source = source;
    this.login = login;
    this.take = take;
    this.say = say;
    this.version = undefined;
    this.cameAt = null;
    this.serverAt = null;
    this.trouble = null;
    this.over = false;
    this.timer = null;
    this.asking = false;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.cameAt !== null && Date.now() - this.cameAt >= EVERY_MS) this.ask();
    });
  }

  /** Asks now, and then again and again. */
  async ask() {
    if (this.over || this.asking) return;
    this.asking = true;
    clearTimeout(this.timer);
    try {
      if (this.version === undefined) await this.#whole();
      else {
        const { live } = await this.#get(`${this.source}?live=1`);
        if ((live.version ?? null) === this.version) this.take(null, live);
        else await this.#whole();
      }
      this.cameAt = Date.now();
      this.trouble = null;
    } catch (error) {
      this.trouble = error.message;
    }
    this.asking = false;
    this.tell();
    if (!this.over) this.timer = setTimeout(() => (document.hidden ? this.#later() : this.ask()), EVERY_MS);
  }

  /** Says how old everything is. */
  tell() {
    if (this.over) {
      this.say("Your session has ended.", true, this.login);
      return;
    }
    if (this.cameAt === null) {
      this.say(this.trouble === null ? "Asking the server …" : `The server does not answer: ${this.trouble}`, this.trouble !== null);
      return;
    }
    const time = new Date(this.cameAt).toLocaleTimeString();
    if (this.trouble !== null || Date.now() - this.cameAt > STALE_MS) {
      this.say(`No news since ${time}${this.trouble === null ? "" : ` (${this.trouble})`}; all is shown as it was then.`, true);
    } else this.say("", false);
  }

  async #whole() {
    const { graph, live } = await this.#get(this.source);
    this.version = graph?.version ?? null;
    this.take(graph, live);
  }

  async #get(address) {
    let answer;
    try {
      answer = await fetch(address, { headers: { accept: "application/json" }, credentials: "same-origin", cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    } catch (error) {
      throw new Error(error.name === "TimeoutError" ? "it takes too long" : "it cannot be reached");
    }
    if (answer.status === 401) {
      this.over = true;
      throw new Error("the session has ended");
    }
    // What stands between may answer in its own words.
    const told = await answer.json().catch(() => null);
    if (told === null) throw new Error(`the answer (${answer.status}) cannot be read`);
    if (!answer.ok) throw new Error(told.message ?? `it answered ${answer.status}`);
    return told;
  }

  #later() {
    this.timer = setTimeout(() => (document.hidden ? this.#later() : this.ask()), EVERY_MS);
  }
}
