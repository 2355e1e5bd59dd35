// Work on the store as a whole, on one tenant or on the replica's index: started, watched, cancelled.

import { call } from "../api.js";
import { Badge, Confirm, Empty, Loaded, PageHead, Panel, Table, Time, say } from "../components.js";
import * as format from "../format.js";
import { useResource } from "../resource.js";
import { html, useState } from "../view.js";

/** @typedef {import("../types.js").Job} Job */
/** @typedef {import("../types.js").JobList} JobList */

const RUNNING_MS = 1_000;
const IDLE_MS = 10_000;

/** @type {Record<string, string>} */
const NAMES = { gc: "Garbage collection", scrub: "Scrub", seal: "Seal a tenant", rebuild_index: "Rebuild the index" };
/** @type {Record<string, string>} */
const WHAT = {
  gc: "Removes what expired, was removed or is over the capacity.",
  scrub: "Reads every object and compares it with its name; sets corrupt ones aside.",
  seal: "Moves a tenant to its first key: it gets a new, encrypted salt, and its unencrypted chunks, contexts and uploads are removed. The cache fills again, encrypted. Every replica must already have the key.",
  rebuild_index: "Lists the store and adds every chunk to this replica's index, under traffic. An index also fills by itself; with more than eight members, each replica needs its own part only.",
};
/** Kinds that can be tried without an effect. */
const HAS_DRY_RUN = ["gc", "scrub"];
/** @type {Record<string, "good" | "warn" | "bad" | "accent">} */
const TONES = { running: "accent", done: "good", failed: "bad", cancelled: "warn" };

/** A count with its unit, by its name. @param {string} name @param {number} value */
const counted = (name, value) => (name.includes("bytes") ? format.bytes(value) : format.count(value));

/** @param {{job: Job}} props */
function Counts({ job }) {
  const all = Object.entries(job.counts);
  const entries = all.filter(([, value]) => value !== 0);
  if (entries.length === 0) return html`<span class="muted">${all.length === 0 ? "nothing yet" : "found nothing"}</span>`;
  return html`<span class="counts" title=${`also counted, none: ${all.filter(([, value]) => value === 0).map(([name]) => name).join(", ")}`}>${entries.map(([name, value]) => html`<span key=${name}><span class="muted">${name.replaceAll("_", " ")}</span> ${counted(name, value)}</span>`)}</span>`;
}

