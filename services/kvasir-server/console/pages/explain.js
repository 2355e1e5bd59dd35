// Why a prompt matches as far as it does: token ids in, sentences out. The ids come pasted, or in the fragment from
// `kvasir context explain --open`; they go nowhere but into the request's body.

import { call } from "../api.js";
import { ChunkTable } from "../chunks.js";
import { Failure, Hash, Legend, Loading, PageHead, Panel, Time } from "../components.js";
import * as format from "../format.js";
import { mediumName } from "../levels.js";
import { useModels } from "../models.js";
import { useLoaded } from "../resource.js";
import { html, useEffect, useState } from "../view.js";

/** @typedef {import("../types.js").ExplainResponse} ExplainResponse */
/** @typedef {import("../types.js").LookupResponse} LookupResponse */
/** @typedef {import("../types.js").Cause} Cause */
/** @typedef {{model_id: string, namespace: string, tokens: number[]}} Question */

const TOKENS_MAX = 1_048_576;
const BLOCK_TOKENS = 16;
const HASH = /^[0-9a-f]{64}$/i;
const NAME = /^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,127}$/;

/** @param {string} text @returns {number[] | string} ids, or what is wrong */
export function tokenIds(text) {
  const words = text.split(/[\s,[\]]+/).filter((word) => word !== "");
  if (words.length === 0) return "Paste at least one token id.";
  if (words.length > TOKENS_MAX) return `At most ${format.count(TOKENS_MAX)} token ids; these are ${format.count(words.length)}.`;
  const ids = [];
  for (const word of words) {
    const id = Number(word);
    if (!/^\d+$/.test(word) || id > 0xffff_ffff) return `“${word.slice(0, 40)}” is not a token id. The service has no tokenizer: paste numbers, separated by spaces or commas.`;
    ids.push(id);
  }
  return ids;
}

/** @type {Record<string, {title: string, tone: "good" | "warn" | "bad"}>} */
const REASONS = {
  stored: { title: "Everything matches", tone: "good" },
  other_model: { title: "Stored under another model", tone: "warn" },
  other_namespace: { title: "Stored in another namespace", tone: "warn" },
  removed: { title: "Stored, then removed", tone: "bad" },
  expired: { title: "Stored, then expired", tone: "warn" },
  evicted: { title: "Stored, then evicted", tone: "warn" },
  quarantined: { title: "Its bytes were corrupt", tone: "bad" },
  not_admitted: { title: "Sent, but not accepted", tone: "bad" },
  only_whole: { title: "This model reuses whole contexts only", tone: "warn" },
  never_stored: { title: "Never stored", tone: "warn" },
};

/** @param {{cause: Cause}} props */
function CauseItem({ cause }) {
  const known = REASONS[cause.reason] ?? { title: cause.reason, tone: "warn" };
  const detail = cause.detail.charAt(0).toUpperCase() + cause.detail.slice(1);
  return html`<li class=${known.tone}>
    <strong>${known.title}${cause.tokens > 0 && cause.reason !== "stored" ? html`<span class="muted"> – ${format.plural(cause.tokens, "token")} would match otherwise</span>` : null}</strong>
    <span class="break">${detail}${/[.!?]$/.test(detail) ? "" : "."}</span>
    ${cause.at_ms || cause.by
      ? html`<span class="muted">${cause.by ? `By ${{ request: "a request", collector: "the collector", scrub: "a scrub", read: "a read" }[cause.by] ?? cause.by}` : ""}${cause.at_ms ? html` at <${Time} at=${cause.at_ms} />` : null}</span>`
      : null}
    ${cause.namespace ? html`<span>Namespace <strong class="break">${cause.namespace}</strong></span>` : null}
    ${cause.model_id ? html`<span>Model <${Hash} value=${cause.model_id} /></span>` : null}
    ${cause.seq_hash ? html`<span>Chunk <${Hash} value=${cause.seq_hash} /></span>` : null}
    ${(cause.differences ?? []).map((one) => html`<span class="break" key=${one.field}><code>${one.field}</code>: asked <strong>${one.asked}</strong>, stored <strong>${one.stored}</strong></span>`)}
  </li>`;
}

