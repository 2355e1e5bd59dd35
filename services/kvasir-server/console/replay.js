// A load over time: bandwidth above, its chunks beneath, the deadline through both.

import { Table, useWidth } from "./components.js";
import * as format from "./format.js";
import { levelTone } from "./levels.js";
import { steps } from "./plot.js";
import { html } from "./view.js";

/** @typedef {import("./types.js").Load} Load */
/** @typedef {{first_token: number, tokens: number, bytes: number, level: number | undefined, started_ms: number | undefined, fetched_ms: number | undefined, ready_ms: number | undefined}} Chunk */
/** @typedef {import("./types.js").BandwidthSample} Bandwidth */

const LEFT = 76;
const RIGHT = 12;
const BANDWIDTH_HEIGHT = 84;
const GAP = 30;
const AXIS = 22;

/** The parts of a load, with what is not known as `undefined`. @param {Load} load @returns {Chunk[]} */
const chunksOf = (load) =>
  (load.timeline?.chunks ?? []).map((chunk) => ({
    ...chunk,
    level: chunk.level ?? undefined,
    started_ms: chunk.started_ms ?? undefined,
    fetched_ms: chunk.fetched_ms ?? undefined,
    ready_ms: chunk.ready_ms ?? undefined,
  }));

/** Milliseconds that these spans cover together. @param {[number, number][]} spans */
function covered(spans) {
  let sum = 0;
  let end = -Infinity;
  for (const [from, to] of [...spans].sort((a, b) => a[0] - b[0])) {
    if (to <= end) continue;
    sum += to - Math.max(from, end);
    end = to;
  }
  return sum;
}

/**
 * Where the time of a load went; null without a timeline.
 * @param {Load} load
 * @returns {{name: string, ms: number, tone: string}[] | null}
 */
export function parts(load) {
  const chunks = chunksOf(load);
  if (chunks.length === 0) return null;
  const clip = (/** @type {number} */ ms) => Math.min(Math.max(0, ms), load.elapsed_ms);
  /** @type {[number, number][]} */
  const fetched = [];
  /** @type {[number, number][]} */
  const decoded = [];
  for (const chunk of chunks) {
    if (chunk.started_ms !== undefined && chunk.fetched_ms !== undefined) fetched.push([clip(chunk.started_ms), clip(chunk.fetched_ms)]);
    if (chunk.fetched_ms !== undefined && chunk.ready_ms !== undefined) decoded.push([clip(chunk.fetched_ms), clip(chunk.ready_ms)]);
  }
  const fetching = covered(fetched);
  const both = covered([...fetched, ...decoded]);
  return [
    { name: "fetching", ms: fetching, tone: "series-1" },
    { name: "decoding", ms: both - fetching, tone: "medium-cpu" },
    { name: "computing and waiting", ms: Math.max(0, load.elapsed_ms - both), tone: "fill rest" },
  ];
}

/** @param {Bandwidth[]} points @param {(ms: number) => number} px @param {(rate: number) => number} py @param {number} end */
function stairs(points, px, py, end) {
  const first = points[0];
  if (first === undefined) return "";
  let path = `M${px(0)} ${py(first.bytes_per_second)}`;
  points.forEach((point, i) => {
    path += `H${px(point.at_ms)}V${py(point.bytes_per_second)}`;
    if (i === points.length - 1) path += `H${px(Math.max(end, point.at_ms))}`;
  });
  return path;
}

