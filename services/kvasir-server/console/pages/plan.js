// What a context costs and which level fits: a form, calculated by the service.

import { call } from "../api.js";
import { Badge, Failure, Legend, Loading, PageHead, Panel, Table, Tile } from "../components.js";
import * as format from "../format.js";
import { useModels } from "../models.js";
import { useLoaded, useResource } from "../resource.js";
import { html, useState } from "../view.js";

/** @typedef {import("../types.js").Plan} Plan */
/** @typedef {import("../types.js").PlanOptions} PlanOptions */
/** @typedef {import("../types.js").PlanLink} Link */
/** @typedef {import("../types.js").PlanLevel & {at: number}} Level */
/** @typedef {import("../types.js").PlanRate} Rate */

/** @type {Record<string, "good" | "accent" | undefined>} */
const SOURCES = { measured: "good", published: "accent", assumed: undefined };

/** What the form begins with. @param {{name: string}[]} all @param {string} name */
const preferred = (all, name) => (all.find((one) => one.name === name) ?? all[0])?.name;

/** @param {string} text @returns {number[] | null} bits a second */
function bandwidths(text) {
  const all = text.split(/[\s,]+/).filter((word) => word !== "").map(Number);
  return all.length >= 1 && all.length <= 16 && all.every((gigabits) => gigabits > 0 && gigabits <= 1e5) ? all.map((gigabits) => gigabits * 1e9) : null;
}

/** @param {string} text @param {number} most */
function positive(text, most) {
  const value = Number(text);
  return text.trim() !== "" && value > 0 && value <= most ? value : null;
}

/** @param {{id: string, label: string, value: string, set: (value: string) => void, note?: string, mode?: string}} props */
function Field({ id, label, value, set, note, mode = "decimal" }) {
  return html`<div class="field">
    <label for=${id}>${label}</label>
    <input id=${id} type="text" inputmode=${mode} value=${value} autocomplete="off" placeholder=${note ?? ""} onInput=${(/** @type {Event} */ event) => set(/** @type {HTMLInputElement} */ (event.target).value)} />
  </div>`;
}

/** @param {{query: URLSearchParams}} props */
export default function PlanPage({ query: asked }) {
  const options = /** @type {import("../resource.js").Resource<PlanOptions>} */ (useResource("/v1/plan"));
  const head = html`<${PageHead} title="Plan">For one context of a model: the level that meets a time to first token over a link, the monthly cost of storing it, and the reuses that pay for it.<//>`;
  if (options.data === undefined) {
    return html`${head}<section class="panel">${options.error ? html`<${Failure} error=${options.error} retry=${options.reload} />` : html`<${Loading} lines=${6} />`}</section>`;
  }
  return html`${head}<${Form} options=${options.data} own=${asked.get("model_id") ?? ""} />`;
}

