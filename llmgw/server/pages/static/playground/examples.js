// The request on the page as a command and as a program. Pure: text in, text out.

// For a POSIX shell: between single quotes nothing but the quote itself means anything.
export function shellWord(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

export function curl(baseUrl, body, needsKey) {
  const lines = [
    `curl ${body.stream ? "-N " : ""}${shellWord(`${baseUrl}/chat/completions`)}`,
    "-H 'Content-Type: application/json'",
  ];
  if (needsKey) lines.push('-H "Authorization: Bearer $LLMGW_API_KEY"');
  lines.push(`--data-binary ${shellWord(JSON.stringify(body, null, 2))}`);
  return lines.join(" \\\n  ");
}

// What the openai package has names for; the rest goes into extra_body.
const NAMED = new Set([
  "model", "messages", "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
  "max_completion_tokens", "max_tokens", "metadata", "modalities", "n", "parallel_tool_calls", "prediction",
  "presence_penalty", "reasoning_effort", "response_format", "seed", "service_tier", "stop", "store", "stream",
  "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user",
]);

export function python(baseUrl, body, needsKey) {
  const given = Object.entries(body).filter(([name]) => NAMED.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !NAMED.has(name)));
  const lines = given.map(([name, value]) => `    ${name}=${literal(value, "    ")},`);
  if (Object.keys(extra).length > 0) lines.push(`    extra_body=${literal(extra, "    ")},`);
  const key = needsKey ? 'os.environ["LLMGW_API_KEY"]' : '"none"';
  const said = body.stream
    ? [
        "for chunk in answer:",
        "    if chunk.choices and chunk.choices[0].delta.content:",
        '        print(chunk.choices[0].delta.content, end="", flush=True)',
      ]
    : ["print(answer.choices[0].message.content)"];
  return [
    ...(needsKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(baseUrl)}, api_key=${key})`,
    "answer = client.chat.completions.create(",
    ...lines,
    ")",
    ...said,
  ].join("\n");
}

// JSON's strings and numbers are Python's too; its three words are not.
function literal(value, indent = "") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const deeper = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((each) => literal(each, deeper))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each, deeper)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${parts.join(", ")}${close}`;
  if (line.length <= 80 && !line.includes("\n")) return line;
  return `${open}\n${parts.map((part) => `${deeper}${part},\n`).join("")}${indent}${close}`;
}
