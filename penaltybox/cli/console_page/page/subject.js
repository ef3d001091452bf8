// One subject: what is in force, why, what lifts it; and ban and unban, each with a reason.

import { html, nothing, render } from "/vendor/lit-html/lit-html.js";
import { act, ask, LONGEST_MS } from "/api.js";
import { count, instant, now, pill, plain, plural, remaining, said, trouble, word } from "/words.js";

const NAME = "penaltybox-actor";
const RENEWED_MS = 5_000;
const GRACES = [["", "no grace"], ["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"]];
const VERDICTS = {
  trigger: "made a rule fire", counted: "counted", known: "said nothing new", suppressed: "came during a block", history: "before the last step",
  grace: "under grace", listed: "on the allowlist", challenged: "under a challenge", too_late: "too late", evidence: "evidence of sharing",
  unseen: "no rule sees it", trust: "trust", lift: "lifted", hand: "by hand", recorded: "recorded",
};

export class SubjectDialog {
  constructor(dialog, state, tell) {
    Object.assign(this, { dialog, state, tell, name: "", data: null, error: null, range: "", form: "", actor: "", sending: false, wrong: null, version: null, stale: false, askedAt: 0 });
    dialog.addEventListener("close", () => {
      if (location.hash.startsWith("#subject=")) history.pushState(null, "", location.pathname);
      this.name = "";
    });
    // A click beside the dialog closes it.
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  }

  async open(name) {
    if (this.name === name && this.dialog.open) return;
    Object.assign(this, { name, data: null, error: null, range: "", form: "", wrong: null });
    this.draw();
    if (!this.dialog.open) this.dialog.showModal();
    this.dialog.scrollTop = 0;
    await this.refresh();
  }

  close() {
    if (this.dialog.open) this.dialog.close();
  }

  /** The blocklist changed: perhaps this subject did. */
  heard(version) {
    if (this.version !== version) this.stale = true;
    this.version = version;
  }

  /** Once a second: countdowns go on, and what has changed is asked again, unless somebody is writing. */
  tick() {
    if (!this.dialog.open || !this.data) return;
    if (this.stale && !this.form && performance.now() - this.askedAt > RENEWED_MS) this.refresh();
    else this.draw();
  }

  async refresh() {
    const name = this.name;
    Object.assign(this, { stale: false, askedAt: performance.now() });
    try {
      const data = await ask("/subject", { subject: name, limit: 20 }, { patience: LONGEST_MS });
      if (this.name !== name) return;
      for (const hold of data.now.strays ?? []) hold.until = hold.left_ms == null ? null : now() + hold.left_ms;
      Object.assign(this, { data, error: null, range: data.range });
    } catch (error) {
      if (this.name !== name) return;
      this.error = error;
    }
    this.draw();
  }

  choose(form) {
    const actor = localStorage.getItem(NAME) || this.state.about.actor;
    Object.assign(this, { form: this.form === form ? "" : form, actor, wrong: null, lacking: "" });
    this.draw();
    this.dialog.querySelector("form [name=reason]")?.focus();
  }

  async send(event) {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    const body = { subject: this.data?.now.subject ?? this.name, reason: given.reason.trim(), actor: given.actor.trim() };
    const lacking = body.reason ? (body.actor ? "" : "actor") : "reason";
    if (lacking) {
      const words = { reason: "A reason is needed", actor: "Who acts is needed" };
      this.wrong = new Error(`${words[lacking]}: it stands in the audit trail.`);
      this.lacking = lacking;
      this.draw();
      this.dialog.querySelector(`form [name=${lacking}]`)?.focus();
      return;
    }
    this.lacking = "";
    localStorage.setItem(NAME, body.actor);
    if (this.form === "ban") {
      if (given.level) body.level = given.level;
      if (given.for) body.for = given.for.trim();
    } else {
      if (given.grace) body.grace = given.grace;
      if (given.keep) body.keep_level = true;
    }
    Object.assign(this, { sending: true, wrong: null });
    this.draw();
    try {
      const done = await act(`/${this.form}`, body);
      this.form = "";
      this.tell(done.says);
      this.dialog.querySelector("h2")?.focus();
      await this.refresh();
    } catch (error) {
      this.wrong = error;
    }
    this.sending = false;
    this.draw();
  }