/** @param {{answer: ExplainResponse}} props */
function Match({ answer }) {
  const { tokens, matched_tokens } = answer;
  const share = tokens === 0 ? 0 : matched_tokens / tokens;
  const blocks = Math.floor(matched_tokens / BLOCK_TOKENS);
  const words = `${format.count(matched_tokens)} of ${format.plural(tokens, "token")} match`;
  return html`<div class="stack-tight">
    <p><strong>${words}</strong> (${format.percent(share)}): ${format.plural(blocks, "block")} of ${BLOCK_TOKENS}${matched_tokens % BLOCK_TOKENS > 0 ? ` and a tail of ${matched_tokens % BLOCK_TOKENS}` : ""}.</p>
    <div class="match" role="img" aria-label=${words}>
      <span class="fill good" style=${{ width: `${100 * share}%` }}></span>
      <span class="missing" style=${{ width: `${100 * (1 - share)}%` }}></span>
    </div>
    <${Legend} items=${[{ tone: "fill good", name: "matches" }, { tone: "missing", name: "to compute" }]} />
  </div>`;
}

/** @param {{answer: ExplainResponse}} props */
function Departures({ answer }) {
  const departures = answer.departures ?? [];
  if (departures.length === 0) return null;
  const why = (/** @type {string} */ reason) => ({ capacity: "to make room", not_admitted: "because it was not admitted", corrupt: "because its bytes were corrupt", removed: "because it was removed" })[reason] ?? reason;
  return html`<${Panel} title="Matched, but slower than it was" note="chunks that left memory or disk of this replica">
    <ul class="sentences">
      ${departures.map(
        (one, i) => html`<li key=${i}>
          <span>Chunk <${Hash} value=${one.seq_hash} /> left ${mediumName(one.medium)} ${format.duration(one.ago_ms)} ago ${why(one.reason)}: ${format.bytes(one.bytes)} from level ${one.level} upwards. It is now read from ${mediumName(one.now_in)}.</span>
          <span class="muted">It had been kept for ${format.duration(one.age_ms)} and unused for ${format.duration(one.idle_ms)}${one.request_type ? `; last used by a request of type ${one.request_type}` : ""}${one.turn ? `, turn ${one.turn}` : ""}.</span>
        </li>`,
      )}
    </ul>
  <//>`;
}

