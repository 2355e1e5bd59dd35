// Who changed what: mutations, and those that the role refused.

import { query } from "../api.js";
import { CallTable } from "../calls.js";
import { Empty, Loaded, PageHead } from "../components.js";
import { useResource } from "../resource.js";
import { replaceQuery } from "../route.js";
import { html, useEffect, useState } from "../view.js";

/** @typedef {import("../types.js").AuditList} AuditList */

/** All that a replica remembers. */
const CALLS = 1_000;

/** @param {{query: URLSearchParams}} props */
export default function Audit({ query: asked }) {
  const tenant = asked.get("tenant") ?? "";
  const [text, setText] = useState(tenant);
  useEffect(() => setText(tenant), [tenant]);
  const audit = /** @type {import("../resource.js").Resource<AuditList>} */ (useResource(`/v1/admin/audit${query({ tenant, limit: CALLS })}`, { every_ms: 10_000 }));
  return html`
    <${PageHead} title="Audit">Calls that changed something or that a role did not allow: salts, jobs, contexts, deleted chunks. This page has the last 1,000 of this replica; its log has all.<//>
    <section class="panel" aria-label="Calls">
      <div class="body">
        <form class="toolbar" role="search" onSubmit=${(/** @type {Event} */ event) => {
          event.preventDefault();
          replaceQuery({ tenant: text.trim() });
        }}>
          <div class="field">
            <label for="tenant">Tenant</label>
            <input id="tenant" type="text" maxlength="128" value=${text} placeholder="all that this credential may see" autocomplete="off" spellcheck="false" onInput=${(/** @type {Event} */ event) => setText(/** @type {HTMLInputElement} */ (event.target).value)} />
          </div>
          <button type="submit">Filter</button>
        </form>
      </div>
      <${Loaded} of=${audit} lines=${6}>
        ${(/** @type {AuditList} */ page) => (page.calls.length === 0 ? html`<${Empty} title="No calls">None among the last 1,000 calls that this replica remembers of all tenants.<//>` : html`<${CallTable} calls=${page.calls} />`)}
      <//>
    </section>
  `;
}
