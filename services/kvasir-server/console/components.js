// What all pages are made of.

import { away } from "./api.js";
import * as format from "./format.js";
import { Observable, useObservable } from "./observable.js";
import { asProblem, behind } from "./resource.js";
import { html, useEffect, useRef, useState } from "./view.js";

/** @typedef {import("./view.js").View} View */
/** @typedef {View | string | number | null | undefined} Content */
/** @typedef {import("./api.js").ApiError} ApiError */

/** @param {{title: string, children?: Content, crumb?: View | null, actions?: Content}} props */
export function PageHead({ title, children, crumb, actions }) {
  useEffect(() => {
    document.title = `${title} – Kvasir`;
  }, [title]);
  return html`
    <div class="page-head">
      <div class="words">
        ${crumb ? html`<p class="crumb">${crumb}</p>` : null}
        <h1 tabindex="-1">${title}</h1>
        ${children ? html`<p>${children}</p>` : null}
      </div>
      ${actions ? html`<div class="actions">${actions}</div>` : null}
    </div>
  `;
}

let panels = 0;
/** @param {{title: string, note?: Content, aside?: Content, flush?: boolean, old?: boolean, children?: any}} props */
export function Panel({ title, note, aside, flush, old, children }) {
  const id = useRef("");
  if (id.current === "") {
    panels += 1;
    id.current = `panel-${panels}`;
  }
  return html`
    <section class="panel" aria-labelledby=${id.current}>
      <header>
        <h2 id=${id.current}>${title}</h2>
        ${note ? html`<span class="note">${note}</span>` : null} ${aside ?? null}
      </header>
      <div class=${`body${flush ? " flush" : ""}${old ? " old" : ""}`}>${children}</div>
    </section>
  `;
}

/** @param {{label: string, value: string, sub?: Content, tone?: string}} props */
export function Tile({ label, value, sub, tone }) {
  const at = value.lastIndexOf(" ");
  const unit = at > 0 ? value.slice(at + 1) : "";
  return html`
    <div class="tile">
      <dt>${label}</dt>
      <dd class=${tone ?? ""}>${at > 0 ? value.slice(0, at) : value}${unit === "" ? null : html`<small>${unit}</small>`}</dd>
      <dd class="sub">${sub ?? ""}</dd>
    </div>
  `;
}

/** @param {{tone?: "good" | "warn" | "bad" | "accent" | undefined, children?: any}} props */
export function Badge({ tone, children }) {
  return html`<span class=${`badge ${tone ?? ""}`}>${children}</span>`;
}

/** @param {{lines?: number}} props */
export function Loading({ lines = 3 }) {
  return html`
    <div class="bones" role="status">
      <span class="hidden">Loading…</span>
      ${Array.from({ length: lines }, () => html`<span class="bone" aria-hidden="true"></span>`)}
    </div>
  `;
}

/** @param {{title: string, children?: any, actions?: Content}} props */
export function Empty({ title, children, actions }) {
  return html`<div class="state"><strong>${title}</strong>${children ? html`<p>${children}</p>` : null}${actions ?? null}</div>`;
}

/** @param {{error: ApiError, retry?: (() => void) | undefined}} props */
export function Failure({ error, retry }) {
  if (error.status === 403) {
    return html`<div class="state" role="note"><strong>Not for this credential</strong><p>${error.detail || "This needs a credential with a higher role."}</p></div>`;
  }
  return html`
    <div class="state" role="alert">
      <strong>${error.title}</strong>
      <p>${error.detail}${error.requestId === "" ? null : html` <span class="nowrap">Request <code>${error.requestId}</code></span>`}</p>
      ${retry ? html`<button type="button" class="small" onClick=${retry}>Try again</button>` : null}
    </div>
  `;
}

/**
 * The state of a resource: its data, else why there is none. Data stays while it is loaded again.
 * @template T
 * @param {{of: import("./resource.js").Resource<T>, lines?: number, children: (data: T) => Content}} props
 */
export function Loaded({ of, lines, children }) {
  if (of.data !== undefined) return children(of.data);
  if (of.error !== undefined) return html`<${Failure} error=${of.error} retry=${of.reload} />`;
  return html`<${Loading} lines=${lines} />`;
}

/** @param {{at: number, lines?: boolean}} props */
export function Time({ at, lines }) {
  if (!Number.isFinite(at) || Math.abs(at) > 8.64e15) return html`<span>–</span>`;
  const utc = format.utc(at);
  return html`<time class=${`time${lines ? " lines" : ""}`} datetime=${new Date(at).toISOString()} title=${utc}>
    ${format.localTime(at)} <small>${format.isUtc(at) ? "UTC" : `${utc.slice(11)}`}</small>
  </time>`;
}

/** A hash, shortened, whole in the title and on the clipboard. @param {{value: string, whole?: boolean}} props */
export function Hash({ value, whole }) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(value);
      say("Copied.");
    } catch {
      say(value);
    }
  };
  return html`<span class="nowrap-hash"
    ><code class="break" title=${value}>${whole ? value : format.short(value)}</code
    ><button type="button" class="icon" title="Copy" aria-label=${`Copy ${format.short(value)}`} onClick=${copy}>
      <svg width="12" height="12" viewBox="0 0 12 12" aria-hidden="true"><path d="M4 1h7v8H9M1 3h7v8H1z" fill="none" stroke="currentColor" /></svg></button
  ></span>`;
}

/** @param {{labels: Record<string, string>}} props */
export function Labels({ labels }) {
  const entries = Object.entries(labels);
  if (entries.length === 0) return html`<span class="muted">none</span>`;
  return html`<span class="labels">${entries.map(([name, value]) => html`<span class="label" key=${name}><b>${name}</b><span>${value}</span></span>`)}</span>`;
}

