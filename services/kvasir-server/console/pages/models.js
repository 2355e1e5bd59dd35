// Models, their profiles, and what each level of a profile costs and loses.

import { call } from "../api.js";
import { Badge, Empty, Failure, Hash, Legend, Loaded, Loading, PageHead, Panel, Table, Time } from "../components.js";
import { Drift } from "../drift.js";
import * as format from "../format.js";
import { useModels } from "../models.js";
import { Plot, decades, steps } from "../plot.js";
import { asProblem, useLoaded, useResource } from "../resource.js";
import { link, replaceQuery } from "../route.js";
import { html } from "../view.js";

/** @typedef {import("../types.js").ModelSpec} ModelSpec */
/** @typedef {import("../types.js").ProfileList} ProfileList */
/** @typedef {import("../types.js").ProfileLevels} ProfileLevels */
/** @typedef {import("../types.js").ModelInfo} ModelInfo */
/** @typedef {{profile_hash: string, bytes: number, stored_at_ms?: number | null, levels?: ProfileLevels, problem?: string}} Profile */
/** @typedef {import("../types.js").MeasuredLevel} Level */

/** Profiles whose levels are read for the history: one request each. */
const HISTORY_MAX = 16;
/** @type {Record<string, string>} */
const MADE = { first_save: "made at the first save", trained: "trained", by_hand: "made by hand" };

/** @param {{parts: string[], query: URLSearchParams}} props */
export default function Models({ parts, query: asked }) {
  const id = parts[1];
  return id === undefined ? html`<${List} />` : html`<${Model} key=${id} id=${id} asked=${asked} />`;
}

