// The last hour of the replica that answers, asked for point by point.

import { call, query, token } from "./api.js";
import { useLoaded } from "./resource.js";
import { useRef, useState } from "./view.js";

/** @typedef {import("./types.js").Series} Answer */
/** @typedef {import("./types.js").SeriesLine} Line */

const STEP_MS = 10_000;
const FIRST_MS = 2_000;
const POINTS_MAX = 360;

/** @param {Line} line */
const identity = (line) => `${line.name} ${JSON.stringify(Object.entries(line.labels).sort())}`;

/**
 * What was there, and the points that came since.
 * @param {Answer} before
 * @param {Answer} later
 * @returns {Answer}
 */
export function joined(before, later) {
  if (before.started_at_ms !== later.started_at_ms) return later;
  const end = before.times_ms[before.times_ms.length - 1] ?? 0;
  const skip = later.times_ms.filter((at) => at <= end).length;
  const times_ms = [...before.times_ms, ...later.times_ms.slice(skip)];
  const cut = Math.max(0, times_ms.length - POINTS_MAX);
  const known = new Map(before.series.map((line) => [identity(line), line]));
  const added = new Map(later.series.map((line) => [identity(line), line]));
  const series = [...new Map([...known, ...added]).entries()].map(([id, line]) => {
    const old = known.get(id)?.values ?? before.times_ms.map(() => null);
    const fresh = added.get(id)?.values ?? later.times_ms.map(() => null);
    return { ...line, values: [...old, ...fresh.slice(skip)].slice(cut) };
  });
  return { ...later, times_ms: times_ms.slice(cut), series };
}

export function useSeries() {
  // The first point of a service that has just started is waited for.
  const [any, setAny] = useState(true);
  const kept = useRef(/** @type {{token: string, answer: Answer} | null} */ (null));
  return useLoaded(
    "series",
    async (signal) => {
      const asked = token.value;
      const before = kept.current?.token === asked ? kept.current.answer : undefined;
      /** @type {Answer} */
      const later = await call("GET", `/v1/series${query({ after_ms: before?.times_ms.at(-1) })}`, { signal });
      let answer = before === undefined ? later : joined(before, later);
      // Another process answered, and only for the time after the last one's end.
      if (before !== undefined && answer === later) answer = await call("GET", "/v1/series", { signal });
      kept.current = { token: asked, answer };
      setAny(answer.times_ms.length > 0);
      return answer;
    },
    { every_ms: any ? STEP_MS : FIRST_MS },
  );
}

/** @param {Answer} answer @param {string} name @param {Record<string, string>} [labels] */
export function line(answer, name, labels = {}) {
  const found = answer.series.find((one) => one.name === name && Object.entries(labels).every(([key, value]) => one.labels[key] === value));
  return found?.values ?? answer.times_ms.map(() => null);
}

/** @param {(number | null)[]} above @param {(number | null)[]} below of which `above` is a part */
export function shares(above, below) {
  return below.map((whole, i) => (whole === null || whole === 0 ? null : (above[i] ?? 0) / whole));
}

/** @param {(number | null)[][]} lines */
export function sums(lines) {
  return (lines[0] ?? []).map((_, i) => {
    const values = lines.map((one) => one[i]).filter((value) => typeof value === "number");
    return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0);
  });
}

/** @param {(number | null)[]} values */
export function total(values) {
  return values.reduce((/** @type {number} */ sum, value) => sum + (value ?? 0), 0);
}

/** @param {(number | null)[]} values */
export function latest(values) {
  for (let i = values.length - 1; i >= 0 && i >= values.length - 6; i -= 1) {
    const value = values[i];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}