/**
 * @template R
 * @typedef {{title: string, cell: (row: R) => Content, end?: boolean, tight?: boolean, head?: boolean}} Column
 */

/**
 * @template R
 * @param {{caption: string, columns: Column<R>[], rows: R[], id: (row: R) => string, selected?: string | undefined, tall?: boolean}} props
 */
export function Table({ caption, columns, rows, id, selected, tall }) {
  const side = (/** @type {Column<R>} */ column) => `${column.end ? "end" : ""}${column.tight ? " tight" : ""}`;
  return html`
    <div class=${`scroll${tall ? " tall" : ""}`} tabindex="0" role="group" aria-label=${caption}>
      <table>
        <caption class="hidden">${caption}</caption>
        <thead>
          <tr>${columns.map((column) => html`<th scope="col" class=${side(column)}>${column.title === "" ? html`<span class="hidden">Actions</span>` : column.title}</th>`)}</tr>
        </thead>
        <tbody>
          ${rows.map(
            (row) => html`
              <tr key=${id(row)} class=${selected !== undefined && selected === id(row) ? "selected" : ""}>
                ${columns.map((column) => (column.head ? html`<th scope="row" class=${side(column)}>${column.cell(row)}</th>` : html`<td class=${side(column)}>${column.cell(row)}</td>`))}
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}

/** @param {{parts: {value: number, tone: string, name: string}[], label: string, total?: number, slim?: boolean}} props */
export function Bar({ parts, label, total, slim }) {
  const whole = total ?? parts.reduce((sum, part) => sum + part.value, 0);
  return html`
    <div class=${`bar-track${slim ? " slim" : ""}`} role="img" aria-label=${label}>
      ${parts.map((part) => html`<span class=${part.tone} title=${part.name} style=${{ width: `${whole > 0 ? Math.min(100, (100 * part.value) / whole) : 0}%` }}></span>`)}
    </div>
  `;
}

/** @param {{items: {tone: string, name: string, value?: string}[]}} props */
export function Legend({ items }) {
  return html`<ul class="legend">
    ${items.map((item) => html`<li key=${item.name}><span class=${`swatch ${item.tone}`} aria-hidden="true"></span>${item.name}${item.value === undefined ? null : html` <span class="value">${item.value}</span>`}</li>`)}
  </ul>`;
}

/** Choices in a row. @param {{label: string, options: [string, string][], value: string, choose: (value: string) => void}} props */
export function Segmented({ label, options, value, choose }) {
  return html`<div class="segmented" role="group" aria-label=${label}>
    ${options.map(([name, text]) => html`<button type="button" key=${name} aria-pressed=${name === value ? "true" : "false"} onClick=${() => choose(name)}>${text}</button>`)}
  </div>`;
}

/**
 * The second look before something that cannot be undone.
 * @param {{open: boolean, title: string, action: string, danger?: boolean, run: () => Promise<void>, close: () => void, children?: any}} props
 */
export function Confirm({ open, title, action, danger, run, close, children }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [problem, setProblem] = useState(/** @type {ApiError | null} */ (null));
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    setProblem(null);
    if (open && dialog.current?.open === false) dialog.current.showModal();
    if (!open && dialog.current?.open === true) dialog.current.close();
  }, [open]);
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await run();
      close();
    } catch (error) {
      setProblem(asProblem(error));
    } finally {
      setBusy(false);
    }
  };
  return html`
    <dialog ref=${dialog} onClose=${close} aria-label=${title}>
      ${open
        ? html`<form onSubmit=${submit}>
            <h2>${title}</h2>
            ${children}
            ${problem === null ? null : html`<p class="problem" role="alert"><strong>${problem.status === 403 ? "Not for this credential." : `${problem.title}.`}</strong> ${problem.detail}</p>`}
            <div class="actions">
              <button type="button" autofocus onClick=${close}>Cancel</button>
              <button type="submit" disabled=${busy} class=${`primary${danger ? " danger" : ""}`}>${action}</button>
            </div>
          </form>`
        : null}
    </dialog>
  `;
}

const toast = new Observable("");
/** @type {ReturnType<typeof setTimeout> | undefined} */
let toastTimer;

/** Tells what was done, to screen readers too. @param {string} text */
export function say(text) {
  clearTimeout(toastTimer);
  toast.set(text);
  toastTimer = setTimeout(() => toast.set(""), 6000);
}

export function Toasts() {
  const text = useObservable(toast);
  return html`<div class="toasts" role="status" aria-live="polite">${text === "" ? null : html`<div class="toast">${text}</div>`}</div>`;
}

export function AwayBanner() {
  if (!useObservable(away)) return null;
  return html`<div class="banner" role="alert"><strong>The service does not answer.</strong> <span>This page shows the last data received. It updates again when the service answers.</span></div>`;
}

/** Data that could not be loaded again stays on the page: this says that it is old, and why. */
export function BehindBanner() {
  const [problem] = [...useObservable(behind).values()];
  if (problem === undefined) return null;
  return html`<div class="banner" role="status"><strong>Not up to date: ${problem.title}.</strong> ${problem.detail === "" ? null : html`<span>${problem.detail}</span>`} <span>A part of this page shows the last data received.</span></div>`;
}

/**
 * The width that an element has, in CSS pixels.
 * @returns {[import("./view.js").View | any, number]}
 */
export function useWidth() {
  const ref = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (ref.current === null) return undefined;
    const watcher = new ResizeObserver(([entry]) => {
      if (entry !== undefined) setWidth(Math.floor(entry.contentRect.width));
    });
    watcher.observe(ref.current);
    return () => watcher.disconnect();
  }, []);
  return [ref, width];
}
