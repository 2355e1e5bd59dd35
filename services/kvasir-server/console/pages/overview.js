// What the replica does now, and did in the last hour.

import { Chart } from "../chart.js";
import { Badge, Bar, Empty, Failure, Legend, Loaded, Loading, PageHead, Panel, Tile, Time } from "../components.js";
import { EventLine } from "../event-line.js";
import { useFeed } from "../feed.js";
import * as format from "../format.js";
import { Members } from "../members.js";
import { Plot } from "../plot.js";
import { useResource } from "../resource.js";
import { latest, line, shares, sums, total, useSeries } from "../series.js";
import { html } from "../view.js";

/** @typedef {import("../types.js").Series} Answer */

const EVENTS_SHOWN = 8;
const TENANTS_SHOWN = 10;

/** @param {number | null} value @param {(value: number) => string} show */
const or = (value, show) => (value === null ? "–" : show(value));

/** @param {{answer: Answer}} props */
function Tiles({ answer }) {
  const requests = sums(["lookup", "read", "write", "other"].map((name) => line(answer, "requests", { class: name })));
  const asked = total(line(answer, "lookup_tokens", { result: "asked" }));
  const matched = total(line(answer, "lookup_tokens", { result: "matched" }));
  const met = total(line(answer, "loads", { slo: "met" })) * answer.step_s;
  const missed = total(line(answer, "loads", { slo: "missed" })) * answer.step_s;
  const failed = latest(line(answer, "errors", { status: "5xx" })) ?? 0;
  const used = latest(line(answer, "hot_bytes", { medium: "cpu" }));
  const room = latest(line(answer, "hot_capacity_bytes", { medium: "cpu" }));
  const open = answer.now.breaker_open;
  return html`
    <dl class="tiles">
      <${Tile} label="Requests" value=${or(latest(requests), format.rate)} sub=${`${or(latest(line(answer, "connections")), format.count)} connections`} />
      <${Tile} label="Hit ratio by tokens" value=${asked === 0 ? "–" : format.percent(matched / asked)} sub=${asked === 0 ? "no lookups in the last hour" : `of ${format.large(asked * answer.step_s)} tokens, last hour`} />
      <${Tile}
        label="TTFT attainment"
        value=${met + missed < 0.5 ? "–" : format.percent(met / (met + missed))}
        sub=${met + missed < 0.5 ? "no loads reported in the last hour" : html`of ${format.plural(Math.round(met + missed), "load")}, <a href="#/loads?missed=true">${format.count(Math.round(missed))} missed</a>`}
      />
      <${Tile} label="Store GET, p99" value=${or(latest(line(answer, "store_seconds", { op: "get", quantile: "0.99" })), (s) => format.duration(s * 1000))} sub=${`p50 ${or(latest(line(answer, "store_seconds", { op: "get", quantile: "0.5" })), (s) => format.duration(s * 1000))}`} />
      <${Tile} label="Hot tier, memory" value=${or(used, format.bytes)} sub=${room === null || room === 0 ? "off" : `of ${format.bytes(room)}`} />
      <${Tile}
        label="Errors, 5xx"
        tone=${failed > 0 ? "bad-text" : ""}
        value=${format.rate(failed)}
        sub=${open > 0 ? html`<${Badge} tone="bad">breaker open: ${format.plural(open, "side")} of the store paused<//>` : "breaker closed"}
      />
    </dl>
  `;
}

/** @param {{answer: Answer}} props */
function Charts({ answer }) {
  const { times_ms } = answer;
  const levels = answer.series.filter((one) => one.name === "load_bytes").map((one) => Number(one.labels.level)).sort((a, b) => a - b);
  const met = line(answer, "loads", { slo: "met" });
  const latency = (/** @type {string} */ op, /** @type {string} */ quantile) => line(answer, "store_seconds", { op, quantile });
  return html`
    <div class="grid wide stretch">
      <${Panel} title="Requests" note="a second, by class">
        <${Chart} title="Requests" times_ms=${times_ms} show=${format.rate} stacked series=${[
          { name: "lookups", values: line(answer, "requests", { class: "lookup" }), tone: "--series-1" },
          { name: "reads", values: line(answer, "requests", { class: "read" }), tone: "--series-2" },
          { name: "writes", values: line(answer, "requests", { class: "write" }), tone: "--series-3" },
          { name: "other", values: line(answer, "requests", { class: "other" }), tone: "--series-5" },
        ]} />
      <//>
      <${Panel} title="Hit ratio and attainment" note="tokens found, loads in time">
        <${Chart} title="Hit ratio and attainment" times_ms=${times_ms} show=${format.percent} max=${1} nothing="No lookups and no loads in the last hour." series=${[
          { name: "tokens found", values: shares(line(answer, "lookup_tokens", { result: "matched" }), line(answer, "lookup_tokens", { result: "asked" })), tone: "--series-1" },
          { name: "loads in time", values: shares(met, sums([met, line(answer, "loads", { slo: "missed" })])), tone: "--series-3", dash: true },
        ]} />
      <//>
      <${Panel} title="Loaded, by level" note="as clients report">
        <${Chart} title="Bytes loaded by level" times_ms=${times_ms} show=${format.byteRate} stacked nothing="No loads reported in the last hour." series=${levels.map((level) => ({ name: `level ${level}`, values: line(answer, "load_bytes", { level: String(level) }), tone: `--level-${level}` }))} />
      <//>
      <${Panel} title="Served, by medium" note="where bytes came from">
        <${Chart} title="Bytes served by medium" times_ms=${times_ms} show=${format.byteRate} stacked series=${[
          { name: "memory", values: line(answer, "served_bytes", { medium: "cpu" }), tone: "--medium-cpu" },
          { name: "disk", values: line(answer, "served_bytes", { medium: "disk" }), tone: "--medium-disk" },
          { name: "object store", values: line(answer, "served_bytes", { medium: "object" }), tone: "--medium-object" },
        ]} />
      <//>
      <${Panel} title="Store latency" note="to the head of the answer">
        <${Chart} title="Store latency" times_ms=${times_ms} show=${(/** @type {number} */ s) => format.duration(s * 1000)} nothing="No requests to the store in the last hour." series=${[
          { name: "GET p50", values: latency("get", "0.5"), tone: "--series-1", dash: true },
          { name: "GET p99", values: latency("get", "0.99"), tone: "--series-1" },
          { name: "PUT p50", values: latency("put", "0.5"), tone: "--series-3", dash: true },
          { name: "PUT p99", values: latency("put", "0.99"), tone: "--series-3" },
        ]} />
      <//>
      <${Panel} title="Store requests" note="a second, by outcome">
        <${Chart} title="Store requests" times_ms=${times_ms} show=${format.rate} stacked series=${[
          { name: "failed", values: line(answer, "store_requests", { outcome: "failed" }), tone: "--bad" },
          { name: "answered", values: line(answer, "store_requests", { outcome: "ok" }), tone: "--series-2" },
        ]} />
      <//>
    </div>
  `;
}

/** @param {{answer: Answer}} props */
function HotTier({ answer }) {
  const media = ["cpu", "disk"].map((medium) => ({ medium, used: latest(line(answer, "hot_bytes", { medium })) ?? 0, room: latest(line(answer, "hot_capacity_bytes", { medium })) ?? 0 }));
  const tenants = answer.now.hot_tenants;
  const most = Math.max(1, ...tenants.map((one) => one.cpu_bytes + one.disk_bytes));
  return html`
    <${Panel} title="Hot tier by tenant" note=${media.filter((one) => one.room > 0).map((one) => `${one.medium === "cpu" ? "memory" : "disk"} ${format.bytes(one.used)} of ${format.bytes(one.room)}`).join(" · ")}>
      ${tenants.length === 0
        ? html`<p class="muted">Nothing is kept in memory or on disk.</p>`
        : html`<div class="stack-tight">
            ${tenants.slice(0, TENANTS_SHOWN).map(
              (one) => html`<div class="meter-row" key=${one.tenant}>
                <span class="name">${one.tenant}</span>
                <${Bar} total=${most} label=${`${one.tenant}: memory ${format.bytes(one.cpu_bytes)}, disk ${format.bytes(one.disk_bytes)}`} parts=${[
                  { value: one.cpu_bytes, tone: "medium-cpu", name: "memory" },
                  { value: one.disk_bytes, tone: "medium-disk", name: "disk" },
                ]} />
                <span class="end">${format.bytes(one.cpu_bytes + one.disk_bytes)}</span>
              </div>`,
            )}
            <${Legend} items=${[{ tone: "medium-cpu", name: "memory" }, { tone: "medium-disk", name: "disk" }]} />
            ${tenants.length > TENANTS_SHOWN ? html`<p class="muted">and ${format.plural(tenants.length - TENANTS_SHOWN, "other")}</p>` : null}
          </div>`}
    <//>
  `;
}

/** @param {{answer: Answer}} props */
function Curve({ answer }) {
  const curve = answer.now.hit_ratio_curve;
  const now = curve.find((point) => point.memory === 1);
  const twice = curve.find((point) => point.memory === 2);
  const room = latest(line(answer, "hot_capacity_bytes", { medium: "cpu" })) ?? 0;
  return html`
    <${Panel} title="Effect of more memory" note="estimated for the last hour's requests">
      ${curve.length === 0
        ? html`<p class="muted">There were no requests yet, so there is no estimate.</p>`
        : html`
            <${Plot}
              height=${200}
              label=${`Share of bytes served from memory: ${curve.map((point) => `${point.memory} times: ${format.percent(point.hit_ratio)}`).join(", ")}`}
              x=${{ title: "memory, relative to now", log: true, ticks: curve.map((point) => ({ at: point.memory, text: `${point.memory}×` })) }}
              y=${{ title: "", ticks: [0, 0.25, 0.5, 0.75, 1].map((at) => ({ at, text: format.percent(at) })) }}
              curves=${[{ name: "hit ratio", points: curve.map((point) => ({ x: point.memory, y: point.hit_ratio, name: `${point.memory}×: ${format.percent(point.hit_ratio)}`, ring: point.memory === 1 })) }]}
            />
            ${now && twice ? html`<p>${room > 0 ? `${format.bytes(room)} more` : "Twice the"} memory would raise the share of bytes served from it from ${format.percent(now.hit_ratio)} to <strong>${format.percent(twice.hit_ratio)}</strong>.</p>` : null}
          `}
    <//>
  `;
}

/** What the panel says while it has no event. @param {ReturnType<typeof useFeed>["state"]} state */
function inWords(state) {
  if (state === "open") return "Listening. Nothing has happened to the tenant's chunks since this page was opened.";
  if (state === "connecting") return "Connecting…";
  return state === "waiting" ? "The stream ended; connecting again." : state.title;
}

function Latest() {
  const feed = useFeed({ events_max: EVENTS_SHOWN });
  return html`
    <${Panel} title="Latest events" aside=${html`<a href="#/events">All events</a>`}>
      ${feed.events.length === 0
        ? html`<p class="muted">${inWords(feed.state)}</p>`
        : html`<ul class="plain">${feed.events.map((event) => html`<li key=${event.event_id}><${EventLine} event=${event} /></li>`)}</ul>`}
    <//>
  `;
}

/** What a credential below `operator` may see. */
function Reader() {
  const usage = /** @type {import("../resource.js").Resource<import("../types.js").Usage>} */ (useResource("/v1/usage", { endless: true }));
  const loads = /** @type {import("../resource.js").Resource<import("../types.js").LoadList>} */ (useResource("/v1/loads", { every_ms: 10_000 }));
  return html`
    <${Loaded} of=${usage}>
      ${(/** @type {import("../types.js").Usage} */ data) => {
        const recent = loads.data?.loads ?? [];
        const missed = recent.filter((load) => load.missed).length;
        return html`<dl class="tiles">
          <${Tile} label="Stored" value=${format.bytes(data.bytes)} sub=${format.plural(data.objects, "object")} />
          <${Tile} label="Context versions" value=${format.count(data.context_versions)} />
          <${Tile} label="Loads in time" value=${recent.length === 0 ? "–" : format.percent(1 - missed / recent.length)} sub=${loads.data === undefined ? (loads.error?.title ?? "Loading…") : recent.length === 0 ? "no loads reported" : html`of the last ${format.count(recent.length)}, <a href="#/loads?missed=true">${format.count(missed)} missed</a>`} />
        </dl>`;
      }}
    <//>
    <${Members} />
    <${Latest} />
  `;
}

export default function Overview() {
  const series = useSeries();
  const { data, error } = series;
  const head = html`<${PageHead}
    title="Overview"
    actions=${data === undefined ? null : html`<span class="muted">Up since <${Time} at=${data.started_at_ms} /></span>`}
  >This replica now and in the last hour, one point every 10 s. The metrics and their dashboards cover all replicas.<//>`;
  if (data === undefined && error?.status === 403) {
    return html`${head}<${Reader} /><section class="panel"><${Failure} error=${error} /></section>`;
  }
  if (data === undefined && error !== undefined) return html`${head}<section class="panel"><${Failure} error=${error} retry=${series.reload} /></section>`;
  if (data === undefined) return html`${head}<div class="tiles"><${Loading} /></div><div class="grid wide">${[1, 2, 3, 4].map((n) => html`<section class="panel chart-bone" key=${n}><${Loading} lines=${4} /></section>`)}</div>`;
  if (data.times_ms.length === 0) {
    return html`${head}<section class="panel"><${Empty} title="No points yet">The service has just started. The first point arrives within 10 seconds.<//></section><${Latest} />`;
  }
  return html`
    ${head}
    <${Tiles} answer=${data} />
    <${Charts} answer=${data} />
    <div class="grid wide stretch">
      <${HotTier} answer=${data} />
      <${Curve} answer=${data} />
    </div>
    <${Members} />
    <${Latest} />
  `;
}
