// Whether a profile still fits what is stored with it: the errors that encoders measured of chunks, against the profile's claim.

import { call, query } from "./api.js";
import { Badge, Failure, Loading, Panel, Table, Time } from "./components.js";
import * as format from "./format.js";
import { useLoaded } from "./resource.js";
import { link } from "./route.js";
import { html, useState } from "./view.js";

/** @typedef {import("./types.js").Context} Context */
/** @typedef {import("./types.js").ContextList} ContextList */
/** @typedef {import("./types.js").LookupResponse} LookupResponse */
/** @typedef {{context: Context, errors: number[]}} Row */

/** Contexts that are compared, one lookup each. */
const CONTEXTS_MAX = 12;
const PAGE = 500;
/** The bound of `transparent`, in which measured errors count. */
const CLAIM = 1;

/** @param {number[]} sorted */
const median = (sorted) => sorted[Math.floor((sorted.length - 1) / 2)] ?? 0;

/**
 * The newest contexts of a model. The list is in order of creation, so they are at its end.
 * @param {string} model @param {AbortSignal} signal
 */
async function newest(model, signal) {
  /** @type {Context[]} */
  let kept = [];
  /** @type {string | undefined} */
  let after;
  do {
    /** @type {ContextList} */
    const page = await call("GET", `/v1/contexts${query({ limit: PAGE, after })}`, { signal });
    kept = [...kept, ...page.contexts.filter((context) => context.model_id === model)].sort((a, b) => b.created_at_ms - a.created_at_ms).slice(0, CONTEXTS_MAX);
    after = page.next ?? undefined;
  } while (after !== undefined);
  return kept;
}

/**
 * The newest contexts of a model, with the errors of their chunks of one profile at one level.
 * @param {string} model @param {string} profile @param {number} level @param {AbortSignal} signal
 * @returns {Promise<Row[]>}
 */
async function compared(model, profile, level, signal) {
  const contexts = await newest(model, signal);
  const rows = await Promise.all(
    contexts.map(async (context) => {
      /** @type {LookupResponse} */
      const match = await call("POST", "/v1/lookup", { signal, body: { model_id: model, namespace: context.namespace, chunk_ids: context.chunks } });
      return { context, chunks: match.chunks };
    }),
  );
  /** @type {Set<string>} */
  const seen = new Set();
  return rows.flatMap(({ context, chunks }) => {
    // Contexts share chunks: each counts once, in the newest context that has it.
    const errors = chunks.flatMap((chunk) => {
      const error = chunk.profile_hash === profile && !seen.has(chunk.object_digest) ? chunk.errors?.levels[level] : undefined;
      seen.add(chunk.object_digest);
      return error == null ? [] : [error];
    });
    return errors.length === 0 ? [] : [{ context, errors: errors.sort((a, b) => a - b) }];
  });
}

/** @param {{rows: Row[], level: number}} props */
function Compared({ rows, level }) {
  const all = rows.flatMap((row) => row.errors).sort((a, b) => a - b);
  if (all.length === 0) return html`<p class="pad-note muted">None of the newest contexts has chunks of this profile with measured errors: their encoders did not measure, or they use another profile.</p>`;
  const beyond = all.filter((error) => error > CLAIM).length;
  return html`
    <p class="pad-note">
      <${Badge} tone=${beyond === 0 ? "good" : beyond * 10 > all.length ? "bad" : "warn"}>${beyond === 0 ? "fits" : `${format.percent(beyond / all.length)} beyond`}<//>
      ${" "}${beyond === 0 ? `All ${format.plural(all.length, "measured chunk")} keep` : `${format.plural(beyond, "chunk")} of ${format.count(all.length)} measured ${beyond === 1 ? "does" : "do"} not keep`} what level ${level} promises. Median: ${format.number(median(all))} × the bound of transparent.${beyond === 0 ? "" : html` <code>kvasir profile retrain</code> trains a profile on what is stored now.`}
    </p>
    <${Table}
      caption="Measured errors by context, newest first"
      rows=${rows}
      id=${(/** @type {Row} */ row) => row.context.context_id}
      columns=${[
        { title: "Context", head: true, tight: true, cell: (/** @type {Row} */ row) => html`<a href=${link(["contexts", row.context.context_id])}><code>${row.context.context_id.slice(0, 13)}…</code></a>` },
        { title: "Written", tight: true, cell: (/** @type {Row} */ row) => html`<${Time} lines at=${row.context.created_at_ms} />` },
        { title: "Chunks", end: true, cell: (/** @type {Row} */ row) => format.count(row.errors.length) },
        { title: "Median", end: true, cell: (/** @type {Row} */ row) => `${format.number(median(row.errors))} ×` },
        { title: "Largest", end: true, cell: (/** @type {Row} */ row) => `${format.number(row.errors[row.errors.length - 1] ?? 0)} ×` },
      ]}
    />
  `;
}

/** @param {{model: string, profile: string, level: number | undefined}} props `level`: the one that the profile calls transparent */
export function Drift({ model, profile, level }) {
  const [asked, setAsked] = useState("");
  const wanted = level !== undefined && asked === profile;
  const rows = /** @type {import("./resource.js").Resource<Row[]>} */ (useLoaded(wanted ? `drift ${model} ${profile}` : null, (signal) => compared(model, profile, level ?? 0, signal)));
  return html`<${Panel} title="Drift" note="of the profile above" flush=${wanted}>
    ${level === undefined
      ? html`<p class="muted">This profile names no transparent level, so there is no bound to compare stored chunks with.</p>`
      : wanted
        ? rows.data !== undefined
          ? html`<${Compared} rows=${rows.data} level=${level} />`
          : rows.error !== undefined
            ? html`<${Failure} error=${rows.error} retry=${rows.reload} />`
            : html`<${Loading} />`
        : html`<p class="muted">Encoders measure the error of each chunk. Chunks above the bound of transparent at level ${level} mean that the texts now differ from those that the profile was trained on. The comparison reads the list of the tenant's contexts and looks up the newest ${CONTEXTS_MAX} of the model, which counts as a use of their chunks.</p>
            <div class="row"><button type="button" onClick=${() => setAsked(profile)}>Compare with stored chunks</button></div>`}
  <//>`;
}
