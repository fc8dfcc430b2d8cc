// The playground: sends the conversation, shows the answer as it comes, and keeps the examples current.

import { curl, python } from "./examples.js";
import { chat, Refused } from "./stream.js";

const form = document.getElementById("playground");
if (form !== null) begin();

function begin() {
  const at = (id) => document.getElementById(id);
  const field = (name) => form.elements.namedItem(name);
  const [talk, figures, trouble] = [at("talk"), at("figures"), at("trouble")];
  const [send, stop, anew, message] = [at("send"), at("stop"), at("anew"), at("message")];
  let turns = []; // {role, content}, as the model is told them
  let running = null; // the AbortController of the answer that comes now

  function parameters() {
    const body = { model: field("model").value };
    for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
      const text = field(name).value.trim();
      if (text !== "") body[name] = Number(text);
    }
    const more = field("more").value.trim();
    let wrong = "";
    if (more !== "") {
      try {
        const told = JSON.parse(more);
        if (told === null || typeof told !== "object" || Array.isArray(told)) throw new Error("it is no object");
        Object.assign(body, told);
      } catch (error) {
        wrong = `These parameters are no JSON object such as {"top_k": 20}: ${error.message}`;
      }
    }
    at("more-wrong").textContent = wrong;
    at("more-wrong").hidden = wrong === "";
    return { body, wrong };
  }

  function asked(last) {
    const { body, wrong } = parameters();
    const messages = [...turns];
    const system = field("system").value;
    if (system.trim() !== "") messages.unshift({ role: "system", content: system });
    if (last !== "") messages.push({ role: "user", content: last });
    const { model, ...rest } = body;
    const whole = { model, messages, ...rest, stream: true };
    if (field("usage").checked) whole.stream_options = { include_usage: true };
    return { body: whole, wrong };
  }

  function show() {
    const option = field("model").selectedOptions[0];
    const does = option.dataset.does;
    const note = at("not-for-chat");
    note.hidden = does === undefined;
    note.textContent = does === undefined ? "" : `▲ ${option.value} is for ${does} and does not chat; ask it at ${option.dataset.path}.`;
    send.disabled = does !== undefined || running !== null;
    const { body } = asked(message.value || (turns.length === 0 ? "Hello" : ""));
    at("curl").textContent = curl(form.dataset.baseUrl, body, form.dataset.needsKey === "yes");
    at("python").textContent = python(form.dataset.baseUrl, body, form.dataset.needsKey === "yes");
    at("examples").hidden = does !== undefined;
  }

  function addTurn(role, who) {
    const turn = document.createElement("div");
    turn.className = `turn ${role}`;
    const name = document.createElement("p");
    name.className = "who-said";
    name.textContent = who;
    const text = document.createElement("div");
    text.className = "text";
    turn.append(name, text);
    talk.append(turn);
    return { turn, text };
  }

  function addThoughts(turn, text) {
    const details = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = "Reasoning";
    const thoughts = document.createElement("div");
    thoughts.className = "text";
    details.append(summary, thoughts);
    turn.insertBefore(details, text);
    return thoughts;
  }

  function tell(words) {
    trouble.textContent = words;
    trouble.hidden = words === "";
  }

  async function ask(last) {
    const { body, wrong } = asked(last);
    if (wrong !== "") {
      field("more").focus();
      return;
    }
    tell("");
    const conversation = turns;
    addTurn("user", "You").text.textContent = last;
    const { turn, text } = addTurn("assistant", body.model);
    const controller = (running = new AbortController());
    message.value = "";
    talk.setAttribute("aria-busy", "true");
    stop.hidden = false;
    show();
    const began = performance.now();
    const told = { text: "", thoughts: null, thought: "", usage: null, finish: null, first: null, events: 0 };
    let due = false;
    const draw = () => {
      due = false;
      const below = talk.scrollHeight - talk.scrollTop - talk.clientHeight;
      text.textContent = told.text;
      if (told.thoughts !== null) told.thoughts.textContent = told.thought;
      if (below < 60) talk.scrollTop = talk.scrollHeight;
    };
    figures.textContent = "Asked; no answer yet.";
    let headers = null;
    const seen = (news) => {
      headers = news.headers ?? headers;
      if (news.queued !== undefined && told.first === null) figures.textContent = `Waits for an engine to have room, as number ${news.queued}.`;
      if (news.text !== undefined || news.thought !== undefined) {
        told.first ??= performance.now();
        told.events += 1;
        if (told.events === 1) figures.textContent = "Answering.";
      }
      if (news.thought !== undefined) {
        told.thoughts ??= addThoughts(turn, text);
        told.thought += news.thought;
      }
      told.text += news.text ?? "";
      told.usage = news.usage ?? told.usage;
      told.finish = news.finish ?? told.finish;
      if (!due) {
        due = true;
        requestAnimationFrame(draw);
      }
    };
    let ending = "";
    try {
      await pass(body, controller.signal, seen);
    } catch (error) {
      if (controller.signal.aborted) ending = "stopped";
      else {
        ending = "broken off";
        failed(error);
      }
    }
    const ended = performance.now();
    draw();
    running = null;
    stop.hidden = true;
    talk.removeAttribute("aria-busy");
    if (turns !== conversation) {
      // A new one was begun meanwhile.
      show();
      return;
    }
    anew.hidden = false;
    if (told.first === null && ending !== "") {
      // Nothing came: the message can be sent again as it was.
      turn.remove();
      talk.lastElementChild?.remove();
      if (message.value === "") message.value = last;
      figures.textContent = ending === "stopped" ? "Stopped before anything came." : "";
    } else if (told.text === "" && ending !== "") {
      // It came no further than its thoughts: those can be read, and no answer is in the conversation.
      if (message.value === "") message.value = last;
      turn.querySelector(".who-said").textContent = `${body.model} – ${ending} while it reasoned`;
      figure(told, began, ended, ending, headers);
    } else {
      turns.push({ role: "user", content: last }, { role: "assistant", content: told.text });
      if (ending !== "") turn.querySelector(".who-said").textContent = `${body.model} – ${ending}`;
      figure(told, began, ended, ending, headers);
    }
    show();
    message.focus();
  }

  async function pass(body, signal, seen) {
    const word = field("csrf");
    try {
      await chat(form.dataset.chat, word.value, body, signal, seen);
    } catch (error) {
      // Somebody logged in again, in another tab: this page still has the word of the session before.
      const now = error.code === "no-csrf-token" ? await wordNow(signal).catch(() => null) : null;
      if (now === null || now === word.value) throw error;
      for (const each of document.querySelectorAll("input[name=csrf]")) each.value = now;
      await chat(form.dataset.chat, now, body, signal, seen);
    }
  }

  function failed(error) {
    if (error.status === 401 || error.name === "SyntaxError") {
      tell(error.status === 401 ? "Your session has ended." : "The answer cannot be read: it is no JSON.");
      if (error.status === 401) {
        trouble.append(" ", linkBeside(form.dataset.login, "Log in again"), " in another tab, then send it once more.");
      }
      return;
    }
    tell(error instanceof Refused ? error.message : "The server cannot be reached. Is it running?");
    if (error.requestId) trouble.append(" ", requestLink(error.requestId));
  }

  function requestLink(id) {
    return linkBeside(`/admin/requests?id=${encodeURIComponent(id)}`, "This request");
  }

  function figure(told, began, ended, ending, headers) {
    const parts = [];
    if (told.first !== null) parts.push(`first token after ${seconds(told.first - began)}`);
    const { prompt_tokens: prompt, completion_tokens: completion, prompt_tokens_details: details } = told.usage ?? {};
    if (completion !== undefined) {
      const cached = details?.cached_tokens ? ` (${details.cached_tokens.toLocaleString("en")} cached)` : "";
      parts.push(`${prompt?.toLocaleString("en") ?? "?"} prompt tokens${cached}`);
      parts.push(`${completion.toLocaleString("en")} tokens in ${seconds(ended - began)}`);
      const spent = ended - told.first;
      if (told.first !== null && completion > 1 && spent > 0) parts.push(`${(((completion - 1) * 1000) / spent).toFixed(1)} tokens/s`);
    } else parts.push(`${told.events} pieces in ${seconds(ended - began)}; the engine did not count its tokens`);
    if (ending !== "") parts.push(ending);
    else if (told.finish === "length") parts.push("cut off at max_tokens or the context's end");
    else if (told.finish !== null && told.finish !== "stop") parts.push(`ended by ${told.finish}`);
    const replica = headers?.get("x-llmgw-replica");
    if (replica) parts.push(`from ${replica}`);
    const words = parts.join(" · ");
    figures.replaceChildren(`${words[0].toUpperCase()}${words.slice(1)}`);
    const id = headers?.get("x-request-id");
    if (id) figures.append(" · ", requestLink(id));
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const last = message.value;
    if (running !== null || send.disabled || last.trim() === "" || !form.reportValidity()) return;
    ask(last);
  });
  message.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  stop.addEventListener("click", () => running?.abort());
  anew.addEventListener("click", () => {
    running?.abort();
    turns = [];
    talk.replaceChildren();
    figures.textContent = "";
    tell("");
    anew.hidden = true;
    show();
    message.focus();
  });
  form.addEventListener("input", show);
  for (const button of document.querySelectorAll("[data-copies]")) {
    button.addEventListener("click", () => copy(at(button.dataset.copies), at("copied")));
  }
  at("how").textContent = "Enter sends, Shift+Enter begins a line.";
  at("ask-usage").hidden = false;
  show();
}

// In a tab of its own: who left this page would lose the conversation.
function linkBeside(href, words) {
  const link = document.createElement("a");
  link.href = href;
  link.target = "_blank";
  link.rel = "noopener";
  link.textContent = words;
  return link;
}

// The session's word as the page has it now; null when it cannot be had.
async function wordNow(signal) {
  const answer = await fetch(location.pathname, { credentials: "same-origin", cache: "no-store", redirect: "error", signal });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  return page.querySelector("#playground input[name=csrf]")?.value ?? null;
}

function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

async function copy(from, told) {
  try {
    await navigator.clipboard.writeText(from.textContent);
    told.textContent = "Copied.";
  } catch {
    // Without TLS beyond loopback browsers have no clipboard for pages: it is selected, for the person to copy.
    getSelection().selectAllChildren(from);
    told.textContent = "Selected; copy it with your browser's own command.";
  }
  told.classList.remove("hidden");
}
