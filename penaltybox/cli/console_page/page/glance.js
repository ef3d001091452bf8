// The state of things in one glance: one sentence, four figures, the servers.

import { html, nothing, svg } from "/vendor/lit-html/lit-html.js";
import { ago, count, now, plain, plural } from "/words.js";

const NAMES = { redis: "Redis", kafka: "Kafka", workers: "Workers", clickhouse: "ClickHouse" };
const STATES = { ok: "in order", away: "not in order", unknown: "not known" };
const RECENT_MS = 300_000;

/** The sentence, worst first: [mood, headline, details]. */
function verdict(status, lost) {
  if (lost?.status) return ["bad", "The console refuses this page.", `${lost.message} What you see is old. It tries again by itself.`];
  if (lost) return ["bad", "The console does not answer.", "What you see is old. It tries again by itself."];
  if (!status) return ["wait", "Looking …", ""];
  const parts = Object.fromEntries(status.parts.map((part) => [part.name, part]));
  if (parts.redis.state === "away") return ["bad", "Redis does not answer.", parts.redis.says];
  if (parts.workers.state === "away") return ["bad", "The workers stand still.", parts.workers.says];
  if (status.paused) {
    return ["watch", "New blocks are paused.", `${status.paused} Existing blocks run on; decisions wait. “penaltybox resume” goes on.`];
  }
  if (parts.kafka.state === "away") return ["watch", "Kafka does not answer.", parts.kafka.says];
  if (parts.clickhouse.state === "away") {
    return ["watch", "ClickHouse does not answer. Blocking works.", parts.clickhouse.says];
  }
  if (parts.redis.state === "unknown" || parts.kafka.state === "unknown") return ["wait", "Looking …", ""];
  return ["ok", "All is in order.", ""];
}

function recent(penalties) {
  const real = penalties.filter((one) => !one.shadow);
  const fresh = real.filter((one) => one.ts > now() - RECENT_MS).length;
  if (!real.length) return "No penalty yet.";
  if (!fresh) return `No penalty in the last 5 minutes, the last one ${ago(real[0].ts)}.`;
  const many = fresh >= 100 ? "100 or more penalties" : plural(fresh, "penalty", "penalties");
  return `${many} in the last 5 minutes, the last one ${ago(real[0].ts)}.`;
}

/** Decisions per second of the last two minutes. */
function spark(history) {
  if (history.length < 2) return nothing;
  const most = Math.max(1, ...history);
  const step = 120 / 119;
  const begin = 120 - (history.length - 1) * step;
  const points = history.map((value, at) => `${(begin + at * step).toFixed(1)},${(29 - (value / most) * 27).toFixed(1)}`);
  const area = `${begin.toFixed(1)},30 ${points.join(" ")} 120,30`;
  return html`<svg class="spark" viewBox="0 0 120 30" preserveAspectRatio="none" aria-hidden="true">
    ${svg`<polygon points=${area}></polygon><polyline points=${points.join(" ")}></polyline>`}</svg>`;
}

const tile = (name, value, note, more = nothing) =>
  html`<div class="tile"><dt>${name}</dt><dd><strong>${value}</strong>${more}<small>${note}</small></dd></div>`;

export function glance(state) {
  const { status, lost } = state;
  const [mood, headline, details] = verdict(status, lost);
  const flow = status?.flow ?? { history: [] };
  const ranges = status?.ranges ? `and ${plural(status.ranges, "range")}` : "subjects";
  return html`
    <div class=${`verdict ${mood}`}>
      <p class="headline"><span class="lamp" aria-hidden="true"></span><span role="status">${headline}</span></p>
      <p class="details">${plain(details) || (status ? recent(state.penalties) : "")}</p>
      <ul class="parts" aria-label="Servers and roles">
        ${(status?.parts ?? []).map((part) => html`
          <li class=${part.state} title=${plain(part.says)}><span class="lamp" aria-hidden="true"></span>${NAMES[part.name]}
            <span class="hidden">${STATES[part.state]}: ${plain(part.says)}</span></li>`)}
      </ul>
    </div>
    <dl class="tiles">
      ${tile("Denied now", count(status?.denied), ranges)}
      ${tile("Challenged now", count(status?.challenged), "subjects")}
      ${tile("Decisions a second", count(flow.published_per_s),
        flow.judged_per_s == null ? "published" : `published, ${count(flow.judged_per_s)} judged`, spark(flow.history))}
      ${tile("Waiting for workers", count(flow.lag), flow.lag == null ? "not known" : "decisions")}
    </dl>`;
}
