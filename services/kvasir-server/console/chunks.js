// A context as its chunks: a map to look at, a table to read.

import { Badge, Bar, Hash, Table } from "./components.js";
import * as format from "./format.js";
import { levelTone, mediumName, qualityName, qualityTone } from "./levels.js";
import { html } from "./view.js";

/** @typedef {import("./types.js").ChunkMatch} ChunkMatch */
/** @typedef {import("./types.js").ChunkStatus} ChunkStatus */
/** @typedef {{at: number, hash: string, chunk: ChunkMatch | undefined}} Row */

/** The height of a chunk says how large it is, beside the largest. @param {{hashes: string[], found: ChunkMatch[], chosen: number, choose: (at: number) => void}} props */
export function ChunkMap({ hashes, found, chosen, choose }) {
  const largest = Math.max(1, ...found.map((chunk) => chunk.bytes / chunk.tokens));
  return html`<div class="chunk-map" role="group" aria-label="Chunks in the order of their tokens">
    ${hashes.map((hash, at) => {
      const chunk = found[at];
      const words = chunk === undefined ? `Chunk ${at + 1}: not there` : `Chunk ${at + 1}: tokens ${chunk.first_token} to ${chunk.first_token + chunk.tokens}, ${format.bytes(chunk.bytes)}, ${mediumName(chunk.medium)}`;
      return html`<button
        type="button"
        key=${hash}
        class=${chunk === undefined ? "gone missing" : ""}
        title=${words}
        aria-label=${words}
        aria-pressed=${at === chosen ? "true" : "false"}
        style=${{ flexGrow: chunk?.tokens ?? found[0]?.tokens ?? 1 }}
        onClick=${() => choose(at === chosen ? -1 : at)}
      >
        ${chunk === undefined ? null : html`<span class=${`medium-${chunk.medium}`} style=${{ height: `${Math.max(12, (100 * (chunk.bytes / chunk.tokens)) / largest)}%` }}></span>`}
      </button>`;
    })}
  </div>`;
}

/** @param {{chunk: ChunkMatch}} props */
function Levels({ chunk }) {
  const parts = chunk.level_bytes.map((end, level) => ({ value: end - (chunk.level_bytes[level - 1] ?? 0), tone: levelTone(level), name: `up to level ${level}: ${format.bytes(end)}` }));
  return html`<span class="levels">
    <${Bar} slim parts=${parts} label=${chunk.level_bytes.map((end, level) => `level ${level}: ${format.bytes(end)}`).join(", ")} />
    <small class="muted">${chunk.level_bytes.map((end) => format.bytes(end)).join(" · ")}</small>
  </span>`;
}

/** @param {{chunk: ChunkMatch}} props */
function Quality({ chunk }) {
  const levels = chunk.errors?.levels ?? [];
  if (levels.length === 0) return html`<span class="muted">not measured</span>`;
  const hops = chunk.errors?.hops ?? 0;
  return html`<span class="labels">
    ${levels.map((error, level) => html`<${Badge} key=${level} tone=${qualityTone(error)}><span title=${error === null ? "not known" : `${format.number(error)} × what transparent allows`}>${level}: ${qualityName(error)}</span><//>`)}
    ${hops > 0 ? html`<span class="muted">computed over ${format.plural(hops, "lossy load")}</span>` : null}
  </span>`;
}

/** @param {{status: ChunkStatus | undefined, pinned: boolean}} props */
function Age({ status, pinned }) {
  if (status === undefined) return html`<span class="muted">–</span>`;
  const now = Date.now();
  const expires = status.expires_at_ms;
  const left = expires == null ? 0 : expires - now;
  const words = expires == null ? "does not expire" : left > 0 ? `expires in ${format.duration(left)}` : "expires at the next collection";
  return html`<span class="two-lines" title=${`stored ${format.utc(status.stored_at_ms)}${expires == null ? "" : `, expires ${format.utc(expires)}`}`}>${format.duration(Math.max(0, now - status.stored_at_ms))}<small>${pinned ? "pinned" : words}</small></span>`;
}

/** @param {{status: ChunkStatus | undefined}} props */
function Uses({ status }) {
  const use = status?.use_here;
  if (use == null) return html`<span class="muted">–</span>`;
  return html`<span class="two-lines">${format.count(use.uses)}<small>last ${format.duration(use.last_ago_ms)} ago</small></span>`;
}

/**
 * @param {{hashes: string[], found: ChunkMatch[], chosen?: number, remove?: (hash: string) => void, status?: Map<string, ChunkStatus> | undefined, pinned?: boolean}} props
 * `status`: by object, where it is shown
 */
export function ChunkTable({ hashes, found, chosen = -1, remove, status, pinned = false }) {
  /** @type {Row[]} */
  const rows = hashes.map((hash, at) => ({ at, hash, chunk: found[at] }));
  const shown = chosen >= 0 ? rows.filter((row) => row.at === chosen) : rows;
  /** @type {import("./components.js").Column<Row>[]} */
  const columns = [
    { title: "Chunk", head: true, tight: true, cell: (row) => html`${row.at + 1} <${Hash} value=${row.hash} />` },
    { title: "Tokens", tight: true, end: true, cell: (row) => (row.chunk ? html`<span class="two-lines">${format.count(row.chunk.matched_tokens)}<small>from ${format.count(row.chunk.first_token)}</small></span>` : "–") },
    { title: "Where", tight: true, cell: (row) => (row.chunk ? html`<span class="row-tight"><span class=${`swatch medium-${row.chunk.medium}`} aria-hidden="true"></span>${mediumName(row.chunk.medium)}</span>` : html`<${Badge} tone="bad">not stored<//>`) },
    { title: "Size", end: true, cell: (row) => (row.chunk ? format.bytes(row.chunk.bytes) : "–") },
    { title: "Levels, coarsest first", cell: (row) => (row.chunk ? html`<${Levels} chunk=${row.chunk} />` : "–") },
    { title: "Measured quality", cell: (row) => (row.chunk ? html`<${Quality} chunk=${row.chunk} />` : "–") },
  ];
  if (status !== undefined) {
    columns.push(
      { title: "Age", tight: true, end: true, cell: (row) => html`<${Age} status=${status.get(row.chunk?.object_digest ?? "")} pinned=${pinned} />` },
      { title: "Uses", tight: true, end: true, cell: (row) => html`<${Uses} status=${status.get(row.chunk?.object_digest ?? "")} />` },
    );
  }
  if (remove !== undefined) {
    columns.push({ title: "", end: true, cell: (row) => (row.chunk ? html`<button type="button" class="small danger" aria-label=${`Delete chunk ${row.at + 1}`} onClick=${() => remove(row.hash)}>Delete</button>` : null) });
  }
  return html`<${Table} caption="Chunks" columns=${columns} rows=${shown} id=${(/** @type {Row} */ row) => row.hash} tall=${rows.length > 20} />`;
}
