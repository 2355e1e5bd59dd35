// Numbers with their units, times in local time with UTC beside.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** @param {number} value */
export function count(value) {
  return whole.format(value);
}

/** With k, M or G where it is long. @param {number} value */
export function large(value) {
  return value < 10_000 ? count(value) : scaled(value, ["", "k", "M", "G", "T"]);
}

/** Three significant digits, without an exponent between a thousandth and a million. @param {number} value */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(1).replace("e+", "e");
  if (size >= 1000) return whole.format(value);
  return new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 }).format(value);
}

/**
 * @param {number} value
 * @param {string[]} units each a thousand of the one before
 */
function scaled(value, units) {
  let size = Math.abs(value);
  let at = 0;
  // Not 1000 of a unit but 1 of the next, also after rounding.
  while (size >= 999.5 && at < units.length - 1) {
    size /= 1000;
    at += 1;
  }
  const digits = at === 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return `${value < 0 ? "−" : ""}${size.toFixed(digits)} ${units[at]}`;
}

/** @param {number} value */
export function bytes(value) {
  return scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"]);
}

/** @param {number} value in bytes a second */
export function byteRate(value) {
  return scaled(value, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);
}

/** @param {number} value in bits a second */
export function bitRate(value) {
  return scaled(value, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"]);
}

/** @param {number} value a second */
export function rate(value) {
  return `${value >= 1000 ? scaled(value, ["", "k", "M", "G"]) : number(value)}/s`;
}

/** @param {number} value of 1 */
export function percent(value) {
  if (!Number.isFinite(value)) return "–";
  const shown = value * 100;
  return `${shown >= 99.95 || shown === 0 ? shown.toFixed(0) : shown.toFixed(1)} %`;
}

/** @param {number} ms */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 1) return `${number(ms)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 100) return `${s.toFixed(s < 10 ? 2 : 1)} s`;
  const min = s / 60;
  if (min < 60) return `${Math.floor(min)} min ${Math.floor(s % 60)} s`;
  const hours = min / 60;
  if (hours < 48) return `${Math.floor(hours)} h ${Math.floor(min % 60)} min`;
  return `${Math.floor(hours / 24)} d ${Math.floor(hours % 24)} h`;
}

/** @param {number} usd */
export function dollars(usd) {
  if (usd >= 0.01 || usd === 0) return `$${usd >= 1000 ? whole.format(usd) : usd === 0 ? "0" : usd.toFixed(2)}`;
  return usd < 1e-7 ? `$${number(usd)}` : `$${usd.toFixed(1 - Math.floor(Math.log10(usd)))}`;
}

/** @param {number} value */
function two(value) {
  return String(value).padStart(2, "0");
}

/** @param {number} ms since 1970 */
export function localTime(ms) {
  const t = new Date(ms);
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${clock(ms)}`;
}

/** @param {number} ms since 1970 */
export function clock(ms) {
  const t = new Date(ms);
  return `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

/** @param {number} ms since 1970 */
export function utc(ms) {
  return `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** Whether local time is UTC at that instant. @param {number} ms since 1970 */
export function isUtc(ms) {
  return new Date(ms).getTimezoneOffset() === 0;
}

/** @param {string} hash */
export function short(hash) {
  return hash.length > 12 ? `${hash.slice(0, 10)}…` : hash;
}

/** @param {number} n @param {string} one @param {string} [many] */
export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}
