// Calls of the audit log.

import { query } from "./api.js";
import { Badge, Panel, Table, Time } from "./components.js";
import { useResource } from "./resource.js";
import { html, useEffect } from "./view.js";

/** @typedef {import("./types.js").AuditList} AuditList */
/** @typedef {import("./types.js").AuditedCall} Call */

/** @param {{calls: Call[]}} props */
export function CallTable({ calls }) {
  return html`<${Table}
    caption="Calls"
    rows=${calls.map((call, i) => ({ ...call, i }))}
    id=${(/** @type {Call & {i: number}} */ row) => `${row.at_ms} ${row.i}`}
    columns=${[
      { title: "Time", tight: true, cell: (/** @type {Call} */ row) => html`<${Time} lines at=${row.at_ms} />` },
      { title: "Credential", head: true, cell: (/** @type {Call} */ row) => html`<span class="two-lines break">${row.credential}<small>${row.tenant}, ${row.role}</small></span>` },
      { title: "Call", cell: (/** @type {Call} */ row) => html`<code class="break"><strong>${row.method}</strong> ${row.path}</code>` },
      { title: "Answer", end: true, cell: (/** @type {Call} */ row) => html`<${Badge} tone=${row.status < 300 ? "good" : row.status < 500 ? "warn" : "bad"}>${row.status === 403 ? "403 refused" : row.status}<//>` },
    ]}
  />`;
}

/** Calls whose path has this in it. Says in a line where the credential may not see the log. @param {{title: string, about: string, turn: number}} props */
export function Calls({ title, about, turn }) {
  const audit = /** @type {import("./resource.js").Resource<AuditList>} */ (useResource(`/v1/admin/audit${query({ limit: 1000 })}`));
  useEffect(() => {
    if (turn > 0) audit.reload();
  }, [turn]);
  const calls = audit.data?.calls.filter((call) => call.path.includes(about));
  return html`<${Panel} title=${title} note="audit log of this replica" flush>
    ${calls === undefined
      ? html`<p class="pad-note muted">${audit.error?.status === 403 ? `Not for this credential: ${audit.error.detail}` : audit.error ? audit.error.title : "Loading…"}</p>`
      : calls.length === 0
        ? html`<p class="pad-note muted">None among the last calls that this replica remembers.</p>`
        : html`<${CallTable} calls=${calls} />`}
  <//>`;
}
