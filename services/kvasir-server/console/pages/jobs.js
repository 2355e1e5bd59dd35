// Passes over the whole store: started, watched, cancelled.

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
const WHAT = {
  gc: "Garbage collection: removes what expired, was removed or is over the capacity.",
  scrub: "Scrub: reads every object and compares it with its name; sets corrupt ones aside.",
};
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
  const [starting, setStarting] = useState(false);
  const [cancelling, setCancelling] = useState(/** @type {Job | null} */ (null));
  const speed = Number(megabytes);
  const bad = kind === "scrub" && megabytes !== "" && !(Number.isFinite(speed) && speed >= 0 && speed <= 1e6);
  const start = async () => {
    const bytes_per_second = kind === "scrub" && megabytes !== "" ? Math.round(speed * 1e6) : undefined;
    await call("POST", "/v1/admin/jobs", { body: { kind, dry_run: dry, ...(bytes_per_second === undefined ? {} : { bytes_per_second }) } });
    say("The job was started.");
    jobs.reload();
  };
  const cancel = async () => {
    await call("POST", `/v1/admin/jobs/${encodeURIComponent(cancelling?.job_id ?? "")}/cancel`);
    say("The job stops at its next safe point.");
    jobs.reload();
  };
  return html`
    <${PageHead} title="Jobs">Passes over the whole store, of all tenants. A job runs on the replica that started it, one of a kind at a time. <code>kvasir admin</code> also seals tenants and rebuilds an index.<//>
    <${Panel} title="Start a job">
      <form class="form" onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        if (!bad) setStarting(true);
      }}>
        <div class="field">
          <label for="kind">What to do</label>
          <select id="kind" value=${kind} onChange=${(/** @type {Event} */ event) => setKind(/** @type {HTMLSelectElement} */ (event.target).value)}>
            <option value="gc">Garbage collection</option>
            <option value="scrub">Scrub</option>
          </select>
        </div>
        ${kind === "scrub"
          ? html`<div class="field">
              <label for="speed">MB a second, at most</label>
              <input id="speed" type="text" inputmode="decimal" placeholder="no limit" value=${megabytes} aria-invalid=${bad ? "true" : "false"} onInput=${(/** @type {Event} */ event) => setMegabytes(/** @type {HTMLInputElement} */ (event.target).value.trim())} />
            </div>`
          : null}
        <label class="check"><input type="checkbox" checked=${dry} onChange=${(/** @type {Event} */ event) => setDry(/** @type {HTMLInputElement} */ (event.target).checked)} /> Only count (dry run)</label>
        <div class="row"><button type="submit" class="primary">Start…</button>${bad ? html`<span class="bad-text" role="alert">A number of megabytes.</span>` : null}</div>
      </form>
      <p class="muted">${WHAT[kind]}</p>
    <//>
    <${Panel} title="Jobs of this replica" note=${running ? "live, each second" : ""} flush>
      <${Loaded} of=${jobs} lines=${4}>
        ${(/** @type {JobList} */ list) =>
          list.jobs.length === 0
            ? html`<${Empty} title="No jobs">None was started through this replica since it started. It collects by itself as configured.<//>`
            : html`<${Table}
                caption="Jobs"
                rows=${list.jobs}
                id=${(/** @type {Job} */ row) => row.job_id}
                columns=${[
                  { title: "Job", head: true, tight: true, cell: (/** @type {Job} */ row) => html`<span class="two-lines"><span>${row.kind === "gc" ? "Garbage collection" : row.kind === "scrub" ? "Scrub" : row.kind}${row.dry_run ? html` <${Badge}>dry run<//>` : null}</span><small><code title=${row.job_id}>${row.job_id.slice(0, 13)}…</code></small></span>` },
                  { title: "State", cell: (/** @type {Job} */ row) => html`<span class="two-lines"><span><${Badge} tone=${TONES[row.state]}>${row.state}<//></span>${row.error ? html`<small class="bad-text break">${row.error}</small>` : null}</span>` },
                  { title: "Started", tight: true, cell: (/** @type {Job} */ row) => html`<${Time} lines at=${row.started_at_ms} />` },
                  { title: "Took", end: true, cell: (/** @type {Job} */ row) => format.duration(row.elapsed_ms) },
                  { title: "Progress", cell: (/** @type {Job} */ row) => html`<${Counts} job=${row} />` },
                  { title: "", end: true, cell: (/** @type {Job} */ row) => (row.state === "running" ? html`<button type="button" class="small danger" onClick=${() => setCancelling(row)}>Cancel</button>` : null) },
                ]}
              />`}
      <//>
    <//>
    <${Confirm} open=${starting} danger=${!dry} title=${dry ? "Start a dry run?" : "Start this job?"} action=${dry ? "Start the dry run" : "Start the job"} run=${start} close=${() => setStarting(false)}>
      <p>${WHAT[kind]}</p>
      <p>${dry ? "Nothing is removed: it only counts." : "It works on the objects of all tenants."} Its requests cost what the store's provider charges.</p>
    <//>
    <${Confirm} open=${cancelling !== null} danger title="Cancel this job?" action="Cancel the job" run=${cancel} close=${() => setCancelling(null)}>
      <p>It stops at its next safe point. What it has done stays done; the next pass continues from there.</p>
      <p><code class="break">${cancelling?.job_id ?? ""}</code></p>
    <//>
  `;
}
