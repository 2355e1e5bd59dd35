// Named contexts: found by id or label; one of them is the page beneath.

import { query } from "../api.js";
import { Badge, Empty, Labels, Loaded, PageHead, Table, Time } from "../components.js";
import * as format from "../format.js";
import { useModels } from "../models.js";
import { useResource } from "../resource.js";
import { link, replaceQuery } from "../route.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../view.js";
import { ContextPage } from "./context.js";

/** @typedef {import("../types.js").Context} Context */
/** @typedef {import("../types.js").ContextList} ContextList */

const PAGE = 50;
const TYPING_MS = 250;
const SEARCH_BYTES_MAX = 256;

/** @param {{parts: string[], query: URLSearchParams}} props */
export default function Contexts({ parts, query: asked }) {
  if (parts[1] !== undefined) return html`<${ContextPage} key=${parts[1]} id=${parts[1]} version=${asked.get("version") ?? ""} />`;
  return html`<${List} asked=${asked} />`;
}

/** @param {{asked: URLSearchParams}} props */
function List({ asked }) {
  const search = asked.get("search") ?? "";
  const after = asked.get("after") ?? "";
  const [text, setText] = useState(search);
  // Before the next key is typed. Spaces at the end are not in the address, but may be typed.
  useLayoutEffect(() => setText((before) => (before.trim() === search ? before : search)), [search]);
  const timer = useRef(/** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined));
  useEffect(() => () => clearTimeout(timer.current), []);
  const models = useModels();
  const list = /** @type {import("../resource.js").Resource<ContextList>} */ (useResource(`/v1/contexts${query({ search, after, limit: PAGE })}`));
  /** @param {Event} event */
  const typed = (event) => {
    const value = /** @type {HTMLInputElement} */ (event.target).value;
    setText(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => replaceQuery({ search: value.trim() }), TYPING_MS);
  };
  return html`
    <${PageHead} title="Contexts" actions=${html`<a class="button" href="#/explain">Search by token ids</a>`}>Named sequences of chunks. The collector keeps pinned ones.<//>
    <section class="panel" aria-label="Contexts">
      <div class="body">
        <form class="toolbar" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
          <div class="field">
            <label for="search">Id, or a label's name or value</label>
            <input id="search" type="search" maxlength=${SEARCH_BYTES_MAX} value=${text} onInput=${typed} autocomplete="off" spellcheck="false" />
          </div>
          <button type="button" onClick=${list.reload}>Load again</button>
        </form>
      </div>
      <div class=${list.loading && list.data !== undefined ? "old" : ""}>
        <${Loaded} of=${list} lines=${6}>
          ${(/** @type {ContextList} */ page) =>
            page.contexts.length === 0 && !page.next
              ? search === "" && after === ""
                ? html`<${Empty} title="No contexts yet">Chunks are stored and found without one. A context gives them a name, labels, an expiry or a pin: <code>kvasir context create</code>, or <code>POST /v1/contexts</code>.<//>`
                : html`<${Empty} title="No context matches">Nothing among the tenant's contexts has “${search}” in its labels or at the start of its id.<//>`
              : html`
                  <${Table}
                    caption="Contexts"
                    id=${(/** @type {Context} */ row) => row.context_id}
                    rows=${page.contexts}
                    columns=${[
                      { title: "Context", head: true, tight: true, cell: (/** @type {Context} */ row) => html`<a href=${link(["contexts", row.context_id])}><code title=${row.context_id}>${row.context_id.slice(0, 13)}…</code></a>` },
                      { title: "Labels", cell: (/** @type {Context} */ row) => html`<${Labels} labels=${row.labels} />` },
                      { title: "Namespace", cell: (/** @type {Context} */ row) => html`<span class="break">${row.namespace}</span>` },
                      { title: "Model", cell: (/** @type {Context} */ row) => html`<a class="break" href=${link(["models", row.model_id])} title=${row.model_id}>${models.name(row.model_id)}</a>` },
                      { title: "Tokens", end: true, cell: (/** @type {Context} */ row) => format.count(row.tokens) },
                      { title: "Chunks", end: true, cell: (/** @type {Context} */ row) => format.count(row.chunks.length) },
                      { title: "Pin", cell: (/** @type {Context} */ row) => (row.pinned ? html`<${Badge} tone="accent">pinned<//>` : html`<span class="muted">no</span>`) },
                      { title: "Written", tight: true, cell: (/** @type {Context} */ row) => html`<${Time} lines at=${row.created_at_ms} />` },
                      { title: "Ends", tight: true, cell: (/** @type {Context} */ row) => (row.expires_at_ms ? html`<${Time} lines at=${row.expires_at_ms} />` : html`<span class="muted">when deleted</span>`) },
                    ]}
                  />
                  ${page.contexts.length === 0 ? html`<div class="state"><p>Nothing on this page of the search.</p></div>` : null}
                  ${page.next || after !== ""
                    ? html`<div class="row pager">
                        ${after === "" ? null : html`<a class="button" href=${link(["contexts"], { search })}>First page</a>`}
                        ${page.next ? html`<a class="button" href=${link(["contexts"], { search, after: page.next })}>Next page</a>` : null}
                      </div>`
                    : null}
                `}
        <//>
      </div>
    </section>
  `;
}
