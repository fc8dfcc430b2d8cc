// One chat request and its answer, as it comes: an event stream, one JSON object, or a refusal.

export class Refused extends Error {}

// `seen` gets {headers} when the answer begins, and {text}, {thought}, {usage}, {finish} and {queued} as they come.
export async function chat(address, csrf, body, signal, seen) {
  const answer = await fetch(address, {
    method: "POST",
    credentials: "same-origin",
    cache: "no-store",
    redirect: "error",
    headers: { "content-type": "application/json", "x-csrf-token": csrf },
    body: JSON.stringify(body),
    signal,
  });
  const kind = answer.headers.get("content-type") ?? "";
  if (!answer.ok) throw await refusal(answer);
  seen({ headers: answer.headers });
  if (kind.startsWith("text/event-stream")) await readEvents(answer, seen);
  else readWhole(await answer.json(), seen);
}

async function refusal(answer) {
  let message = `it answered ${answer.status}`;
  let code = null;
  try {
    const told = await answer.json();
    code = told.code ?? null;
    message = told.error?.message ?? told.message ?? message;
  } catch {
    // No JSON: the status is all that is known.
  }
  const error = new Refused(message);
  error.status = answer.status;
  error.code = code;
  error.requestId = answer.headers.get("x-request-id");
  return error;
}

async function readEvents(answer, seen) {
  let kept = "";
  let done = false;
  for await (const part of parts(answer.body.pipeThrough(new TextDecoderStream()))) {
    const lines = (kept + part).split(/\r\n|\n|\r(?!$)/);
    kept = lines.pop();
    for (const line of lines) done = readLine(line, seen) || done;
  }
  if (kept !== "") done = readLine(kept.trimEnd(), seen) || done;
  if (!done) throw new Refused("the stream ended before the answer did");
}

async function* parts(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.releaseLock();
  }
}

// True for the line that ends a stream.
function readLine(line, seen) {
  const place = /^: ?queued (\d+)$/.exec(line);
  if (place !== null) seen({ queued: Number(place[1]) });
  if (!line.startsWith("data:")) return false;
  const data = line.slice(5).trim();
  if (data === "[DONE]") return true;
  if (data === "") return false;
  const told = JSON.parse(data);
  if (told.error) throw new Refused(told.error.message ?? String(told.error));
  const choice = told.choices?.[0];
  const thought = choice?.delta?.reasoning_content ?? choice?.delta?.reasoning;
  if (thought) seen({ thought });
  if (choice?.delta?.content) seen({ text: choice.delta.content });
  if (choice?.delta?.tool_calls) seen({ text: `${JSON.stringify(choice.delta.tool_calls)}\n` });
  if (choice?.finish_reason) seen({ finish: choice.finish_reason });
  if (told.usage) seen({ usage: told.usage });
  return false;
}

function readWhole(told, seen) {
  if (told.error) throw new Refused(told.error.message ?? String(told.error));
  const choice = told.choices?.[0];
  const thought = choice?.message?.reasoning_content ?? choice?.message?.reasoning;
  if (thought) seen({ thought });
  if (choice?.message?.content) seen({ text: choice.message.content });
  if (choice?.finish_reason) seen({ finish: choice.finish_reason });
  if (told.usage) seen({ usage: told.usage });
}
