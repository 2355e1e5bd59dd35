// The last loads that clients reported, and one of them replayed.

import { query } from "../api.js";
import { Badge, Bar, Empty, Loaded, PageHead, Panel, Segmented, Table, Time } from "../components.js";
import * as format from "../format.js";
import { levelTone } from "../levels.js";
import { Replay, parts } from "../replay.js";
import { useResource } from "../resource.js";
import { replaceQuery } from "../route.js";
import { html } from "../view.js";

/** @typedef {import("../types.js").Load} Load */
/** @typedef {import("../types.js").LoadList} LoadList */

const EVERY_MS = 10_000;

/** What names a load: it has no id. @param {Load} load */
const identity = (load) => `${load.received_at_ms}-${load.elapsed_ms}-${load.loaded_tokens}`;

/** @param {{load: Load}} props */
function Levels({ load }) {
  const entries = Object.entries(load.tokens_by_level ?? {}).map(([level, tokens]) => ({ level: Number(level), tokens: Number(tokens) }));
  const shown = [
    ...entries.map(({ level, tokens }) => ({ value: tokens, tone: levelTone(level), name: `level ${level}: ${format.count(tokens)} tokens` })),
    ...(load.recomputed_tokens > 0 ? [{ value: load.recomputed_tokens, tone: "computed", name: `computed: ${format.count(load.recomputed_tokens)} tokens` }] : []),
  ];
  return html`<span class="levels"><${Bar} parts=${shown} label=${shown.map((part) => part.name).join(", ")} /><small class="muted">${[...entries.map(({ level }) => `level ${level}`), ...(load.recomputed_tokens > 0 ? ["computed"] : [])].join(" · ")}</small></span>`;
}

/** @param {{load: Load}} props */
function Elapsed({ load }) {
  return html`<span class="two-lines"><span class=${load.missed ? "bad-text" : ""}>${format.duration(load.elapsed_ms)}</span><small>of ${format.duration(load.slo_ms)}</small></span>`;
}

/** @param {{query: URLSearchParams}} props */
export default function Loads({ query: asked }) {
  const missed = asked.get("missed") === "true";
  const chosen = asked.get("load") ?? "";
  const list = /** @type {import("../resource.js").Resource<LoadList>} */ (useResource(`/v1/loads${query({ missed })}`, { every_ms: EVERY_MS }));
  const choose = (/** @type {string} */ id) => replaceQuery({ missed: missed ? "true" : undefined, load: id });
  return html`
    <${PageHead}
      title="Loads"
      actions=${html`<${Segmented} label="Which loads" value=${missed ? "missed" : "all"} choose=${(/** @type {string} */ value) => replaceQuery({ missed: value === "missed" ? "true" : undefined })} options=${[["all", "All"], ["missed", "Missed their deadline"]]} />`}
    >How the last loads went, as clients reported them to this replica: what came at which level, and where the time went.<//>
    <${Loaded} of=${list} lines=${6}>
      ${(/** @type {LoadList} */ page) => {
        const loads = page.loads;
        const load = loads.find((one) => identity(one) === chosen) ?? loads[0];
        if (load === undefined) {
          return html`<section class="panel"><${Empty} title=${missed ? "No load missed its deadline" : "No loads reported yet"}>${missed ? "None of the loads that this replica remembers." : "Clients report a load when it has ended (POST /v1/loads): the Python package and the engines' connectors do so automatically."}<//></section>`;
        }
        return html`
          <${One} load=${load} />
          <${Panel} title="Last loads" note=${`${format.plural(loads.length, "load")}, newest first`} flush>
            <${Table}
              caption="Loads"
              tall
              rows=${loads}
              id=${identity}
              selected=${identity(load)}
              columns=${[
                { title: "Reported", tight: true, head: true, cell: (/** @type {Load} */ row) => html`<${Time} lines at=${row.received_at_ms} />` },
                { title: "Deadline", cell: (/** @type {Load} */ row) => html`<${Badge} tone=${row.missed ? "bad" : "good"}>${row.missed ? "missed" : "met"}<//>` },
                { title: "Took", end: true, cell: (/** @type {Load} */ row) => html`<${Elapsed} load=${row} />` },
                { title: "Tokens", end: true, cell: (/** @type {Load} */ row) => html`<span class="two-lines">${format.count(row.loaded_tokens)}<small>${row.recomputed_tokens > 0 ? `+ ${format.count(row.recomputed_tokens)} computed` : "all loaded"}</small></span>` },
                { title: "Bytes", end: true, cell: (/** @type {Load} */ row) => format.bytes(Object.values(row.bytes_by_level ?? {}).reduce((/** @type {number} */ sum, n) => sum + Number(n), 0)) },
                { title: "Tokens by level", cell: (/** @type {Load} */ row) => html`<${Levels} load=${row} />` },
                { title: "", end: true, cell: (/** @type {Load} */ row) => html`<button type="button" class="small" aria-pressed=${identity(row) === identity(load) ? "true" : "false"} aria-label=${`Replay the load of ${format.localTime(row.received_at_ms)}`} onClick=${() => choose(identity(row))}>Replay</button>` },
              ]}
            />
          <//>
        `;
      }}
    <//>
  `;
}

/** @param {{load: Load}} props */
function One({ load }) {
  const went = parts(load);
  const over = load.elapsed_ms - load.slo_ms;
  return html`
    <${Panel} title="A load, replayed" note=${html`reported <${Time} at=${load.received_at_ms} />`}>
      <p>
        <${Badge} tone=${load.missed ? "bad" : "good"}>${load.missed ? "missed" : "met"}<//>
        ${" "}${format.duration(load.elapsed_ms)} of ${format.duration(load.slo_ms)}: ${load.missed ? `${format.duration(over)} too late` : over === 0 ? "just in time" : `${format.duration(-over)} to spare`}.
        ${" "}${format.plural(load.loaded_tokens, "token")} loaded${load.recomputed_tokens > 0 ? `, ${format.count(load.recomputed_tokens)} left to the engine` : ""}${load.saved_gpu_ms > 0 ? `; computing what was loaded would have taken ${format.duration(load.saved_gpu_ms)} of GPU time` : ""}.
      </p>
      ${went === null
        ? html`<p class="muted">This client reports no timeline. Newer clients report when each chunk was requested, received and decoded.</p>`
        : html`
            <${Replay} load=${load} />
            <div class="went">
              <h3>Where the time went</h3>
              <${Bar} label=${went.map((part) => `${part.name} ${format.duration(part.ms)}`).join(", ")} parts=${went.map((part) => ({ value: part.ms, tone: part.tone, name: part.name }))} />
              <ul class="legend">${went.map((part) => html`<li key=${part.name}><span class=${`swatch ${part.tone}`} aria-hidden="true"></span>${part.name} <span class="value">${format.duration(part.ms)}, ${format.percent(part.ms / Math.max(1, load.elapsed_ms))}</span></li>`)}</ul>
              ${load.missed ? html`<p>${advice(went)}</p>` : null}
            </div>
          `}
    <//>
  `;
}

/** What would have brought a load in time. @param {{name: string, ms: number}[]} went */
function advice(went) {
  const largest = [...went].sort((a, b) => b.ms - a.ms)[0];
  if (largest === undefined) return "";
  if (largest.name === "fetching") return "Most of it was the link: more bandwidth, a coarser level, or data closer to the engine (a hot tier) would bring it in time.";
  if (largest.name === "decoding") return "Most of it was decoding: a faster decoder (GPU, more threads) would bring it in time.";
  return "Most of it was neither fetching nor decoding: the engine computed tokens, or the load waited to begin.";
}