/** @param {{question: Question}} props */
function Answer({ question }) {
  const key = JSON.stringify(question);
  const explained = /** @type {import("../resource.js").Resource<ExplainResponse>} */ (useLoaded(`explain ${key}`, (signal) => call("POST", "/v1/explain", { body: question, signal })));
  const found = /** @type {import("../resource.js").Resource<LookupResponse>} */ (useLoaded(`lookup ${key}`, (signal) => call("POST", "/v1/lookup", { body: { ...question, fresh: true }, signal })));
  if (explained.data === undefined) {
    return html`<section class="panel" aria-label="Answer">${explained.error ? html`<${Failure} error=${explained.error} retry=${explained.reload} />` : html`<${Loading} lines=${5} />`}</section>`;
  }
  const answer = explained.data;
  const chunks = found.data?.chunks ?? [];
  const failed = found.data === undefined ? found.error : undefined;
  return html`
    <${Panel} title="How far it matches" aside=${html`<button type="button" class="small" onClick=${() => {
      explained.reload();
      found.reload();
    }}>Ask again</button>`}>
      <${Match} answer=${answer} />
      <ul class="sentences">${answer.causes.map((cause, i) => html`<${CauseItem} key=${i} cause=${cause} />`)}</ul>
    <//>
    <${Departures} answer=${answer} />
    ${failed === undefined ? null : html`<${Panel} title="Chunks that match" flush><${Failure} error=${failed} retry=${found.reload} /><//>`}
    ${chunks.length === 0 ? null : html`<${Panel} title="Chunks that match" note=${html`${format.plural(chunks.length, "chunk")}`} flush><${ChunkTable} hashes=${chunks.map((chunk) => chunk.seq_hash)} found=${chunks} /><//>`}
  `;
}

/** @param {{query: URLSearchParams}} props */
export default function Explain({ query: asked }) {
  // Another address is another question.
  return html`<${Prompt} key=${asked.toString()} asked=${asked} />`;
}

/** @param {{asked: URLSearchParams}} props */
function Prompt({ asked }) {
  const models = useModels();
  const [model, setModel] = useState(asked.get("model_id") ?? "");
  const [namespace, setNamespace] = useState(asked.get("namespace") ?? "default");
  const [text, setText] = useState(asked.get("tokens") ?? "");
  const [problem, setProblem] = useState("");
  const [question, setQuestion] = useState(/** @type {Question | null} */ (null));
  const ask = () => {
    const ids = tokenIds(text);
    const id = model === "" ? (models.models[0]?.model_id ?? "") : model.trim();
    const wrong = !HASH.test(id) ? "Choose a model." : !NAME.test(namespace) ? "A namespace has letters, digits, dots, underscores and hyphens, at most 128." : typeof ids === "string" ? ids : "";
    setProblem(wrong);
    setQuestion(wrong !== "" || typeof ids === "string" ? null : { model_id: id.toLowerCase(), namespace, tokens: ids });
  };
  useEffect(() => {
    if (asked.get("tokens") !== null && asked.get("model_id") !== null) ask();
  }, []);
  const pasted = model !== "" && !models.models.some((one) => one.model_id === model);
  const ids = text === "" ? 0 : text.split(/[\s,[\]]+/).filter((word) => word !== "").length;
  return html`
    <${PageHead} title="Explain">How many blocks of a prompt are stored, and why the match ends there. For text: <code>kvasir context explain --open</code> tokenises it and opens this page.<//>
    <${Panel} title="Prompt">
      <form class="form" onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        ask();
      }}>
        <div class="field">
          <label for="model">Model</label>
          <select id="model" value=${model === "" ? (models.models[0]?.model_id ?? "") : model} onChange=${(/** @type {Event} */ event) => setModel(/** @type {HTMLSelectElement} */ (event.target).value)}>
            ${models.models.length === 0 && !pasted ? html`<option value="">${models.list.data ? "no models are registered" : models.list.error ? "not known" : "loading…"}</option>` : null}
            ${pasted ? html`<option value=${model}>${format.short(model)}</option>` : null}
            ${models.models.map((one) => html`<option key=${one.model_id} value=${one.model_id}>${models.name(one.model_id)}</option>`)}
          </select>
        </div>
        <div class="field">
          <label for="namespace">Namespace</label>
          <input id="namespace" type="text" maxlength="128" value=${namespace} autocomplete="off" spellcheck="false" onInput=${(/** @type {Event} */ event) => setNamespace(/** @type {HTMLInputElement} */ (event.target).value)} />
        </div>
        <div class="field full">
          <label for="tokens">Token ids, separated by spaces or commas</label>
          <textarea id="tokens" rows="5" spellcheck="false" value=${text} onInput=${(/** @type {Event} */ event) => setText(/** @type {HTMLTextAreaElement} */ (event.target).value)} aria-describedby="tokens-note"></textarea>
          <small id="tokens-note">${format.plural(ids, "token id")}. This page sends them to this service only.</small>
        </div>
        <div class="row full">
          <button type="submit" class="primary">Explain</button>
          ${problem === "" ? null : html`<span class="bad-text break" role="alert">${problem}</span>`}
        </div>
      </form>
    <//>
    ${question === null ? null : html`<${Answer} question=${question} />`}
  `;
}
