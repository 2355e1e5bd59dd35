// Time series by uPlot: a legend with the values under the cursor, and the same data as a table that a keyboard reaches.

import * as format from "./format.js";
import { useObservable } from "./observable.js";
import { latest } from "./series.js";
import { colour, theme } from "./theme.js";
import { useWidth } from "./components.js";
import { html, useEffect, useRef, useState } from "./view.js";

/** @typedef {{name: string, values: (number | null)[], tone: string, dash?: boolean}} Series tone: a custom property of style.css */
/** @typedef {{title: string, times_ms: number[], series: Series[], show: (value: number) => string, stacked?: boolean, max?: number, nothing?: string}} ChartProps */

const HEIGHT = 180;
/** Rows of the table: the last half hour at a point each 10 s. */
const ROWS_MAX = 180;

/** @type {Promise<any> | undefined} */
let library;
const uplot = () => (library ??= import("./vendor/uplot.js").then((module) => module.default));

/** Values on top of each other, the uppermost first. @param {Series[]} series @returns {(number | null)[][]} */
function stack(series) {
  /** @type {(number | null)[][]} */
  const sums = [];
  series.forEach((one, at) => {
    const below = sums[at - 1];
    sums.push(one.values.map((value, i) => (value === null ? (below?.[i] ?? null) : value + (below?.[i] ?? 0))));
  });
  return sums.reverse();
}

/** @param {ChartProps} props @param {number} width @param {(index: number | null) => void} at */
function options({ times_ms, series, show, stacked, max }, width, at) {
  const font = `11px ${colour("--font")}`;
  const axis = { stroke: colour("--muted"), font, grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
  const drawn = (/** @type {Series} */ one) => ({
    label: one.name,
    stroke: colour(one.tone),
    width: 1.5,
    ...(one.dash ? { dash: [5, 3] } : {}),
    // Opaque, because what is stacked is drawn over what is beneath.
    ...(stacked ? { fill: `color-mix(in srgb, ${colour(one.tone)} 55%, ${colour("--surface")})` } : {}),
    points: { show: times_ms.length < 3 },
    spanGaps: false,
  });
  return {
    width,
    height: HEIGHT,
    ms: 1,
    padding: [8, 18, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: "kvasir", setSeries: false }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: { time: true },
      y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ top) => [0, max ?? (top > 0 ? top * 1.08 : 1)] },
    },
    axes: [
      { ...axis, size: 26, gap: 4, space: 70, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map((ms) => format.clock(ms).slice(0, 5)) },
      // The same room in all charts, so that their times stand below each other.
      { ...axis, size: 68, space: 34, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map((value) => (value === 0 ? "0" : show(value))) },
    ],
    series: [{}, ...(stacked ? [...series].reverse() : series).map(drawn)],
    hooks: { setCursor: [(/** @type {any} */ u) => at(u.cursor.idx ?? null)] },
  };
}

/** @param {ChartProps} props */
function lines({ times_ms, series, stacked }) {
  return [times_ms, ...(stacked ? stack(series) : series.map((one) => one.values))];
}

/** @param {ChartProps} props */
export function Chart(props) {
  const { title, times_ms, series, show, nothing } = props;
  const [host, width] = useWidth();
  const plot = useRef(/** @type {any} */ (null));
  const [index, setIndex] = useState(/** @type {number | null} */ (null));
  const shownTheme = useObservable(theme);
  const current = useRef(props);
  current.current = props;
  const any = times_ms.length > 0 && series.some((one) => one.values.some((value) => value !== null));
  // Another set of series is another drawing; other values are the same one with other data.
  const kind = series.map((one) => one.name).join("\n");

  useEffect(() => {
    if (!any || width < 80) return undefined;
    let gone = false;
    uplot().then((UPlot) => {
      if (gone || host.current === null) return;
      plot.current = new UPlot(options(current.current, width, setIndex), lines(current.current), host.current);
    }, () => {});
    return () => {
      gone = true;
      plot.current?.destroy();
      plot.current = null;
    };
  }, [any, width, shownTheme, kind]);
  useEffect(() => {
    plot.current?.setData(lines(props));
  }, [times_ms, series]);

  const at = index ?? times_ms.length - 1;
  const value = (/** @type {Series} */ one) => {
    const found = index === null ? latest(one.values) : (one.values[at] ?? null);
    return found === null ? "–" : show(found);
  };
  const words = any ? series.map((one) => `${one.name} ${value(one)}`).join(", ") : "no data";
  return html`
    <figure class="chart" role="group" aria-label=${title}>
      <ul class="legend">
        ${series.map(
          (one) => html`<li key=${one.name}><span class="swatch" style=${{ background: `var(${one.tone})` }} aria-hidden="true"></span>${one.name} <span class="value">${value(one)}</span></li>`,
        )}
        ${index === null || times_ms[at] === undefined ? null : html`<li class="value">${format.clock(times_ms[at])}</li>`}
      </ul>
      <div class="canvas" ref=${host} role="img" aria-label=${`${title}, last hour: ${words}`}>
        ${any ? null : html`<div class="nothing">${nothing ?? "Nothing in the last hour."}</div>`}
      </div>
      <${Data} ...${props} />
    </figure>
  `;
}

/** @param {ChartProps} props */
function Data({ title, times_ms, series, show }) {
  const [open, setOpen] = useState(false);
  const from = Math.max(0, times_ms.length - ROWS_MAX);
  const rows = open ? times_ms.slice(from).map((ms, i) => ({ ms, i: from + i })).reverse() : [];
  return html`
    <details onToggle=${(/** @type {Event} */ event) => setOpen(/** @type {HTMLDetailsElement} */ (event.currentTarget).open)}>
      <summary>Data<span class="hidden"> of ${title}</span></summary>
      ${open
        ? html`<div class="scroll" tabindex="0" role="group" aria-label=${`Data of ${title}`}>
            <table>
              <thead>
                <tr><th scope="col">Time</th>${series.map((one) => html`<th scope="col" class="end">${one.name}</th>`)}</tr>
              </thead>
              <tbody>
                ${rows.map(
                  ({ ms, i }) => html`<tr key=${ms}>
                    <th scope="row" title=${format.utc(ms)}>${format.clock(ms)}</th>
                    ${series.map((one) => html`<td class="end">${one.values[i] === null || one.values[i] === undefined ? "–" : show(/** @type {number} */ (one.values[i]))}</td>`)}
                  </tr>`,
                )}
              </tbody>
            </table>
          </div>`
        : null}
    </details>
  `;
}
