// The page: listens, asks, and draws; each panel is a module.

import { html, nothing, render } from "/vendor/lit-html/lit-html.js";
import { ask, dropToken, hasToken, keepToken, listen, takeToken } from "/api.js";
import { Blocks } from "/blocks.js";
import { funnel, places, rates } from "/figures.js";
import { glance } from "/glance.js";
import { Penalties } from "/penalties.js";
import { SubjectDialog } from "/subject.js";
import { plain, setClock } from "/words.js";

const at = (id) => document.getElementById(id);
const FIGURES_MS = 60_000;
const AGAIN_MS = 2_000;
const TOLD_MS = 12_000;

/** `lost`: why nothing comes from the console; null while it does. */
const state = { about: null, status: null, lost: null };
const blocks = new Blocks(() => {
  render(blocks.view(), at("blocks"));
  if (subject.range) subject.draw();
});
state.ranges = () => blocks.page?.ranges ?? [];
const penalties = new Penalties();
const drawPenalties = () => render(penalties.view(drawPenalties), at("penalties"));
const figures = Object.fromEntries(
  Object.entries({ funnel, rates, places }).map(([name, make]) => {
    const figure = make(() => render(figure.view(), at(name)));
    return [name, figure];
  }),
);
const subject = new SubjectDialog(at("subject"), state, tell);

function drawGlance() {
  render(glance({ ...state, penalties: penalties.list }), at("glance"));
  const mood = state.lost ? "lost" : state.status?.paused ? "paused" : "";
  document.title = mood ? `penaltybox (${mood})` : "penaltybox";
}

let telling = 0;
function tell(text) {
  clearTimeout(telling);
  at("told").textContent = plain(text);
  telling = setTimeout(() => (at("told").textContent = ""), TOLD_MS);
}

function drawFoot() {
  const { about } = state;
  render(about ? html`<p>penaltybox ${plain(about.package_version)}, policy ${plain(about.policy_version)}${about.read_only ? ", read-only" : about.actor ? html`, acting as ${plain(about.actor)}` : nothing}</p>
    <p><a href="/api/v1/openapi.json">API</a> <button class="link" @click=${() => { dropToken(); location.reload(); }}>Forget the token</button></p>` : nothing, at("foot"));
}

function signIn(wrong) {
  state.about = null; // nothing is drawn over the form, and no dialog lies over it
  subject.close();
  at("panels").hidden = true;
  at("search").hidden = true;
  render(html`<form class="signin" @submit=${(event) => {
    event.preventDefault();
    keepToken(new FormData(event.target).get("token"));
    start();
  }}>
    <p class="headline">This console needs its token.</p>
    <p>Open the address that <code>penaltybox console</code> printed at its start, or paste what stands in it behind <code>token=</code>.</p>
    <label>Token<input name="token" type="password" required autocomplete="off" spellcheck="false"></label>
    ${wrong ? html`<p class="trouble" role="alert">That is not its token. A console that was started again has a new one.</p>` : nothing}
    <button class="solid">Open</button></form>`, at("glance"));
  at("glance").querySelector("input").focus();
}

function route() {
  if (!state.about) return;
  const name = new URLSearchParams(location.hash.slice(1)).get("subject");
  if (name) subject.open(name);
  else subject.close();
}

function onStatus(status) {
  const { lost } = state;
  setClock(status.at);
  Object.assign(state, { status, lost: null });
  drawGlance();
  blocks.heard(status.version);
  subject.heard(status.version);
  if (lost) renew();
}

/** Whatever is not told by the stream: figures, and what a console that was started again, or a new policy, changes. */
async function renew() {
  for (const figure of Object.values(figures)) figure.refresh();
  try {
    state.about = await ask("/about");
    drawFoot();
  } catch {
    // the next time
  }
}

function onPenalties(fresh) {
  penalties.take(fresh);
  drawGlance();
  drawPenalties();
}

async function follow() {
  for (;;) {
    let why = new Error("the stream ended");
    try {
      await listen({ status: onStatus, penalties: onPenalties });
    } catch (error) {
      if (error.status === 401) {
        dropToken();
        return signIn(true);
      }
      why = error;
    }
    state.lost = why;
    drawGlance();
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

async function start() {
  let first;
  try {
    first = await Promise.all([ask("/about"), ask("/status"), blocks.refresh()]);
  } catch (error) {
    if (error.status === 401) {
      dropToken();
      return signIn(true);
    }
    state.lost = error;
    drawGlance();
    return setTimeout(start, AGAIN_MS);
  }
  state.about = first[0];
  at("panels").hidden = false;
  at("search").hidden = false;
  onStatus(first[1]);
  drawPenalties();
  drawFoot();
  for (const figure of Object.values(figures)) {
    figure.changed();
    figure.refresh();
  }
  renewedAt = performance.now();
  route();
  follow();
}

at("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = at("question").value.trim();
  if (name) location.hash = `subject=${encodeURIComponent(name)}`;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, textarea, select, dialog") && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    at("question").focus();
  }
});
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) {
    takeToken();
    location.reload();
  } else route();
});
function tick() {
  if (!state.about || document.hidden) return;
  drawGlance();
  if (blocks.page) blocks.changed();
  drawPenalties();
  subject.tick();
}

let renewedAt = 0;
function renewIfOld() {
  if (!state.about || document.hidden || performance.now() - renewedAt < FIGURES_MS) return;
  renewedAt = performance.now();
  renew();
}

setInterval(tick, 1000);
setInterval(renewIfOld, 1000);
document.addEventListener("visibilitychange", () => {
  tick();
  renewIfOld();
});

takeToken();
at("glance").replaceChildren();
drawGlance();
if (hasToken()) start();
else signIn(false);