/** @param {{load: Load}} props */
export function Replay({ load }) {
  const [host, width] = useWidth();
  const chunks = chunksOf(load);
  /** @type {Bandwidth[]} */
  const bandwidth = load.timeline?.bandwidth ?? [];
  const lane = chunks.length > 24 ? 8 : 16;
  const top = BANDWIDTH_HEIGHT + GAP;
  const height = top + chunks.length * lane + AXIS;
  const end = Math.max(load.elapsed_ms, load.slo_ms, ...chunks.map((chunk) => chunk.ready_ms ?? chunk.fetched_ms ?? 0), 1) * 1.03;
  const fastest = Math.max(...bandwidth.map((point) => point.bytes_per_second), 1);
  const room = Math.max(0, width - LEFT - RIGHT);
  const px = (/** @type {number} */ ms) => LEFT + (Math.min(ms, end) / end) * room;
  const py = (/** @type {number} */ rate) => BANDWIDTH_HEIGHT - (rate / fastest) * (BANDWIDTH_HEIGHT - 12);
  const path = stairs(bandwidth, px, py, load.elapsed_ms);
  const levels = [...new Set(chunks.flatMap((chunk) => (chunk.level === undefined ? [] : [chunk.level])))].sort((a, b) => a - b);
  const ticks = steps([end], width < 500 ? 3 : 8).filter((tick) => tick.at <= end);
  return html`
    <figure class="chart" role="group" aria-label="The load over time">
      <ul class="legend">
        ${levels.map((level) => html`<li key=${level}><span class=${`swatch ${levelTone(level)}`} aria-hidden="true"></span>fetching level ${level}</li>`)}
        <li><span class="swatch medium-cpu" aria-hidden="true"></span>decoding</li>
        ${chunks.some((chunk) => chunk.level === undefined) ? html`<li><span class="swatch computed" aria-hidden="true"></span>computed by the engine</li>` : null}
        <li><span class="swatch deadline-swatch" aria-hidden="true"></span>deadline ${format.duration(load.slo_ms)}</li>
      </ul>
      <div ref=${host} style=${{ height: `${height}px` }}>
        ${width === 0
          ? null
          : html`<svg class="drawn" role="img" aria-label=${`Load of ${format.duration(load.elapsed_ms)} with a deadline at ${format.duration(load.slo_ms)}, ${format.plural(chunks.length, "part")}`} width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
              ${ticks.map((tick) => html`<g key=${tick.text}><line class="grid-line" x1=${px(tick.at)} x2=${px(tick.at)} y1="0" y2=${height - AXIS} /><text x=${px(tick.at)} y=${height - 6} text-anchor="middle">${tick.at === 0 ? "0" : format.duration(tick.at)}</text></g>`)}
              <text x="0" y="14">${bandwidth.length > 0 ? "bandwidth" : ""}</text>
              <text x=${LEFT - 8} y="30" text-anchor="end">${bandwidth.length > 0 ? format.byteRate(fastest) : ""}</text>
              ${path === "" ? html`<text x=${LEFT + 8} y=${BANDWIDTH_HEIGHT / 2}>no bandwidth was reported</text>` : html`<path class="area" d=${`${path}V${BANDWIDTH_HEIGHT}H${px(0)}Z`} /><path class="curve" d=${path} />`}
              <line class="axis" x1=${LEFT} x2=${width - RIGHT} y1=${BANDWIDTH_HEIGHT} y2=${BANDWIDTH_HEIGHT} />
              <text x="0" y=${top - 7}>from token</text>
              ${chunks.map((chunk, i) => {
                const y = top + i * lane;
                const h = lane - 3;
                const label = `tokens ${format.count(chunk.first_token)}–${format.count(chunk.first_token + chunk.tokens)}${chunk.level === undefined ? ", computed by the engine" : `, level ${chunk.level}, ${format.bytes(chunk.bytes)}`}`;
                const started = chunk.started_ms ?? 0;
                const fetched = chunk.fetched_ms;
                const ready = chunk.ready_ms;
                return html`<g key=${i}>
                  <title>${label}</title>
                  ${(lane > 10 || i % 3 === 0) ? html`<text x=${LEFT - 8} y=${y + 11} text-anchor="end">${format.count(chunk.first_token)}</text>` : null}
                  ${chunk.level === undefined
                    ? ready === undefined ? null : html`<rect class="computed" x=${px(started)} y=${y} width=${Math.max(2, px(ready) - px(started))} height=${h} rx="2" />`
                    : html`
                        <line class="wait" x1=${px(0)} x2=${px(started)} y1=${y + h / 2} y2=${y + h / 2} />
                        ${fetched === undefined ? null : html`<rect class=${levelTone(chunk.level)} x=${px(started)} y=${y} width=${Math.max(2, px(fetched) - px(started))} height=${h} rx="2" />`}
                        ${fetched === undefined || ready === undefined ? null : html`<rect class="decode" x=${px(fetched)} y=${y + h / 4} width=${Math.max(1, px(ready) - px(fetched))} height=${h / 2} />`}
                      `}
                </g>`;
              })}
              <line class="deadline" x1=${px(load.slo_ms)} x2=${px(load.slo_ms)} y1="0" y2=${height - AXIS} />
              <line class="ended" x1=${px(load.elapsed_ms)} x2=${px(load.elapsed_ms)} y1="0" y2=${height - AXIS} />
            </svg>`}
      </div>
      <details>
        <summary>Data<span class="hidden"> of the load</span></summary>
        <${Table}
          caption="Parts of the load"
          rows=${chunks.map((chunk, i) => ({ ...chunk, i }))}
          id=${(/** @type {{i: number}} */ row) => String(row.i)}
          columns=${[
            { title: "Tokens", head: true, cell: (/** @type {Chunk} */ row) => `${format.count(row.first_token)}–${format.count(row.first_token + row.tokens)}` },
            { title: "Level", cell: (/** @type {Chunk} */ row) => (row.level === undefined ? "computed" : row.level) },
            { title: "Bytes", end: true, cell: (/** @type {Chunk} */ row) => format.bytes(row.bytes) },
            { title: "Requested at", end: true, cell: (/** @type {Chunk} */ row) => (row.started_ms === undefined ? "–" : format.duration(row.started_ms)) },
            { title: "Received at", end: true, cell: (/** @type {Chunk} */ row) => (row.fetched_ms === undefined ? "–" : format.duration(row.fetched_ms)) },
            { title: "Decoded at", end: true, cell: (/** @type {Chunk} */ row) => (row.ready_ms === undefined ? "–" : format.duration(row.ready_ms)) },
          ]}
        />
      </details>
    </figure>
  `;
}
