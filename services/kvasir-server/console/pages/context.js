// One context: its chunks as they are stored now, and what may be done with it.

import { call, query } from "../api.js";
import { Badge, Confirm, Failure, Labels, Legend, Loaded, Loading, PageHead, Panel, Time, say } from "../components.js";
import { ChunkMap, ChunkTable } from "../chunks.js";
import { Calls } from "../calls.js";
import * as format from "../format.js";
import { useModels } from "../models.js";
import { asProblem, useLoaded, useResource } from "../resource.js";
import { link } from "../route.js";
import { html, useState } from "../view.js";

/** @typedef {import("../types.js").Context} Context */
/** @typedef {import("../types.js").LookupResponse} LookupResponse */
/** @typedef {import("../types.js").ChunkStatus} ChunkStatus */

/** Chunks whose status is read at once: one request each, and one of the service to the store. */
const STATUS_MAX = 32;

/** @param {{id: string, version: string}} props */
export function ContextPage({ id, version }) {
  const path = `/v1/contexts/${encodeURIComponent(id)}`;
  const context = /** @type {import("../resource.js").Resource<Context>} */ (useResource(`${path}${query({ version })}`));
  const crumb = html`<a href="#/contexts">Contexts</a>`;
  if (context.data === undefined) {
    return html`
      <${PageHead} title="Context" crumb=${crumb}><code class="break">${id}</code><//>
      <section class="panel">${context.error === undefined ? html`<${Loading} lines=${5} />` : html`<${Failure} error=${context.error} retry=${context.reload} />`}</section>
    `;
  }
  return html`<${Known} context=${context.data} path=${path} crumb=${crumb} reload=${context.reload} old=${version !== ""} />`;
}

