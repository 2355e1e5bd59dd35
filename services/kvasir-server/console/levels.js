// What the quality of a level is called, and where bytes are.

/** Levels that have a colour of their own. */
export const LEVELS_SHOWN = 8;

/** @param {number} level @returns {string} class */
export const levelTone = (level) => `level-${Math.min(level, LEVELS_SHOWN - 1)}`;

/** As the policies of the client count: an error over what `transparent` allows. @param {number | null | undefined} error */
export function qualityName(error) {
  if (error === null || error === undefined) return "not measured";
  if (error <= 0) return "exact";
  if (error <= 1) return "transparent";
  if (error <= 10) return "balanced";
  if (error <= 100) return "small";
  return "worse than small";
}

/** @param {number | null | undefined} error @returns {"good" | "warn" | "bad" | undefined} */
export function qualityTone(error) {
  if (error === null || error === undefined) return undefined;
  return error <= 1 ? "good" : error <= 10 ? undefined : error <= 100 ? "warn" : "bad";
}

/** @type {Record<string, string>} */
const MEDIA = { gpu: "GPU memory", cpu: "memory", disk: "disk", object: "object store" };

/** @param {string} medium */
export const mediumName = (medium) => MEDIA[medium] ?? medium;