  draw() {
    render(this.view(), this.dialog);
  }

  view() {
    const { data, error } = this;
    const about = this.state.about;
    const locked = !about || about.read_only;
    return html`
      <header><h2 id="subject-title" tabindex="-1"><bdi>${plain(data?.now.subject ?? this.name)}</bdi></h2>
        <button class="close" @click=${() => this.dialog.close()} aria-label="Close">✕</button></header>
      ${error ? trouble(error) : this.range ? this.ranges() : data ? standing(data.now) : html`<p class="quiet">Looking …</p>`}
      ${locked ? about?.read_only ? html`<p class="note">This console only shows.</p>` : nothing : html`
        <div class="acts">
          <button aria-expanded=${this.form === "unban"} @click=${() => this.choose("unban")}>Unban …</button>
          <button class="danger" aria-expanded=${this.form === "ban"} @click=${() => this.choose("ban")}>Ban …</button>
        </div>`}
      ${this.form ? this.fields(about) : nothing}
      ${data && !this.range ? story(data) : nothing}`;
  }

  /** A range of addresses: it has no ladder, it is banned or it is not. */
  ranges() {
    const found = this.state.ranges().find((one) => one.range === this.range);
    return html`<ul class="marks"><li>${found ? html`${pill(found.kind)} ${found.until == null ? "until somebody lifts it" : `until ${instant(found.until)}`},
      by ${said(found.actor)}: ${said(found.reason)}` : "A range of addresses; it is not banned."}</li></ul>`;
  }

