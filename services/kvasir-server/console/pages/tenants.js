// What the credential's tenant keeps, against what it may; and what tenants have in the hot tier.

import { Bar, Legend, Loaded, PageHead, Panel, Tile } from "../components.js";
import * as format from "../format.js";
import { useModels } from "../models.js";
import { useResource } from "../resource.js";
import { link } from "../route.js";
import { latest, line, useSeries } from "../series.js";
import { html } from "../view.js";

/** @typedef {import("../types.js").Usage} Usage */

/** @param {{title: string, used: number, most: number | null | undefined, show: (value: number) => string}} props */
function Quota({ title, used, most, show }) {
  const share = most == null ? 0 : most === 0 ? 1 : used / most;
  return html`<div class="meter-row">
    <span class="name">${title}</span>
    ${most != null
      ? html`<${Bar} total=${1} label=${`${title}: ${show(used)} of ${show(most)}`} parts=${[{ value: share, tone: share >= 0.95 ? "fill bad" : share >= 0.8 ? "fill warn" : "fill", name: format.percent(share) }]} />`
      : html`<span class="muted">no limit</span>`}
    <span class="end">${show(used)}${most != null ? html` <span class="muted">of ${show(most)}</span>` : null}</span>
  </div>`;
}

/** @param {{usage: Usage}} props */
function Own({ usage }) {
  const models = useModels();
  const byModel = Object.entries(usage.bytes_by_model ?? {}).sort((a, b) => Number(b[1]) - Number(a[1]));
  const most = Math.max(1, ...byModel.map(([, bytes]) => Number(bytes)));
  // As the service counts against the quotas.
  const allBytes = usage.bytes + usage.removed_bytes + usage.profile_bytes + usage.other_bytes;
  const allObjects =
    usage.objects + usage.removed_objects + usage.profiles + usage.context_versions + usage.waiting_uploads + (usage.records ?? 0);
  return html`
    <dl class="tiles">
      <${Tile} label="Stored" value=${format.bytes(usage.bytes)} sub=${format.plural(usage.objects, "object")} />
      <${Tile} label="Removed, not yet deleted" value=${format.bytes(usage.removed_bytes ?? 0)} sub=${format.plural(usage.removed_objects ?? 0, "object")} />
      <${Tile} label="Profiles" value=${format.count(usage.profiles ?? 0)} sub=${format.bytes(usage.profile_bytes ?? 0)} />
      <${Tile} label="Context versions" value=${format.count(usage.context_versions ?? 0)} />
      <${Tile} label="Uploads not committed" value=${format.count(usage.waiting_uploads ?? 0)} />
      <${Tile} label="Models and namespaces" value=${format.count(usage.records ?? 0)} />
    </dl>
    <div class="grid">
      <${Panel} title="Quotas" note="on all that is stored, also what is removed but not yet deleted">
        <${Quota} title="Bytes" used=${allBytes} most=${usage.stored_bytes_max} show=${format.bytes} />
        <${Quota} title="Objects" used=${allObjects} most=${usage.stored_objects_max} show=${format.count} />
        <p class="muted">A write beyond a quota gets status 507 and the quota's name. Requests beyond the tenant's rate get 429.</p>
      <//>
      <${Panel} title="By model">
        ${byModel.length === 0
          ? html`<p class="muted">Nothing is stored.</p>`
          : byModel.map(
              ([id, bytes]) => html`<div class="meter-row" key=${id}>
                <a class="name" href=${link(["models", id])} title=${id}>${models.name(id)}</a>
                <${Bar} total=${most} label=${`${models.name(id)}: ${format.bytes(Number(bytes))}`} parts=${[{ value: Number(bytes), tone: "fill", name: format.bytes(Number(bytes)) }]} />
                <span class="end">${format.bytes(Number(bytes))}</span>
              </div>`,
            )}
      <//>
    </div>
  `;
}

function Hot() {
  const series = useSeries();
  const { data, error } = series;
  if (data === undefined) {
    return html`<${Panel} title="Tenants in the hot tier">
      <p class="muted">${error?.status === 403 ? `Not for this credential: ${error.detail}` : error ? error.title : "Loading…"}</p>
    <//>`;
  }
  const tenants = data.now.hot_tenants;
  const room = ["cpu", "disk"].reduce((sum, medium) => sum + (latest(line(data, "hot_capacity_bytes", { medium })) ?? 0), 0);
  const refused = latest(line(data, "errors", { status: "4xx" }));
  return html`<${Panel} title="Tenants in the hot tier" note=${`of this replica, ${format.bytes(room)} in all`}>
    ${tenants.length === 0
      ? html`<p class="muted">Nothing is kept in memory or on disk.</p>`
      : tenants.map(
          (one) => html`<div class="meter-row" key=${one.tenant}>
            <a class="name" href=${link(["audit"], { tenant: one.tenant })}>${one.tenant}</a>
            <${Bar} total=${room} label=${`${one.tenant}: memory ${format.bytes(one.cpu_bytes)}, disk ${format.bytes(one.disk_bytes)}`} parts=${[
              { value: one.cpu_bytes, tone: "medium-cpu", name: "memory" },
              { value: one.disk_bytes, tone: "medium-disk", name: "disk" },
            ]} />
            <span class="end">${format.bytes(one.cpu_bytes + one.disk_bytes)}</span>
          </div>`,
        )}
    ${tenants.length === 0 ? null : html`<${Legend} items=${[{ tone: "medium-cpu", name: "memory" }, { tone: "medium-disk", name: "disk" }]} />`}
    <p class="muted">Requests refused (4xx, including throttled ones): ${refused === null ? "–" : format.rate(refused)}.</p>
  <//>`;
}

export default function Tenants() {
  // The service lists all objects of the tenant for this, which may take minutes: once, and again when asked.
  const usage = /** @type {import("../resource.js").Resource<Usage>} */ (useResource("/v1/usage", { endless: true }));
  return html`
    <${PageHead}
      title="Tenants"
      actions=${html`
        ${usage.data?.as_of_s_ago ? html`<span class="muted">Listed ${format.duration(usage.data.as_of_s_ago * 1000)} ago</span>` : null}
        <button type="button" disabled=${usage.loading} onClick=${usage.reload}>List again</button>
      `}
    >What this tenant keeps in the store, and how the tenants share the hot tier.<//>
    <${Loaded} of=${usage} lines=${5}>${(/** @type {Usage} */ data) => html`<${Own} usage=${data} />`}<//>
    <${Hot} />
  `;
}
