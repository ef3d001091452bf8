// Figures from ClickHouse: the ladder funnel, false positives with their intervals, shared addresses.

import { html, nothing, svg } from "/vendor/lit-html/lit-html.js";
import { ask, LONGEST_MS } from "/api.js";
import { count, percent, plain, plural, said, span, subjectLink, trouble, word } from "/words.js";

const PERIODS = [["1h", "1 hour"], ["6h", "6 hours"], ["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"]];

export class Figure {
  constructor(path, query, draw, changed) {
    Object.assign(this, { path, query, draw, changed, data: null, error: null, asking: null });
  }

  async refresh() {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    try {
      this.data = await ask(this.path, this.query, { signal: asking.signal, patience: LONGEST_MS });
      this.error = null;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.error = error;
    }
    this.changed();
  }

  set(query) {
    Object.assign(this.query, query);
    this.data = null;
    this.changed();
    this.refresh();
  }

  view() {
    return this.draw(this);
  }

  /** Figures that cannot be renewed are not shown: they would be taken for today's. */
  get body() {
    if (this.error) return trouble(this.error);
    return this.data ? nothing : html`<p class="quiet">Asking ClickHouse …</p>`;
  }

  period() {
    return html`<label>Last <select @change=${(event) => this.set({ since: event.target.value })}>
      ${PERIODS.map(([value, name]) => html`<option value=${value} ?selected=${value === this.query.since}>${name}</option>`)}</select></label>`;
  }
}

const title = (id, text, figure, more = nothing) =>
  html`<div class="title"><h2 id=${id}>${text}</h2><div class="tools">${more}${figure.period()}</div></div>`;

/** A bar of a share, drawn by attributes: the page's policy allows no inline style. */
const bar = (share, kind) => html`<svg class=${`bar ${kind}`} viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
  ${svg`<rect width="100" height="8" class="track"></rect><rect width=${(share * 100).toFixed(2)} height="8"></rect>`}</svg>`;

// --- the ladder funnel

export const funnel = (changed) => new Figure("/funnel", { since: "24h" }, drawFunnel, changed);

function drawFunnel(figure) {
  return html`${title("funnel-title", "Ladder funnel", figure)}${figure.error || !figure.data ? figure.body : funnelBody(figure.data)}`;
}

function funnelBody(data) {
  const real = data.rows.filter((row) => !row.shadow && row.action !== "note");
  if (!real.length) return html`<p class="quiet">No penalty in this period.</p>`;
  const steps = [["challenge", "challenge"], ...data.rungs.map((rung) => [rung, rung === "warn" ? "warn" : "deny"]), ["lifted", "lift"]];
  const sums = new Map(steps.map(([name]) => [name, { penalties: 0, subjects: 0 }]));
  for (const row of real) {
    const name = row.action === "lift" ? "lifted" : row.action === "challenge" ? "challenge" : row.rung;
    const sum = sums.get(name) ?? sums.set(name, { penalties: 0, subjects: 0 }).get(name);
    sum.penalties += row.penalties;
    sum.subjects += row.subjects;
  }
  const kinds = new Map(steps);
  const most = Math.max(...[...sums.values()].map((sum) => sum.penalties));
  const shadows = data.rows.filter((row) => row.shadow).reduce((sum, row) => sum + row.penalties, 0);
  return html`
    <table class="bars"><thead class="hidden"><tr><th scope="col">Rung</th><th scope="col">Share</th><th scope="col">Penalties</th></tr></thead>
      <tbody>${[...sums].map(([name, sum]) => html`<tr><th scope="row">${said(name)}</th>
        <td class="wide">${bar(most ? sum.penalties / most : 0, kinds.get(name) ?? "deny")}</td>
        <td class="number">${count(sum.penalties)}</td></tr>`)}</tbody></table>
    ${shadows ? html`<p class="note">And ${plural(shadows, "penalty", "penalties")} of shadow rules, which did nothing.</p>` : nothing}
    <details><summary>By rule</summary><div class="scroll" tabindex="0" role="group" aria-label="Penalties by rule"><table><thead><tr><th scope="col">Rule</th><th scope="col">Led to</th><th scope="col">On</th>
      <th scope="col" class="number">Penalties</th><th scope="col" class="number">Subjects</th></tr></thead>
      <tbody>${data.rows.map((row) => html`<tr class=${row.shadow ? "shadow" : ""}><td>${said(row.rule)}${row.shadow ? " (shadow)" : ""}</td>
        <td>${row.action === "deny" || row.action === "warn" ? said(row.rung) : word(row.action)}</td><td>${said(row.dimension)}</td>
        <td class="number">${count(row.penalties)}</td><td class="number">${count(row.subjects)}</td></tr>`)}</tbody></table></div></details>`;
}

// --- false positives

export const rates = (changed) => new Figure("/rates", { since: "24h" }, drawRates, changed);

const TOO_FEW = {
  fdr: (row) => `too few: ${plural(row.episodes, "episode")}, wanted 30`,
  fpr: () => "too few known to be legitimate, wanted 30",
  fdr_probe: (row) => `too few: ${plural(row.drawn, "denial")} drawn, or fewer than 30 known people or abusers`,
};
const STATUS = {
  insufficient: (row, kind) => TOO_FEW[kind](row),
  indistinct: () => "abusers pass the challenge, too",
  off: () => "not drawn",
  unlabelled: () => "no outcome is known",
  "report only": () => "under 100: nothing should act on it",
  actionable: () => "",
};