function List() {
  const models = useModels();
  return html`
    <${PageHead} title="Models" actions=${html`<a class="button" href="#/plan">Plan for a model</a>`}>Models that this tenant has registered. A model is its weights, their revision and the layout of its KV cache.<//>
    <section class="panel" aria-label="Models">
      <${Loaded} of=${models.list} lines=${4}>
        ${() =>
          models.models.length === 0
            ? html`<${Empty} title="No models yet">An engine's connector registers its model when it first stores or looks up: <code>POST /v1/models</code>.<//>`
            : html`<${Table}
                caption="Models"
                rows=${models.models}
                id=${(/** @type {ModelInfo} */ row) => row.model_id}
                columns=${[
                  { title: "Model", head: true, cell: (/** @type {ModelInfo} */ row) => html`<a class="break" href=${link(["models", row.model_id])}>${row.model_name}</a>` },
                  { title: "Revision", cell: (/** @type {ModelInfo} */ row) => html`<span class="nowrap" title=${row.revision}>${row.revision.slice(0, 20)}${row.revision.length > 20 ? "…" : ""}</span>` },
                  { title: "Adapter", cell: (/** @type {ModelInfo} */ row) => row.lora_name ?? html`<span class="muted">none</span>` },
                  { title: "Id", tight: true, cell: (/** @type {ModelInfo} */ row) => html`<${Hash} value=${row.model_id} />` },
                ]}
              />`}
      <//>
    </section>
  `;
}

/** @param {ModelSpec} spec */
function layersInWords(spec) {
  return spec.layers.map((run) => {
    const layout = run.layout;
    const shape =
      layout.kind === "none"
        ? "without a cache"
        : layout.kind === "mla"
          ? `MLA, latent ${layout.latent}, rope ${layout.rope_dims}`
          : `${layout.kv_heads} KV heads of ${layout.head_dim}${layout.kind === "sliding_window" ? `, last ${format.count(layout.window)} tokens` : ""}`;
    return `${run.count ?? 1} × ${shape}`;
  });
}

/** @param {{id: string, asked: URLSearchParams}} props */
function Model({ id, asked }) {
  const path = `/v1/models/${encodeURIComponent(id)}`;
  const spec = /** @type {import("../resource.js").Resource<ModelSpec>} */ (useResource(path));
  const crumb = html`<a href="#/models">Models</a>`;
  if (spec.data === undefined) {
    return html`
      <${PageHead} title="Model" crumb=${crumb}><code class="break">${id}</code><//>
      <section class="panel">${spec.error ? html`<${Failure} error=${spec.error} retry=${spec.reload} />` : html`<${Loading} lines=${5} />`}</section>
    `;
  }
  const known = spec.data;
  return html`
    <${PageHead} title=${known.weights} crumb=${crumb} actions=${html`<a class="button" href=${link(["plan"], { model_id: id })}>Plan with this model</a>`}><${Hash} value=${id} /><//>
    <${Panel} title="Spec">
      <dl class="facts">
        <div><dt>Revision</dt><dd>${known.revision}</dd></div>
        <div><dt>Adapter</dt><dd>${known.adapter ?? "none"}</dd></div>
        <div><dt>KV type</dt><dd>${known.kv_dtype}</dd></div>
        <div><dt>Reuse</dt><dd>${String(known.reuse ?? "prefix")}</dd></div>
        <div><dt>Layers</dt><dd>${layersInWords(known).map((words) => html`<div key=${words}>${words}</div>`)}</dd></div>
        ${known.thinning ? html`<div><dt>Thinning</dt><dd>${JSON.stringify(known.thinning)}</dd></div>` : null}
      </dl>
    <//>
    <${Profiles} path=${path} id=${id} asked=${asked} />
  `;
}

/** @param {{path: string, id: string, asked: URLSearchParams}} props */
function Profiles({ path, id, asked }) {
  const profiles = /** @type {import("../resource.js").Resource<{profiles: Profile[], read: number}>} */ (
    useLoaded(`profiles ${id}`, async (signal) => {
      /** @type {ProfileList} */
      const list = await call("GET", `${path}/profiles`, { signal });
      /** @type {Profile[]} */
      const newest = [...list.profiles].sort((a, b) => (b.stored_at_ms ?? 0) - (a.stored_at_ms ?? 0));
      await Promise.all(
        newest.slice(0, HISTORY_MAX).map(async (profile) => {
          try {
            profile.levels = await call("GET", `${path}/profiles/${profile.profile_hash}/levels`, { signal });
          } catch (error) {
            const problem = asProblem(error);
            if (problem.status === 401 || signal.aborted) throw error;
            profile.problem = problem.message;
          }
        }),
      );
      return { profiles: newest, read: Math.min(HISTORY_MAX, newest.length) };
    })
  );
  return html`<${Loaded} of=${profiles} lines=${5}>
    ${(/** @type {{profiles: Profile[], read: number}} */ list) => {
      if (list.profiles.length === 0) {
        return html`<${Panel} title="Profiles"><p class="muted">No profile is stored for this model. The first save makes one, or <code>kvasir profile train</code> does.</p><//>`;
      }
      const chosen = list.profiles.find((one) => one.profile_hash === asked.get("profile")) ?? list.profiles[0];
      return html`
        ${chosen === undefined ? null : html`<${Ladder} profile=${chosen} /><${Drift} model=${id} profile=${chosen.profile_hash} level=${chosen.levels?.levels.find((/** @type {Level} */ level) => level.quality === "transparent")?.level} />`}
        <${Panel} title="History" note=${`${format.plural(list.profiles.length, "profile")}, newest first${list.profiles.length > list.read ? `; the levels of the last ${list.read} are shown` : ""}`} flush>
          <${Table}
            caption="Profiles"
            tall=${list.profiles.length > 12}
            rows=${list.profiles}
            id=${(/** @type {Profile} */ row) => row.profile_hash}
            selected=${chosen?.profile_hash}
            columns=${[
              { title: "Profile", head: true, tight: true, cell: (/** @type {Profile} */ row) => html`<${Hash} value=${row.profile_hash} />` },
              { title: "Stored", tight: true, cell: (/** @type {Profile} */ row) => (row.stored_at_ms ? html`<${Time} lines at=${row.stored_at_ms} />` : "–") },
              { title: "How", cell: (/** @type {Profile} */ row) => html`<span class="two-lines">${row.levels ? (MADE[row.levels.made] ?? row.levels.made) : (row.problem ?? "–")}${row.levels?.note ? html`<small class="break">${row.levels.note}</small>` : null}</span>` },
              { title: "Trained on", end: true, cell: (/** @type {Profile} */ row) => (row.levels ? `${format.count(row.levels.trained_tokens)} tokens` : "–") },
              { title: "Bits an element, by level", cell: (/** @type {Profile} */ row) => row.levels?.levels.map((/** @type {Level} */ level) => format.number(level.bits_per_element)).join(" · ") ?? "–" },
              { title: "Size", end: true, cell: (/** @type {Profile} */ row) => format.bytes(row.bytes) },
              { title: "", end: true, cell: (/** @type {Profile} */ row) => html`<button type="button" class="small" aria-pressed=${row.profile_hash === chosen?.profile_hash ? "true" : "false"} aria-label=${`Show the levels of ${format.short(row.profile_hash)}`} onClick=${() => replaceQuery({ profile: row.profile_hash })}>Show</button>` },
            ]}
          />
        <//>
      `;
    }}
  <//>`;
}

