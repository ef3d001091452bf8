// Penalties as they happen. Not a live region: whoever listens would hear nothing else.

import { html, nothing } from "/vendor/lit-html/lit-html.js";
import { repeat } from "/vendor/lit-html/directives/repeat.js";
import { ago, instant, pill, said, subjectLink, word } from "/words.js";

const KEPT = 100;

export class Penalties {
  constructor() {
    this.list = [];
    this.shown = null;
    this.shadows = true;
  }

  take(fresh) {
    const known = new Set(this.list.map((one) => one.id));
    const some = fresh.filter((one) => !known.has(one.id));
    this.list = [...some, ...this.list].sort((one, other) => other.ts - one.ts).slice(0, KEPT);
  }

  view(changed) {
    const list = (this.shown ?? this.list).filter((one) => this.shadows || !one.shadow);
    const missed = this.shown ? this.list.filter((one) => !this.shown.includes(one)).length : 0;
    const hold = () => {
      this.shown = this.shown ? null : [...this.list];
      changed();
    };
    return html`
      <div class="title"><h2 id="penalties-title">Penalties as they happen</h2>
        <button aria-pressed=${this.shown ? "true" : "false"} @click=${hold}>${this.shown ? `Go on${missed ? ` (${missed} new)` : ""}` : "Hold"}</button></div>
      ${this.list.some((one) => one.shadow) ? html`<label class="check"><input type="checkbox" .checked=${this.shadows}
        @change=${(event) => { this.shadows = event.target.checked; changed(); }}> also of shadow rules, which do nothing</label>` : nothing}
      ${list.length ? html`<ol class="feed" tabindex="0" aria-label="Newest first">${repeat(list, (one) => one.id, item)}</ol>`
        : html`<p class="quiet">None yet. They appear here by themselves.</p>`}`;
  }
}

function item(one) {
  const by = one.origin === "hand" ? html`by hand: ${said(one.actor)}, ${said(one.note)}` : html`by ${said(one.rule)}`;
  const what = one.shadow ? html`<span class="pill">Would be ${word(one.action).toLowerCase()} · ${said(one.to)}</span>`
    : pill(one.action, one.to === "none" ? nothing : one.to);
  return html`<li class=${one.shadow ? "shadow" : ""}>
    <time datetime=${new Date(one.ts).toISOString()} title=${instant(one.ts)}>${ago(one.ts)}</time>
    <span class="what">${what} ${subjectLink(one.subject)}
      <small>${one.from && one.from !== "none" ? html`from ${said(one.from)}, ` : nothing}${by}${one.late ? ", late" : ""}</small></span></li>`;
}