  fields(about) {
    const ban = this.form === "ban";
    const { range } = this;
    return html`<form class="act" novalidate @submit=${(event) => this.send(event)} aria-labelledby="act-title">
      <h3 id="act-title">${ban ? "Deny it at once" : "Lift what is in force, at once"}</h3>
      <label>Reason, for the audit trail<input name="reason" required maxlength="512" autocomplete="off"
        aria-describedby=${this.wrong ? "act-wrong" : nothing} aria-invalid=${this.lacking === "reason" ? "true" : nothing}></label>
      <label>Who acts<input name="actor" required maxlength="128" autocomplete="name" aria-invalid=${this.lacking === "actor" ? "true" : nothing} .value=${this.actor}></label>
      ${ban ? html`
        ${range ? nothing : html`<label>Rung<select name="level"><option value="">the next one that denies</option>
          ${about.rungs.filter((rung) => rung !== "warn").map((rung) => html`<option value=${rung}>${plain(rung)}</option>`)}</select></label>`}
        <label>For how long${range ? nothing : ", instead of the rung’s time"}<input name="for" maxlength="32" placeholder="e.g. 36h; empty: ${range ? "until lifted" : "the rung’s"}" autocomplete="off"></label>`
      : range ? nothing : html`
        <label>Grace: nothing counts for<select name="grace">${GRACES.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select></label>
        <label class="check"><input type="checkbox" name="keep"> its rung stays as a prior for the next step</label>`}
      ${this.wrong ? html`<p id="act-wrong" class="trouble" role="alert">${plain(this.wrong.message)}</p>` : nothing}
      <div class="acts"><button class=${ban ? "danger solid" : "solid"} ?disabled=${this.sending}>${this.sending ? "Writing …" : ban ? "Ban" : "Unban"}</button>
        <button type="button" @click=${() => this.choose("")}>Cancel</button></div></form>`;
  }
}

function standing(one) {
  const marks = [];
  if (one.allowlisted) marks.push(html`<li><span class="pill lift">Allowlisted</span> ${one.listed_by.map(said)}</li>`);
  for (const text of one.banned_ranges) marks.push(html`<li><span class="pill deny">Range banned</span> ${said(text)}</li>`);
  for (const hold of one.in_force) {
    marks.push(html`<li>${pill(hold.action, hold.rung === "none" ? nothing : hold.rung)} ${hold.until == null ? "permanently" : html`until ${instant(hold.until)}, ${remaining(hold.until)}`},
      by ${said(hold.rule)}</li>`);
  }
  for (const hold of one.strays) {
    marks.push(html`<li>${pill(hold.action, nothing)} ${hold.until == null ? "permanently" : remaining(hold.until)};
      no worker wrote that, its state knows nothing of it</li>`);
  }
  if (one.grace_until > now()) marks.push(html`<li><span class="pill lift">Grace</span> until ${instant(one.grace_until)}</li>`);
  if (one.pass_until > now()) marks.push(html`<li><span class="pill lift">Passed a challenge</span> exempt until ${instant(one.pass_until)}</li>`);
  if (!marks.length) marks.push(html`<li>${one.known ? "Nothing is in force against it." : "Nothing is known of it: no rule has counted it lately."}</li>`);
  return html`<ul class="marks">${marks}</ul>`;
}

function story({ now: one, ways_out: ways, timeline, history, history_missing: missing }) {
  const facts = [
    ...(one.shared_ip ? [`A shared address: ${plural(one.established_users, "established user")} seen. It is challenged, never denied by a rule.`] : []),
    ...(one.quota_percent !== 100 ? [`Quota ${one.quota_percent} %`] : []),
    ...(one.established ? ["An established user."] : []),
  ];
  return html`
    ${ways.length ? html`<section><h3>What lifts it</h3><ul>${ways.map((way) => html`<li>${said(way.says)}${way.at ? ` at ${instant(way.at)}` : ""}
      ${way.command ? html`<code>${plain(way.command)}</code>` : nothing}</li>`)}</ul></section>` : nothing}
    ${one.known ? html`<section><h3>Why, and what a step would do now</h3><ul>${[...facts, ...one.arithmetic].map((text) => html`<li>${said(text)}</li>`)}</ul></section>` : nothing}
    ${one.rules.length ? html`<section><h3>Rules on it now</h3><table><thead><tr><th scope="col">Rule</th><th scope="col">Says</th><th scope="col" class="number">Now</th></tr></thead>
      <tbody>${one.rules.map((rule) => html`<tr class=${rule.shadow ? "shadow" : ""}><td>${said(rule.rule)}${rule.shadow ? " (shadow)" : ""}</td><td>${said(rule.says)}</td>
        <td class="number">${count(rule.seen)} of ${count(rule.threshold)}</td></tr>`)}</tbody></table></section>` : nothing}
    ${missing ? html`<section><h3>History</h3><p class="trouble">Penalties and decisions are not shown: ${plain(missing)}</p></section>`
      : html`${penalties(history)}${timeline ? moments(timeline) : nothing}`}`;
}

function penalties(history) {
  if (!history.length) return nothing;
  return html`<section><h3>Last penalties</h3><ol class="plainlist">${history.map((one) => html`<li class=${one.shadow ? "shadow" : ""}>
    <time datetime=${new Date(one.at).toISOString()}>${instant(one.at)}</time> ${one.shadow ? `would be ${word(one.action).toLowerCase()}` : pill(one.action, one.to_rung === "none" ? nothing : one.to_rung)}
    from ${said(one.from_rung)} ${one.origin === "hand" ? html`by hand: ${said(one.actor)}, ${said(one.note)}` : html`by ${said(one.rule)}`}${one.late ? ", late" : ""}</li>`)}</ol></section>`;
}

function moments(timeline) {
  const tally = Object.entries(timeline.verdicts).map(([name, number]) => `${count(number)} ${VERDICTS[name] ?? name}`).join(", ");
  const list = timeline.moments.filter((one) => one.verdict !== "unseen");
  return html`<section><h3>Timeline</h3><p class="note">Since ${instant(timeline.since)}: ${tally || "nothing"}.
    ${timeline.left_out ? `${count(timeline.left_out)} moments are left out.` : ""}</p>
    <ol class="plainlist">${list.map((one) => html`<li><time datetime=${new Date(one.at).toISOString()}>${instant(one.at)}</time>
      <span class=${`verdict-word ${one.verdict}`}>${VERDICTS[one.verdict] ?? plain(one.verdict)}</span> ${what(one)}
      <small>${said(one.why)}</small></li>`)}</ol>
    ${timeline.differences.map((text) => html`<p class="note">Differs: ${said(text)}</p>`)}</section>`;
}

function what(one) {
  const record = one.record ?? {};
  const subjects = Object.entries(record.subjects ?? {}).map(([name, value]) => `${name}=${value}`).join(" ");
  const text = [record.action ?? record.label ?? record.verb, record.reason, record.scenario, subjects].filter(Boolean).join(" ");
  return said(text);
}