/** @param {{profile: Profile}} props */
function Ladder({ profile }) {
  const data = profile.levels;
  if (data === undefined) return html`<${Panel} title="Levels"><p class="muted">${profile.problem ?? "The levels of this profile were not read."}</p><//>`;
  /** @type {Level[]} */
  const levels = data.levels;
  const withKl = levels.filter((level) => (level.kl ?? 0) > 0);
  const drawn = levels.filter((level) => level.nmse > 0);
  const named = (/** @type {Level} */ level) => `level ${level.level}: ${format.number(level.bits_per_element)} bits, NMSE ${format.number(level.nmse)}${level.kl == null ? "" : `, KL ${format.number(level.kl)}`}`;
  const curves = [
    { name: "NMSE", points: drawn.map((level) => ({ x: level.bits_per_element, y: level.nmse, name: named(level), ring: level.quality === "transparent" })) },
    ...(withKl.length > 0 ? [{ name: "KL", second: true, points: withKl.map((level) => ({ x: level.bits_per_element, y: level.kl ?? 0, name: named(level), ring: level.quality === "transparent" })) }] : []),
  ];
  return html`
    <${Panel} title="Levels" note=${html`of profile <code title=${profile.profile_hash}>${format.short(profile.profile_hash)}</code>, ${MADE[data.made] ?? data.made}`}>
      <div class="split">
        <div class="stack-tight">
          <${Plot}
            label=${`Error against bits an element: ${levels.map(named).join("; ")}`}
            curves=${curves}
            x=${{ title: "bits an element", ticks: steps(levels.map((level) => level.bits_per_element)) }}
            y=${{ title: "error", log: true, ticks: decades([...drawn.map((level) => level.nmse), ...withKl.map((level) => level.kl ?? 0)]) }}
          />
          <${Legend} items=${[
            { tone: "series-1", name: "NMSE" },
            ...(withKl.length > 0 ? [{ tone: "series-3", name: "KL, nats a token" }] : []),
            ...(levels.some((level) => level.quality === "transparent") ? [{ tone: "fill good", name: "ringed: transparent" }] : []),
          ]} />
        </div>
        <${Table}
          caption="Levels"
          rows=${levels}
          id=${(/** @type {Level} */ row) => String(row.level)}
          columns=${[
            { title: "Level", head: true, cell: (/** @type {Level} */ row) => html`<span class="row-tight">${row.level} ${row.quality ? html`<${Badge} tone="good">${row.quality}<//>` : null}</span>` },
            { title: "Bits", end: true, cell: (/** @type {Level} */ row) => format.number(row.bits_per_element) },
            { title: "NMSE", end: true, cell: (/** @type {Level} */ row) => format.number(row.nmse) },
            { title: "KL", end: true, cell: (/** @type {Level} */ row) => (row.kl == null ? "–" : format.number(row.kl)) },
          ]}
        />
      </div>
      <p class="muted">Trained on ${format.count(data.trained_tokens)} tokens, measured on ${format.count(data.held_out_tokens)} others${data.exact_tokens > 0 ? `; the first ${format.count(data.exact_tokens)} tokens are exact at every level` : ""}.${drawn.length < levels.length ? " Exact levels have no error to draw." : ""}</p>
    <//>
  `;
}
