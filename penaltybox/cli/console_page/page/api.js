// The console's API: the token, questions, and the stream of events.

const KEY = "penaltybox-token";
const PREFIX = "/api/v1";
const PATIENCE_MS = 15_000;
/** Figures over months, and writing while Redis is slow, take their time. */
export const LONGEST_MS = 60_000;
const SILENCE_MS = 10_000;

export class Trouble extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Takes the token out of the address, where it would be seen and shared, and keeps it for this tab. */
export function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    sessionStorage.setItem(KEY, found);
    history.replaceState(null, "", location.pathname);
  }
}

export const hasToken = () => Boolean(sessionStorage.getItem(KEY));
export const keepToken = (token) => sessionStorage.setItem(KEY, token.trim());
export const dropToken = () => sessionStorage.removeItem(KEY);

function headers(more) {
  return { authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}`, ...more };
}

async function answered(response) {
  if (response.ok) return response;
  let detail = `The console answered ${response.status}.`;
  try {
    detail = (await response.json()).detail ?? detail;
  } catch {
    // not a problem document
  }
  throw new Trouble(response.status, detail);
}

/** One call; `read` takes what is wanted of the response. A connection that died without a word is no answer. */
async function call(path, options, read, patience = PATIENCE_MS) {
  const { signal } = options;
  const ending = new AbortController();
  const end = () => ending.abort();
  signal?.addEventListener("abort", end);
  const timer = setTimeout(end, patience);
  try {
    return await read(await answered(await fetch(PREFIX + path, { ...options, signal: ending.signal, headers: headers(options.headers) })));
  } catch (error) {
    if (error instanceof Trouble) throw error;
    if (signal?.aborted) throw new DOMException("not wanted any more", "AbortError");
    throw new Trouble(0, "The console does not answer. Is it still running?");
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  }
}

export async function ask(path, query = {}, { signal, patience } = {}) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null));
  return call(text.size ? `${path}?${text}` : path, { signal }, (response) => response.json(), patience);
}

export async function act(path, body) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  return call(path, options, (response) => response.json(), LONGEST_MS);
}

/** Reads the stream of events until it ends, or is silent: a status comes every second. EventSource could not send the token. */
export async function listen(on) {
  const body = await call("/stream", {}, (response) => response.body);
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let timer = 0;
  for (;;) {
    const silence = new Promise((resolve) => (timer = setTimeout(resolve, SILENCE_MS, { done: true })));
    const { value, done } = await Promise.race([reader.read(), silence]);
    clearTimeout(timer);
    if (done) return void reader.cancel().catch(() => {});
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(event) ?? [];
      if (name) on[name]?.(JSON.parse(data));
    }
  }
}
