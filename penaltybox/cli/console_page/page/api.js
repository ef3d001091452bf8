// The console's API: the token, questions, and the stream of events.

const KEY = "penaltybox-token";
const PREFIX = "/api/v1";

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

async function call(path, options) {
  let response;
  try {
    response = await fetch(PREFIX + path, { ...options, headers: headers(options?.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble(0, "The console does not answer. Is it still running?");
  }
  return answered(response);
}

export async function ask(path, query = {}, signal = undefined) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null));
  return (await call(text.size ? `${path}?${text}` : path, { signal })).json();
}

export async function act(path, body) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  return (await call(path, options)).json();
}

/** Reads the stream of events until it ends; EventSource could not send the token. */
export async function listen(on, signal) {
  const response = await call("/stream", { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(event) ?? [];
      if (name) on[name]?.(JSON.parse(data));
    }
  }
}
