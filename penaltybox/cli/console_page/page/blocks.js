// The blocklist, a page of it at a time: 10,000 blocks are 25 rows here.

import { html, nothing } from "/vendor/lit-html/lit-html.js";
import { repeat } from "/vendor/lit-html/directives/repeat.js";
import { ask } from "/api.js";
import { count, left, pill, plain, said, subjectLink, trouble } from "/words.js";

const ROWS = 25;
const TYPING_MS = 200;

export class Blocks {
  constructor(changed) {
    this.changed = changed;
    this.query = { dimension: "", kind: "", text: "", order: "last", offset: 0, limit: ROWS };
    this.page = null;
    this.error = null;
    this.asking = null;
    this.timer = 0;
  }

  async refresh() {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    try {
      const page = await ask("/blocks", this.query, { signal: asking.signal });
      if (page.offset >= page.total && page.offset > 0) {
        this.query.offset = Math.max(0, Math.ceil(page.total / ROWS) - 1) * ROWS;
        return this.refresh();
      }
      this.page = page;
      this.error = null;
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      this.error = error;
    }
    return this.changed();
  }

  /** A page that shows what has not changed is left alone. */
  heard(version) {
    if (this.page?.version !== version) this.refresh();
  }

  set(query) {
    Object.assign(this.query, { offset: 0 }, query);
    this.refresh();
  }

  typed(text) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.set({ text: text.trim() }), TYPING_MS);
  }

  view() {
    const { page, query } = this;
    return html`
      <div class="title"><h2 id="blocks-title">Blocklist</h2>
        ${page ? html`<p elementtiming="blocklist">${this.range()}</p>` : html`<p>Reading …</p>`}</div>
      <div class="tools">
        <label>Dimension
          <select @change=${(event) => this.set({ dimension: event.target.value })}>
            <option value="">all</option>
            ${this.dimensions().map((one) => html`<option value=${one.dimension} ?selected=${one.dimension === query.dimension}>
              ${plain(one.dimension)} (${count(one.denied + one.challenged)})</option>`)}
          </select></label>
        <label>State
          <select @change=${(event) => this.set({ kind: event.target.value })}>
            <option value="">all</option><option value="deny">denied</option><option value="challenge">challenged</option>
          </select></label>
        <label>Order
          <select @change=${(event) => this.set({ order: event.target.value })}>
            <option value="last">ends last</option><option value="first">ends first</option><option value="subject">subject</option>
          </select></label>
        <label class="grow">Filter
          <input type="search" placeholder="subject or rule" autocomplete="off" autocapitalize="none" spellcheck="false"
            @input=${(event) => this.typed(event.target.value)}></label>
      </div>
      ${trouble(this.error)}
      ${page?.ranges.length ? this.ranges(page.ranges) : nothing}
      ${page ? this.table(page) : nothing}
      ${page && page.total > ROWS ? this.pager(page) : nothing}`;
  }

  /** The chosen one is there also when nobody of it is. */
  dimensions() {
    const found = this.page?.dimensions ?? [];
    const { dimension } = this.query;
    return !dimension || found.some((one) => one.dimension === dimension) ? found : [...found, { dimension, denied: 0, challenged: 0 }];
  }

  range() {
    const { page } = this;
    const more = page.complete ? "" : ", still reading";
    return page.total ? `${count(page.offset + 1)}–${count(Math.min(page.offset + ROWS, page.total))} of ${count(page.total)}${more}` : more ? "Reading …" : "";
  }

  table(page) {
    if (!page.rows.length) {
      const filtered = this.query.text || this.query.kind || this.query.dimension;
      return html`<p class="quiet">${page.complete || filtered ? filtered ? "Nobody matches." : "Nobody is denied or challenged." : nothing}</p>`;
    }
    return html`
      <table>
        <thead><tr><th scope="col">Subject</th><th scope="col">State</th><th scope="col" class="rule">Rule</th><th scope="col" class="number">Left</th></tr></thead>
        <tbody>${repeat(page.rows, (row) => `${row.kind} ${row.subject}`, (row) => html`
          <tr><td>${subjectLink(row.subject)}</td><td>${pill(row.kind, row.rung && row.rung !== "none" ? row.rung : nothing)}</td>
            <td class="rule">${said(row.rule)}</td><td class="number">${left(row.until)}</td></tr>`)}
        </tbody>
      </table>`;
  }

  ranges(ranges) {
    return html`<details class="ranges" ?open=${ranges.length < 4}><summary>${ranges.length === 1 ? "1 range" : `${count(ranges.length)} ranges`} banned by hand</summary>
      <table><thead><tr><th scope="col">Range</th><th scope="col">State</th><th scope="col" class="rule">By and why</th><th scope="col" class="number">Left</th></tr></thead>
      <tbody>${ranges.map((one) => html`<tr><td>${subjectLink(one.range)}</td><td>${pill(one.kind)}</td>
        <td class="rule">${said(one.actor)}: ${said(one.reason)}</td><td class="number">${left(one.until)}</td></tr>`)}</tbody></table></details>`;
  }

  pager(page) {
    const to = (offset) => () => {
      this.query.offset = offset;
      this.refresh();
    };
    const last = Math.floor((page.total - 1) / ROWS) * ROWS;
    const at = page.offset;
    return html`<nav class="pager" aria-label="Pages of the blocklist">
      <button class="far" ?disabled=${at === 0} @click=${to(0)}>First</button>
      <button ?disabled=${at === 0} @click=${to(Math.max(0, at - ROWS))}>Previous</button>
      <span>page ${count(at / ROWS + 1)} of ${count(last / ROWS + 1)}</span>
      <button ?disabled=${at >= last} @click=${to(at + ROWS)}>Next</button>
      <button class="far" ?disabled=${at >= last} @click=${to(last)}>Last</button></nav>`;
  }
}