export default function Jobs() {
  const [fast, setFast] = useState(false);
  const jobs = /** @type {import("../resource.js").Resource<JobList>} */ (useResource("/v1/admin/jobs", { every_ms: fast ? RUNNING_MS : IDLE_MS }));
  const running = jobs.data?.jobs.some((job) => job.state === "running") ?? false;
  if (running !== fast) setFast(running);
  const [kind, setKind] = useState("gc");
  const [dry, setDry] = useState(true);
  const [megabytes, setMegabytes] = useState("");
  const [tenant, setTenant] = useState("");
  const [starting, setStarting] = useState(false);
  const [cancelling, setCancelling] = useState(/** @type {Job | null} */ (null));
  const speed = Number(megabytes);
  const bad = kind === "scrub" && megabytes !== "" && !(Number.isFinite(speed) && speed >= 0 && speed <= 1e6);
  const unnamed = kind === "seal" && tenant === "";
  const counts_only = dry && HAS_DRY_RUN.includes(kind);
  const start = async () => {
    const bytes_per_second = kind === "scrub" && megabytes !== "" ? Math.round(speed * 1e6) : undefined;
    const limit = bytes_per_second === undefined ? {} : { bytes_per_second };
    await call("POST", "/v1/admin/jobs", { body: { kind, dry_run: counts_only, ...limit, ...(kind === "seal" ? { tenant } : {}) } });
    say("The job was started.");
    jobs.reload();
  };
  const cancel = async () => {
    await call("POST", `/v1/admin/jobs/${encodeURIComponent(cancelling?.job_id ?? "")}/cancel`);
    say("The job stops at its next safe point.");
    jobs.reload();
  };
  return html`
    <${PageHead} title="Jobs">Work that an operator starts by hand. A job runs on the replica that started it, one of a kind at a time.<//>
    <${Panel} title="Start a job">
      <form class="form" onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        if (!bad && !unnamed) setStarting(true);
      }}>
        <div class="field full">
          <label for="kind">What to do</label>
          <select id="kind" value=${kind} onChange=${(/** @type {Event} */ event) => setKind(/** @type {HTMLSelectElement} */ (event.target).value)}>
            ${Object.entries(NAMES).map(([value, name]) => html`<option key=${value} value=${value}>${name}</option>`)}
          </select>
        </div>
        ${kind === "scrub"
          ? html`<div class="field">
              <label for="speed">MB a second, at most</label>
              <input id="speed" type="text" inputmode="decimal" placeholder="no limit" value=${megabytes} aria-invalid=${bad ? "true" : "false"} onInput=${(/** @type {Event} */ event) => setMegabytes(/** @type {HTMLInputElement} */ (event.target).value.trim())} />
            </div>`
          : null}
        ${kind === "seal"
          ? html`<div class="field">
              <label for="tenant">Tenant</label>
              <input id="tenant" type="text" autocomplete="off" spellcheck="false" required value=${tenant} onInput=${(/** @type {Event} */ event) => setTenant(/** @type {HTMLInputElement} */ (event.target).value.trim())} />
            </div>`
          : null}
        ${HAS_DRY_RUN.includes(kind)
          ? html`<label class="check"><input type="checkbox" checked=${dry} onChange=${(/** @type {Event} */ event) => setDry(/** @type {HTMLInputElement} */ (event.target).checked)} /> Only count (dry run)</label>`
          : null}
        <div class="row"><button type="submit" class="primary">Start…</button>${bad ? html`<span class="bad-text" role="alert">A number of megabytes.</span>` : null}</div>
      </form>
      <p class="muted">${WHAT[kind]}</p>
    <//>
    <${Panel} title="Jobs of this replica" note=${running && jobs.error === undefined ? "live, each second" : ""} flush>
      <${Loaded} of=${jobs} lines=${4}>
        ${(/** @type {JobList} */ list) =>
          list.jobs.length === 0
            ? html`<${Empty} title="No jobs">None was started through this replica since it started. It collects by itself as configured.<//>`
            : html`<${Table}
                caption="Jobs"
                rows=${list.jobs}
                id=${(/** @type {Job} */ row) => row.job_id}
                columns=${[
                  { title: "Job", head: true, tight: true, cell: (/** @type {Job} */ row) => html`<span class="two-lines"><span>${NAMES[row.kind] ?? row.kind}${row.tenant ? html` <code>${row.tenant}</code>` : null}${row.dry_run ? html` <${Badge}>dry run<//>` : null}</span><small><code title=${row.job_id}>${row.job_id.slice(0, 13)}…</code></small></span>` },
                  { title: "State", cell: (/** @type {Job} */ row) => html`<span class="two-lines"><span><${Badge} tone=${TONES[row.state]}>${row.state}<//></span>${row.error ? html`<small class="bad-text break">${row.error}</small>` : null}</span>` },
                  { title: "Started", tight: true, cell: (/** @type {Job} */ row) => html`<${Time} lines at=${row.started_at_ms} />` },
                  { title: "Took", end: true, cell: (/** @type {Job} */ row) => format.duration(row.elapsed_ms) },
                  { title: "Progress", cell: (/** @type {Job} */ row) => html`<${Counts} job=${row} />` },
                  { title: "", end: true, cell: (/** @type {Job} */ row) => (row.state === "running" ? html`<button type="button" class="small danger" onClick=${() => setCancelling(row)}>Cancel</button>` : null) },
                ]}
              />`}
      <//>
    <//>
    <${Confirm} open=${starting} danger=${!counts_only && kind !== "rebuild_index"} title=${counts_only ? "Start a dry run?" : "Start this job?"} action=${counts_only ? "Start the dry run" : "Start the job"} run=${start} close=${() => setStarting(false)}>
      <p>${NAMES[kind]}${kind === "seal" ? html` <code>${tenant}</code>` : null}. ${WHAT[kind]}</p>
      <p>${counts_only ? "Nothing is removed: it only counts. " : kind === "seal" ? "What it removes does not come back. " : kind === "rebuild_index" ? "" : "It works on the objects of all tenants. "}Its requests cost what the store's provider charges.</p>
    <//>
    <${Confirm} open=${cancelling !== null} danger title="Cancel this job?" action="Cancel the job" run=${cancel} close=${() => setCancelling(null)}>
      <p>It stops at its next safe point, and keeps what it has done. Start it again to finish.</p>
      <p><code class="break">${cancelling?.job_id ?? ""}</code></p>
    <//>
  `;
}
