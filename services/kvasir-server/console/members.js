// The replicas that share the bucket, as the replica that answers knows them.

import { Badge, Loaded, Panel, Table } from "./components.js";
import * as format from "./format.js";
import { useResource } from "./resource.js";
import { html } from "./view.js";

/** @typedef {import("./types.js").Members} Answer */
/** @typedef {import("./types.js").Member} Member */

const EVERY_MS = 10_000;
const SPLITS_SHOWN = 24;

/** @param {{answer: Answer}} props */
function Splits({ answer }) {
  const { splits } = answer;
  if (splits.length === 0) return html`<p class="pad-note muted">None of the tenant's routes is split: the first 256 tokens of a prompt decide which member keeps it.</p>`;
  return html`<p class="pad-note">
    <span class="muted">${format.plural(splits.length, "route")} of the tenant split: prompts that share ${splits.length === 1 ? "it" : "one of them"} go by their next 256 tokens.</span>${" "}
    ${splits.slice(0, SPLITS_SHOWN).map((route) => html`<code class="break" key=${route}>${route}</code>${" "}`)}
    ${splits.length > SPLITS_SHOWN ? html`<span class="muted">and ${format.plural(splits.length - SPLITS_SHOWN, "other")}</span>` : null}
  </p>`;
}

/** @param {{answer: Answer}} props */
function Known({ answer }) {
  const { members } = answer;
  const weights = members.reduce((sum, member) => sum + member.weight, 0);
  return html`
    ${answer.this == null ? html`<p class="pad-note"><${Badge} tone="warn">The replica that answers is not in its own list<//> Clients that know the list do not send it prompts. <code>cluster.advertise</code> is the URL by which the list has it.</p>` : null}
    <${Table}
      caption="Members"
      tall=${members.length > 12}
      rows=${members}
      id=${(/** @type {Member} */ row) => row.url}
      columns=${[
        { title: "Member", head: true, cell: (/** @type {Member} */ row) => html`<span class="labels"><code class="break">${row.url}</code>${row.url === answer.this ? html`<${Badge} tone="accent">answers this page<//>` : null}</span>` },
        { title: "Zone", tight: true, cell: (/** @type {Member} */ row) => row.zone ?? html`<span class="muted">not known</span>` },
        { title: "Weight", end: true, cell: (/** @type {Member} */ row) => format.number(row.weight) },
        { title: "Share of routes", end: true, cell: (/** @type {Member} */ row) => format.percent(row.weight / weights) },
      ]}
    />
    <${Splits} answer=${answer} />
  `;
}

export function Members() {
  const members = /** @type {import("./resource.js").Resource<Answer>} */ (useResource("/v1/members", { every_ms: EVERY_MS }));
  const count = members.data?.members.length ?? 0;
  const zones = new Set(members.data?.members.map((member) => member.zone ?? "")).size;
  return html`<${Panel} title="Members" note=${count === 0 ? "" : html`${format.plural(count, "replica")}${zones > 1 ? ` in ${zones} zones` : ""}, list <code>${members.data?.epoch ?? ""}</code>`} flush>
    <${Loaded} of=${members} lines=${1}>
      ${(/** @type {Answer} */ answer) =>
        answer.members.length === 0
          ? html`<p class="pad-note muted">No members are configured: this replica knows of no others, and each client uses the address that it was given. With <code>cluster.members</code>, clients send each prompt to a member that keeps it hot.</p>`
          : html`<${Known} answer=${answer} />`}
    <//>
  <//>`;
}