/** @param {{options: PlanOptions, own: string}} props */
function Form({ options, own }) {
  const models = useModels();
  const [model, setModel] = useState(own === "" ? (preferred(options.models, "llama-3.1-8b") ?? "") : own);
  const [parameters, setParameters] = useState("");
  const [tokens, setTokens] = useState("8192");
  const [link, setLink] = useState("1, 3, 10");
  const [slo, setSlo] = useState("250");
  const [gpu, setGpu] = useState(preferred(options.gpus, "h100") ?? "");
  const [gpus, setGpus] = useState("1");
  const [profile, setProfile] = useState("");
  const [problem, setProblem] = useState("");
  const [question, setQuestion] = useState(/** @type {Record<string, unknown> | null} */ (null));
  const registered = !options.models.some((one) => one.name === model);
  const profiles = /** @type {import("../resource.js").Resource<import("../types.js").ProfileList>} */ (useResource(registered && model !== "" ? `/v1/models/${encodeURIComponent(model)}/profiles` : null));

  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    const links = bandwidths(link);
    const count = positive(tokens, 1e9);
    const time = slo.trim() === "" ? undefined : positive(slo, 1e7);
    const many = positive(gpus, 1e4);
    const size = positive(parameters, 1e6);
    const wrong = links === null ? "Enter 1 to 16 bandwidths in Gbit/s." : count === null || !Number.isInteger(count) ? "Tokens must be a whole number." : time === null ? "The time to first token must be in milliseconds, or empty." : many === null || !Number.isInteger(many) ? "GPUs must be a whole number." : registered && size === null ? "A registered model's spec does not say how many parameters process a token. Enter them, in 10⁹." : "";
    setProblem(wrong);
    if (wrong !== "") return;
    setQuestion({
      ...(registered ? { model_id: model, parameters: size, ...(profile === "" ? {} : { profile_hash: profile }) } : { model }),
      tokens: count,
      bandwidths: links,
      ...(time === undefined || time === null ? {} : { slo_s: time / 1000 }),
      gpu,
      gpus: many,
    });
  };
  const value = (/** @type {Event} */ event) => /** @type {HTMLInputElement} */ (event.target).value;
  return html`
    <${Panel} title="What to plan for">
      <form class="form" onSubmit=${submit}>
        <div class="field">
          <label for="plan-model">Model</label>
          <select id="plan-model" value=${model} onChange=${(/** @type {Event} */ event) => {
            setModel(value(event));
            setProfile("");
          }}>
            <optgroup label="Well known">${options.models.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}</optgroup>
            ${models.models.length > 0 || registered
              ? html`<optgroup label="Registered here">
                  ${registered && !models.models.some((one) => one.model_id === model) ? html`<option value=${model}>${format.short(model)}</option>` : null}
                  ${models.models.map((one) => html`<option key=${one.model_id} value=${one.model_id}>${models.name(one.model_id)}</option>`)}
                </optgroup>`
              : null}
          </select>
        </div>
        ${registered
          ? html`<${Field} id="plan-parameters" label="Parameters of a token, 10⁹" value=${parameters} set=${setParameters} note="8.03" />
              <div class="field">
                <label for="plan-profile">Levels of</label>
                <select id="plan-profile" value=${profile} onChange=${(/** @type {Event} */ event) => setProfile(value(event))}>
                  <option value="">assumptions</option>
                  ${(profiles.data?.profiles ?? []).map((one) => html`<option key=${one.profile_hash} value=${one.profile_hash}>profile ${format.short(one.profile_hash)}</option>`)}
                </select>
              </div>`
          : null}
        <${Field} id="plan-tokens" label="Tokens of the context" value=${tokens} set=${setTokens} mode="numeric" />
        <${Field} id="plan-link" label="Links, Gbit/s" value=${link} set=${setLink} />
        <${Field} id="plan-slo" label="Time to first token, ms" value=${slo} set=${setSlo} note="no deadline" />
        <div class="field">
          <label for="plan-gpu">GPU to compute it</label>
          <select id="plan-gpu" value=${gpu} onChange=${(/** @type {Event} */ event) => setGpu(value(event))}>
            ${options.gpus.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}, ${format.dollars(one.usd_per_hour)}/h</option>`)}
          </select>
        </div>
        <${Field} id="plan-gpus" label="GPUs together" value=${gpus} set=${setGpus} mode="numeric" />
        <div class="row full">
          <button type="submit" class="primary">Calculate</button>
          ${problem === "" ? null : html`<span class="bad-text" role="alert">${problem}</span>`}
        </div>
      </form>
    <//>
    ${question === null ? null : html`<${Answer} question=${question} />`}
  `;
}

/** @param {{question: Record<string, unknown>}} props */
function Answer({ question }) {
  const plan = /** @type {import("../resource.js").Resource<Plan>} */ (useLoaded(JSON.stringify(question), (signal) => call("POST", "/v1/plan", { body: question, signal })));
  if (plan.data === undefined) {
    return html`<section class="panel" aria-label="Answer">${plan.error ? html`<${Failure} error=${plan.error} retry=${plan.reload} />` : html`<${Loading} lines=${6} />`}</section>`;
  }
  const data = plan.data;
  const slo_s = /** @type {number | undefined} */ (question["slo_s"]);
  return html`
    <dl class="tiles">
      <${Tile} label="Storage a month" value=${format.dollars(data.month_usd)} sub=${`${format.bytes(data.bytes_stored)} stored`} />
      <${Tile} label="Computing it" value=${format.duration(data.recompute_s * 1000)} sub=${`${format.dollars(data.recompute_usd)} each time, ${format.plural(data.gpus_needed, "GPU")} needed`} />
      <${Tile} label="Loading it" value=${format.dollars(data.load_usd)} sub="each time" />
      <${Tile} label="Pays from" value=${data.break_even_reuses == null ? "never" : `${format.number(data.break_even_reuses)} reuses`} sub=${data.break_even_reuses == null ? "loading costs more than computing" : "a month"} />
      <${Tile} label="Uncompressed, fp16" value=${format.bytes(data.bytes.fp16)} sub=${`fp8 ${format.bytes(data.bytes.fp8)}, int4 ${format.bytes(data.bytes.int4)}`} />
    </dl>
    ${data.links.map((link) => html`<${Ways} key=${link.bits_per_second} link=${link} slo_s=${slo_s} />`)}
    <div class="grid">
      <${Panel} title="Levels used" flush>
        <${Table} caption="Levels" rows=${data.levels.map((level, at) => ({ ...level, at }))} id=${(/** @type {Level} */ row) => String(row.at)} columns=${[
          { title: "Level", head: true, cell: (/** @type {Level} */ row) => row.at },
          { title: "Bits an element", end: true, cell: (/** @type {Level} */ row) => format.number(row.bits_per_element.value) },
          { title: "Source", cell: (/** @type {Level} */ row) => html`<${Badge} tone=${SOURCES[row.bits_per_element.source]}>${row.bits_per_element.source}<//>` },
          { title: "KL", end: true, cell: (/** @type {Level} */ row) => (!row.kl ? "–" : format.number(row.kl.value)) },
        ]} />
      <//>
      <${Panel} title="Rates used" flush>
        <${Table} caption="Rates" rows=${data.rates} id=${(/** @type {Rate} */ row) => row.name} columns=${[
          { title: "Rate", head: true, cell: (/** @type {Rate} */ row) => row.name.replaceAll("_", " ") },
          { title: "Value", end: true, cell: (/** @type {Rate} */ row) => `${format.number(row.value)} ${row.unit}` },
          { title: "Source", cell: (/** @type {Rate} */ row) => html`<${Badge} tone=${SOURCES[row.source]}>${row.source}<//>` },
        ]} />
      <//>
    </div>
  `;
}

/** @param {{link: Link, slo_s: number | undefined}} props */
function Ways({ link, slo_s }) {
  const longest = Math.max(...link.ways.map((way) => way.seconds), slo_s ?? 0);
  const best = link.fits == null ? undefined : link.ways[link.fits];
  return html`
    <${Panel} title=${`Over ${format.bitRate(link.bits_per_second)}`} note=${slo_s === undefined ? "" : best === undefined ? "no way is in time" : html`<${Badge} tone="good">${best.name} is in time<//>`}>
      <div class="stack-tight">
        ${link.ways.map((way, at) => {
          const words = `${way.name}: ${format.duration(way.seconds * 1000)}${way.bytes > 0 ? `, ${format.bytes(way.bytes)}` : ""}`;
          const tone = way.within_slo == null ? "fill" : way.within_slo ? "fill good" : "fill rest";
          return html`<div class="meter-row ways" key=${way.name}>
            <span class="name">${at === link.fits ? html`<strong>${way.name}</strong>` : way.name}</span>
            <div class="way" role="img" aria-label=${words}>
              <span class=${tone} style=${{ width: `${Math.max(0.3, (100 * way.seconds) / (longest || 1))}%` }}></span>
              ${slo_s === undefined ? null : html`<i style=${{ left: `${(100 * slo_s) / (longest || 1)}%` }}></i>`}
            </div>
            <span class="end">${format.duration(way.seconds * 1000)} <span class="muted">${way.bytes > 0 ? format.bytes(way.bytes) : ""}</span></span>
          </div>`;
        })}
      </div>
      ${slo_s === undefined ? null : html`<${Legend} items=${[{ tone: "fill good", name: "in time" }, { tone: "fill rest", name: "too late" }, { tone: "deadline-swatch", name: `deadline ${format.duration(slo_s * 1000)}` }]} />`}
    <//>
  `;
}
