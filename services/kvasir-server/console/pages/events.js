// What happens to chunks, as it happens.

import { ApiError } from "../api.js";
import { Badge, Empty, Failure, Hash, PageHead, Segmented, Table, Time } from "../components.js";
import { eventTone } from "../event-line.js";
import { useFeed } from "../feed.js";
import * as format from "../format.js";
import { mediumName } from "../levels.js";
import { replaceQuery } from "../route.js";
import { html, useEffect, useState } from "../view.js";

/** @typedef {import("../types.js").ChunkEvent} ChunkEvent */

const EVENTS_MAX = 500;
const NAME = /^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,127}$/;

/** @param {{query: URLSearchParams}} props */
export default function Events({ query: asked }) {
  const types = asked.get("types") ?? "";
  const namespace = asked.get("namespace") ?? "";
  const [text, setText] = useState(namespace);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    setText(namespace);
    setProblem("");
  }, [namespace]);
  const [paused, setPaused] = useState(false);
  const feed = useFeed({ namespace, types, events_max: EVENTS_MAX, paused });
  const set = (/** @type {{types?: string, namespace?: string}} */ change) => replaceQuery({ types, namespace, ...change });
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    const name = text.trim();
    const wrong = name !== "" && !NAME.test(name);
    setProblem(wrong ? "A namespace has letters, digits, dots, underscores and hyphens, at most 128." : "");
    if (!wrong) set({ namespace: name });
  };
  const state = feed.state;
  return html`
    <${PageHead} title="Events">Which chunks of this tenant become loadable from a medium, and which stop being so; what becomes of profiles. Prefix-aware routers read the same stream. The list starts when this page opens.<//>
    <section class="panel" aria-label="Events">
      <div class="body">
        <div class="row between">
          <form class="toolbar" onSubmit=${submit}>
            <div class="field">
              <label for="namespace">Namespace</label>
              <input id="namespace" type="text" maxlength="128" value=${text} placeholder="all" autocomplete="off" spellcheck="false" aria-describedby=${problem === "" ? undefined : "namespace-problem"} onInput=${(/** @type {Event} */ event) => setText(/** @type {HTMLInputElement} */ (event.target).value)} />
            </div>
            <button type="submit">Filter</button>
          </form>
          <${Segmented} label="Types" value=${types} choose=${(/** @type {string} */ value) => set({ types: value })} options=${[["", "All"], ["stored", "Stored"], ["removed", "Removed"], ["cleared", "Cleared"], ["profile", "Profiles"]]} />
        </div>
        ${problem === "" ? null : html`<p id="namespace-problem" class="bad-text" role="alert">${problem}</p>`}
        <div class="row between">
          <span class="row" role="status">
            ${paused ? html`<${Badge}>paused<//>` : state === "open" ? html`<${Badge} tone="good">live<//>` : state === "waiting" ? html`<${Badge} tone="warn">connecting again<//>` : state === "connecting" ? html`<${Badge}>connecting<//>` : html`<${Badge} tone="bad">refused<//>`}
            <span class="muted">${format.plural(feed.heard, "event")} heard${feed.heard > feed.events.length ? `, the last ${format.count(feed.events.length)} shown` : ""}${feed.missed > 0 ? `, ${format.count(feed.missed)} missed` : ""}</span>
          </span>
          <span class="row">
            <button type="button" class="small" aria-pressed=${paused ? "true" : "false"} onClick=${() => setPaused(!paused)}>${paused ? "Resume" : "Pause"}</button>
            <button type="button" class="small" disabled=${feed.events.length === 0} onClick=${feed.clear}>Clear</button>
          </span>
        </div>
      </div>
      ${state instanceof ApiError && !paused
        ? html`<${Failure} error=${state} />`
        : feed.events.length === 0
          ? html`<${Empty} title="Nothing yet">Events appear here when chunks are stored, evicted or removed. Earlier events are not shown.<//>`
          : html`<${Table}
              caption="Events, newest first"
              rows=${feed.events}
              id=${(/** @type {ChunkEvent} */ row) => row.event_id}
              columns=${[
                { title: "Time", tight: true, cell: (/** @type {ChunkEvent} */ row) => html`<${Time} at=${row.timestamp_ms} />` },
                { title: "Event", cell: (/** @type {ChunkEvent} */ row) => html`<span class="row-tight"><${Badge} tone=${eventTone(row.event_type)}>${row.event_type}<//>${row.reason ? html`<span class="muted">${row.reason}</span>` : null}</span>` },
                { title: "Medium", tight: true, cell: (/** @type {ChunkEvent} */ row) => `${mediumName(row.medium)}${row.level === undefined || row.level === null ? "" : `, level ${row.level}`}` },
                { title: "Chunk", tight: true, head: true, cell: (/** @type {ChunkEvent} */ row) => (row.seq_hash ? html`<${Hash} value=${row.seq_hash} />` : row.event_type === "profile" ? (row.profile_hash ? html`profile <${Hash} value=${row.profile_hash} />` : "–") : html`<span class="muted">all</span>`) },
                { title: "Blocks", end: true, cell: (/** @type {ChunkEvent} */ row) => (row.block_hashes?.length ? html`<span class="two-lines">${format.count(row.block_hashes.length)}<small>from ${format.count(row.base_block_idx ?? 0)}</small></span>` : "–") },
                { title: "Namespace", cell: (/** @type {ChunkEvent} */ row) => row.namespace ?? "–" },
                { title: "Model", cell: (/** @type {ChunkEvent} */ row) => html`<span class="break">${row.model_name ?? (row.model_id ? format.short(row.model_id) : "–")}${row.lora_name ? ` + ${row.lora_name}` : ""}</span>` },
                { title: "Replica", cell: (/** @type {ChunkEvent} */ row) => row.backend_id },
              ]}
            />`}
    </section>
  `;
}
