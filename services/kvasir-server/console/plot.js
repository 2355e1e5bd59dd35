// Drawings of a few points, in SVG: levels of a ladder, the curve of a hit ratio.

import { useWidth } from "./components.js";
import { html } from "./view.js";

/** @typedef {{x: number, y: number, name: string, ring?: boolean}} Point */
/** @typedef {{name: string, points: Point[], second?: boolean}} Curve */
/** @typedef {{at: number, text: string}} Tick */

const LEFT = 56;
const RIGHT = 16;
const TOP = 10;
const BOTTOM = 38;

/**
 * @param {{label: string, curves: Curve[], x: {title: string, ticks: Tick[], log?: boolean}, y: {title: string, ticks: Tick[], log?: boolean}, height?: number}} props
 */
export function Plot({ label, curves, x, y, height = 240 }) {
  const [host, width] = useWidth();
  const place = (/** @type {number} */ value, /** @type {{ticks: Tick[], log?: boolean}} */ axis) => {
    const scale = (/** @type {number} */ v) => (axis.log ? Math.log10(Math.max(v, Number.MIN_VALUE)) : v);
    const low = scale(axis.ticks[0]?.at ?? 0);
    const high = scale(axis.ticks[axis.ticks.length - 1]?.at ?? 1);
    return Math.min(1, Math.max(0, (scale(value) - low) / (high - low || 1)));
  };
  const px = (/** @type {number} */ value) => LEFT + place(value, x) * Math.max(0, width - LEFT - RIGHT);
  const py = (/** @type {number} */ value) => height - BOTTOM - place(value, y) * (height - TOP - BOTTOM);
  return html`
    <div ref=${host} style=${{ height: `${height}px` }}>
      ${width === 0
        ? null
        : html`<svg class="drawn" role="img" aria-label=${label} width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
            ${y.ticks.map(
              (tick) => html`<g key=${tick.text}>
                <line class="grid-line" x1=${LEFT} x2=${width - RIGHT} y1=${py(tick.at)} y2=${py(tick.at)} />
                <text x=${LEFT - 8} y=${py(tick.at) + 4} text-anchor="end">${tick.text}</text>
              </g>`,
            )}
            ${x.ticks.map((tick) => html`<text key=${tick.text} x=${px(tick.at)} y=${height - BOTTOM + 16} text-anchor="middle">${tick.text}</text>`)}
            <line class="axis" x1=${LEFT} x2=${width - RIGHT} y1=${height - BOTTOM} y2=${height - BOTTOM} />
            <text x=${width - RIGHT} y=${height - 4} text-anchor="end">${x.title}</text>
            ${curves.map(
              (curve) => html`<g key=${curve.name}>
                <path class=${`curve${curve.second ? " second" : ""}`} d=${curve.points.map((point, i) => `${i === 0 ? "M" : "L"}${px(point.x)} ${py(point.y)}`).join("")} />
                ${curve.points.map(
                  (point) => html`<circle class=${`point${curve.second ? " second" : ""}${point.ring ? " transparent" : ""}`} cx=${px(point.x)} cy=${py(point.y)} r=${point.ring ? 6 : 4.5}><title>${point.name}</title></circle>`,
                )}
              </g>`,
            )}
          </svg>`}
    </div>
  `;
}

/** Powers of ten that hold these values. @param {number[]} values @returns {Tick[]} */
export function decades(values) {
  const positive = values.filter((value) => value > 0);
  const low = Math.floor(Math.log10(Math.min(...positive, 1)));
  const high = Math.ceil(Math.log10(Math.max(...positive, 10 ** low * 10)));
  const step = Math.max(1, Math.ceil((high - low) / 6));
  /** @type {Tick[]} */
  const ticks = [];
  for (let power = low; power < high + step; power += step) ticks.push({ at: 10 ** power, text: power >= -2 && power <= 3 ? String(Number((10 ** power).toPrecision(1))) : `1e${power}` });
  return ticks;
}

/** Round steps from 0 that hold these values. @param {number[]} values @param {number} [parts] @returns {Tick[]} */
export function steps(values, parts = 5) {
  const high = Math.max(...values, 0);
  if (high === 0) return [{ at: 0, text: "0" }, { at: 1, text: "1" }];
  const raw = high / parts;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((size) => size >= raw) ?? raw;
  /** @type {Tick[]} */
  const ticks = [];
  for (let i = 0; i * step < high + step * 0.999; i += 1) ticks.push({ at: i * step, text: String(Number((i * step).toPrecision(3))) });
  return ticks;
}