/** @param {{context: Context, path: string, crumb: any, reload: () => void, old: boolean}} props */
function Known({ context, path, crumb, reload, old }) {
  const models = useModels();
  const [asking, setAsking] = useState(/** @type {"" | "pin" | "delete"} */ (""));
  const [chunk, setChunk] = useState(-1);
  const [turn, setTurn] = useState(0);
  const versions = /** @type {import("../resource.js").Resource<{versions: number[]}>} */ (useResource(`${path}/versions`));
  const found = /** @type {import("../resource.js").Resource<LookupResponse>} */ (
    useLoaded(`lookup ${context.context_id} ${context.version}`, (signal) => call("POST", "/v1/lookup", { signal, body: { model_id: context.model_id, namespace: context.namespace, chunk_ids: context.chunks, fresh: true } }))
  );
  const changed = () => {
    reload();
    versions.reload();
    found.reload();
    setTurn((n) => n + 1);
  };
  const pin = async () => {
    await call("PATCH", path, { body: { pinned: !context.pinned } });
    say(context.pinned ? "Unpinned." : "Pinned.");
    changed();
  };
  const remove = async () => {
    await call("DELETE", path);
    say("The context was deleted. Its chunks stay.");
    location.hash = "#/contexts";
  };
  const known = versions.data?.versions ?? [];
  return html`
    <${PageHead}
      title="Context"
      crumb=${crumb}
      actions=${old
        ? html`<a class="button" href=${link(["contexts", context.context_id])}>Newest version</a>`
        : html`
            <button type="button" onClick=${() => setAsking("pin")}>${context.pinned ? "Unpin" : "Pin"}</button>
            <button type="button" class="danger" onClick=${() => setAsking("delete")}>Delete</button>
          `}
    ><code class="break">${context.context_id}</code><//>
    <${Panel} title="Details">
      <dl class="facts">
        <div><dt>Labels</dt><dd><${Labels} labels=${context.labels} /></dd></div>
        <div><dt>Pin</dt><dd>${context.pinned ? html`<${Badge} tone="accent">pinned<//>` : "not pinned"}</dd></div>
        <div><dt>Tokens</dt><dd>${format.count(context.tokens)} in ${format.plural(context.chunks.length, "chunk")}</dd></div>
        <div><dt>Namespace</dt><dd>${context.namespace}</dd></div>
        <div><dt>Model</dt><dd><a href=${link(["models", context.model_id])} title=${context.model_id}>${models.name(context.model_id)}</a></dd></div>
        <div><dt>Written</dt><dd><${Time} at=${context.created_at_ms} /></dd></div>
        <div><dt>Ends</dt><dd>${context.expires_at_ms ? html`<${Time} at=${context.expires_at_ms} />` : "when it is deleted"}</dd></div>
        <div>
          <dt>Version</dt>
          <dd>
            ${format.count(context.version)}${known.length > 1
              ? html` <span class="muted">of</span> ${known.slice(-8).map((n) => (n === context.version ? null : html`<a key=${n} href=${link(["contexts", context.context_id], { version: String(n) })}>${n}</a> `))}`
              : null}
          </dd>
        </div>
      </dl>
    <//>
    <${Panel} title="Chunks" note="as they are stored now" flush>
      <${Loaded} of=${found} lines=${5}>
        ${(/** @type {LookupResponse} */ match) => html`<${Chunks} context=${context} match=${match} chosen=${chunk} choose=${setChunk} changed=${changed} />`}
      <//>
    <//>
    <${Calls} title="Calls about this context" about=${context.context_id} turn=${turn} />
    <${Confirm} open=${asking === "pin"} title=${context.pinned ? "Unpin this context?" : "Pin this context?"} action=${context.pinned ? "Unpin" : "Pin"} run=${pin} close=${() => setAsking("")}>
      <p>${context.pinned ? "The collector may then evict its chunks, and they expire by their time to live." : "The collector then keeps its chunks even when they are unused. They take up storage until the context is unpinned or deleted."}</p>
      <p><${Labels} labels=${context.labels} /></p>
    <//>
    <${Confirm} open=${asking === "delete"} danger title="Delete this context?" action="Delete the context" run=${remove} close=${() => setAsking("")}>
      <p>Its name, labels${context.pinned ? ", pin" : ""} and versions are deleted at once and cannot be restored. Its ${format.plural(context.chunks.length, "chunk")} stay${context.chunks.length === 1 ? "s" : ""} until the collector removes ${context.chunks.length === 1 ? "it" : "them"}.</p>
      <p><code class="break">${context.context_id}</code></p>
      <p><${Labels} labels=${context.labels} /></p>
    <//>
  `;
}

/**
 * Age, expiry and uses by object: of the chosen chunk, or of the first ones.
 * @param {string} model @param {LookupResponse["chunks"]} found @param {number} chosen
 * @returns {{known: Map<string, ChunkStatus>, problem: import("../api.js").ApiError | undefined}}
 */
function useStatus(model, found, chosen) {
  const chunk = found[chosen];
  const asked = chunk === undefined ? found.slice(0, STATUS_MAX) : [chunk];
  const paths = asked.map((one) => [one.object_digest, `/v1/models/${encodeURIComponent(model)}/chunks/${encodeURIComponent(one.seq_hash)}/${encodeURIComponent(one.object_digest)}/status`]);
  const loaded = useLoaded(asked.length === 0 ? null : `status ${JSON.stringify(paths)}`, async (signal) => {
    /** @type {Map<string, ChunkStatus>} */
    const known = new Map();
    /** @type {import("../api.js").ApiError | undefined} */
    let problem;
    await Promise.all(
      paths.map(async ([digest, path]) => {
        try {
          known.set(digest ?? "", await call("GET", path ?? "", { signal }));
        } catch (error) {
          if (signal.aborted) throw error;
          const failed = asProblem(error);
          // One that was removed meanwhile has no status.
          if (failed.status !== 404) problem ??= failed;
        }
      }),
    );
    return { known, problem };
  });
  return loaded.data ?? { known: new Map(), problem: loaded.error };
}

/** @param {{context: Context, match: LookupResponse, chosen: number, choose: (at: number) => void, changed: () => void}} props */
function Chunks({ context, match, chosen, choose, changed }) {
  const [removing, setRemoving] = useState("");
  const bytes = match.chunks.reduce((sum, chunk) => sum + chunk.bytes, 0);
  const gone = context.chunks.length - match.chunks.length;
  const status = useStatus(context.model_id, match.chunks, chosen);
  const remove = async () => {
    await call("DELETE", `/v1/models/${context.model_id}/chunks/${removing}`);
    say("The chunk is refused from now on and will be deleted after the grace period.");
    changed();
  };
  return html`
    <div class="pad stack">
      ${gone === 0
        ? html`<p>All ${format.count(match.matched_tokens)} tokens are there: ${format.bytes(bytes)} at the finest level.</p>`
        : html`<p><strong class="bad-text">${format.count(match.matched_tokens)} of ${format.count(context.tokens)} tokens are there.</strong> ${match.chunks.length === 0 ? "The first chunk" : `Chunk ${match.chunks.length + 1}`} is no longer stored${gone > 1 ? `; ${format.plural(gone - 1, "chunk")} after it cannot be used without it` : ""}. The engine computes and stores it again when it is needed. <a href="#/explain">Explain</a> says why, given the prompt's token ids.</p>`}
      <${ChunkMap} hashes=${context.chunks} found=${match.chunks} chosen=${chosen} choose=${choose} />
      <${Legend} items=${[
        { tone: "medium-cpu", name: "memory" },
        { tone: "medium-disk", name: "disk" },
        { tone: "medium-object", name: "object store" },
        { tone: "missing", name: "not stored" },
      ]} />
    </div>
    <${ChunkTable} hashes=${context.chunks} found=${match.chunks} chosen=${chosen} remove=${setRemoving} status=${status.known} pinned=${context.pinned} />
    ${status.problem === undefined ? null : html`<p class="pad-note bad-text">Age and uses: ${status.problem.title}.</p>`}
    <p class="pad-note muted">Uses are lookups and reads through the replica that answers this page, within its memory. It counts them only if <code>gc.capacity</code> is set.${match.chunks.length > STATUS_MAX ? ` Age and uses are read for the first ${STATUS_MAX} chunks; select another chunk in the drawing to read its own.` : ""}</p>
    <${Confirm} open=${removing !== ""} danger title="Delete this chunk?" action="Delete the chunk" run=${remove} close=${() => setRemoving("")}>
      <p>It is refused at once, in this and in <strong>every other context that shares it</strong>, even if it is pinned, and deleted after the grace period. Chunks after it cannot be used without it. This cannot be undone.</p>
      <p><code class="break">${removing}</code></p>
    <//>
  `;
}