function drawRates(figure) {
  return html`${title("rates-title", "False positives", figure)}${figure.error || !figure.data ? figure.body : ratesBody(figure.data)}`;
}

function ratesBody(data) {
  if (!data.rows.length) return html`<p class="quiet">Nobody was limited in this period.</p>`;
  const highs = data.rows.flatMap((row) => [row.fdr_high, row.fpr_high, row.fdr_probe_high]).filter((value) => value != null);
  const scale = Math.min(1, Math.max(0.1, ...highs) * 1.1);
  const probed = data.rows.some((row) => row.drawn);
  const young = data.rows.reduce((sum, row) => sum + row.immature, 0);
  return html`
    <div class="scroll" tabindex="0" role="group" aria-labelledby="rates-title"><table class="rates"><thead><tr><th scope="col">Dimension</th><th scope="col">Of what is limited, legitimate</th>
      ${probed ? html`<th scope="col">The same, by probe</th>` : nothing}<th scope="col">Of the legitimate, limited</th></tr></thead>
      <tbody>${data.rows.map((row) => html`<tr><th scope="row">${said(row.dimension)}<small>${plural(row.episodes, "episode")}</small></th>
        <td>${rate(row, "fdr", scale, "at least ")}</td>${probed ? html`<td>${rate(row, "fdr_probe", scale, "")}</td>` : nothing}
        <td>${rate(row, "fpr", scale, "")}</td></tr>`)}</tbody></table></div>
    <p class="note">With 95 % intervals, scale 0 to ${percent(scale)}. ${data.matures_s == null
      ? "An episode counts when its labels have had their time." : `An episode counts when it is ${span(data.matures_s * 1000)} old, as this console was started.`}
      ${young ? `${plural(young, "episode")} not yet.` : ""}
      ${probed ? "By probe: from denials that became challenges by chance; it needs no label of those who were limited." : ""}</p>`;
}

function rate(row, kind, scale, words) {
  const value = row[kind];
  const named = row[kind === "fdr_probe" ? "probe_status" : `${kind}_status`];
  const status = STATUS[named]?.(row, kind) ?? named;
  if (value == null) return html`<span class="quiet">${plain(status)}</span>`;
  const low = row[`${kind}_low`];
  const high = row[`${kind}_high`];
  const at = (share) => ((share / scale) * 100).toFixed(2);
  return html`<span class="interval"><span><strong>${words}${percent(value)}</strong> <small>${percent(low)} to ${percent(high)}</small></span>
    <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">${svg`<rect class="track" y="4" width="100" height="2"></rect>
      <rect class="range" x=${at(low)} y="2.5" width=${Math.max(0.8, at(high) - at(low))} height="5" rx="1"></rect>
      <rect class="point" x=${Math.max(0, at(value) - 0.6)} y="0" width="1.2" height="10"></rect>`}</svg>
    ${status ? html`<small>${status}</small>` : nothing}</span>`;
}

// --- shared addresses

const FEW = 8;

export const places = (changed) => new Figure("/places", { since: "24h", by: "ip" }, drawPlaces, changed);

function drawPlaces(figure) {
  const by = html`<label>By <select @change=${(event) => figure.set({ by: event.target.value })}>
    <option value="ip">address</option><option value="prefix">network (/24, /48)</option></select></label>`;
  return html`${title("places-title", "Shared addresses (NAT)", figure, by)}${figure.error || !figure.data ? figure.body : placesBody(figure, figure.data)}`;
}

const verdict = (row) => row.attributable ? html`<span class="pill challenge">Shared: its size</span>`
  : html`<span class="pill">${row.n_eff < 3 ? "Too few known users" : "Its own users"}</span>`;

function placesBody(figure, data) {
  if (!data.rows.length) return html`<p class="quiet">Nobody was denied at an address in this period.</p>`;
  const rows = figure.all ? data.rows : data.rows.slice(0, FEW);
  const more = data.rows.length > FEW ? html`<button class="link" @click=${() => { figure.all = !figure.all; figure.changed(); }}>
    ${figure.all ? "Show fewer" : `Show ${count(data.rows.length)}`}</button>` : nothing;
  const shown = data.total > data.rows.length ? `The first ${count(data.rows.length)} of ${count(data.total)}. ` : "";
  return html`
    <div class="scroll" tabindex="0" role="group" aria-labelledby="places-title"><table><thead><tr><th scope="col">Place</th><th scope="col">Verdict</th>
      <th scope="col" class="number">Users</th><th scope="col" class="number"><abbr title="effective number of established users">N eff</abbr></th>
      <th scope="col" class="number">Denied users</th><th scope="col" class="number">Within their own limit</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr><td>${data.by === "ip" ? subjectLink(`ip:${row.place}`) : said(row.place)}</td>
        <td>${verdict(row)}</td>
        <td class="number">${count(row.users)}</td><td class="number">${row.n_eff.toFixed(1)}</td><td class="number">${count(row.denied_users)}</td>
        <td class="number">${row.collateral == null ? count(row.within_limit)
          : html`${percent(row.collateral)} <small>${percent(row.collateral_low)} to ${percent(row.collateral_high)}</small>`}</td></tr>`)}</tbody></table></div>
    <p class="note">${shown}“Shared: its size”: three or more established users share it and none was over a user limit, so its episodes are nobody’s offence. ${more}</p>`;
}
