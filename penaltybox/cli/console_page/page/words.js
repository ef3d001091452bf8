// Numbers, times and texts for people.

import { html, nothing } from "/vendor/lit-html/lit-html.js";

const counts = new Intl.NumberFormat("en");
export const count = (value) => (value == null ? "–" : counts.format(value));
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** 0.173 → 17 %, 0.0042 → 0.4 %; the sign stays with its number. */
export function percent(share) {
  if (share == null) return "–";
  const value = share * 100;
  return `${value < 10 && value > 0 ? value.toFixed(1) : Math.round(value)}\u00a0%`;
}

const UNITS = [[86_400, "d"], [3_600, "h"], [60, "m"], [1, "s"]];

/** A duration in its two largest units, as the command line has it: 59m 12s, 3d 4h. */
export function span(ms) {
  let seconds = Math.max(0, Math.ceil(ms / 1000));
  const parts = [];
  for (const [size, unit] of UNITS) {
    if (seconds >= size || (parts.length && seconds)) {
      parts.push(`${Math.floor(seconds / size)}${unit}`);
      seconds %= size;
    }
  }
  return parts.slice(0, 2).filter((part) => !part.startsWith("0")).join(" ") || "0s";
}

let ahead = 0;
/** The console's clock, whatever this device's says. */
export const setClock = (at) => { ahead = at - Date.now(); };
export const now = () => Date.now() + ahead;

export function left(until) {
  if (until == null) return "permanent";
  return until > now() ? span(until - now()) : "ended";
}

/** The same in a sentence. */
export const remaining = (until) => (until > now() ? `${left(until)} left` : "ended");

export function ago(at) {
  const ms = now() - at;
  return ms < 1500 ? "just now" : `${span(ms).split(" ")[0]} ago`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
export function instant(at) {
  const date = new Date(at);
  const time = clock.format(date);
  return date.toDateString() === new Date(now()).toDateString() ? time : `${day.format(date)} ${time}`;
}

/** What could make a text look like another one is shown as its code: controls, and marks that change direction. */
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\ufff9-\ufffb]/gu;
export function plain(text) {
  return String(text ?? "").replace(HIDDEN, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);
}

/** A text of somebody else's, kept to itself. */
export const said = (text) => html`<bdi>${plain(text)}</bdi>`;

export const subjectLink = (subject) =>
  html`<a class="subject" href=${`#subject=${encodeURIComponent(subject)}`}><bdi>${plain(subject)}</bdi></a>`;

const WORDS = { deny: "Denied", challenge: "Challenged", warn: "Warned", lift: "Lifted", note: "Noted" };
export const word = (action) => WORDS[action] ?? action;
export const pill = (action, text = nothing) =>
  html`<span class=${`pill ${action in WORDS ? action : ""}`}>${word(action)}${text === nothing ? nothing : html` · ${said(text)}`}</span>`;

export const trouble = (error) =>
  error ? html`<p class="trouble">${plain(error.message)}</p>` : nothing;
