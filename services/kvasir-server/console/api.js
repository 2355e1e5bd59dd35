// Requests to the service: the credential, problems as errors, and whether the service answers at all.

import { Observable } from "./observable.js";

const TOKEN_KEY = "kvasir.token";
/** How long the service may take to answer a request that is not `endless`. */
const REQUEST_MS_MAX = 30_000;
const PING_MS_MIN = 1_000;
const PING_MS_MAX = 8_000;

/** @returns {string} */
function storedToken() {
  try {
    return sessionStorage.getItem(TOKEN_KEY) ?? "";
  } catch {
    return "";
  }
}

/** The bearer token, for as long as the tab lives; empty without one. Never in an address. */
export const token = new Observable(storedToken());

/** @param {string} value */
export function setToken(value) {
  try {
    if (value === "") sessionStorage.removeItem(TOKEN_KEY);
    else sessionStorage.setItem(TOKEN_KEY, value);
  } catch {
    // Storage is off: the token lasts as long as the page.
  }
  refused.set(false);
  token.set(value);
}

/** Whether the service refused the credential, or the lack of one. */
export const refused = new Observable(false);
/** Whether the service answers. */
export const away = new Observable(false);

/** An answer that is a problem, or none: then `status` is 0. */
export class ApiError extends Error {
  /** @param {{status: number, title: string, detail: string, code?: string, requestId?: string}} problem */
  constructor(problem) {
    super(problem.detail === "" ? problem.title : problem.detail);
    this.status = problem.status;
    this.title = problem.title;
    this.detail = problem.detail;
    this.code = problem.code ?? "";
    this.requestId = problem.requestId ?? "";
  }
}

async function lives() {
  try {
    const answer = await fetch("/livez", { signal: AbortSignal.timeout(PING_MS_MAX), cache: "no-store" });
    return answer.ok;
  } catch {
    return false;
  }
}

let ping_ms = PING_MS_MIN;
function ping() {
  setTimeout(async () => {
    if (await lives()) {
      ping_ms = PING_MS_MIN;
      away.set(false);
      return;
    }
    ping_ms = Math.min(ping_ms * 2, PING_MS_MAX);
    ping();
  }, ping_ms);
}

function goAway() {
  if (away.value) return;
  away.set(true);
  ping();
}

/** @param {Response} answer @returns {Promise<ApiError>} */
async function problemOf(answer) {
  const requestId = answer.headers.get("x-request-id") ?? "";
  /** @type {unknown} */
  let body = null;
  try {
    body = await answer.json();
  } catch {
    // Not of the service: a proxy's page, or cut off.
  }
  const fields = /** @type {Record<string, unknown>} */ (typeof body === "object" && body !== null ? body : {});
  const text = (/** @type {string} */ name) => (typeof fields[name] === "string" ? fields[name] : "");
  return new ApiError({ status: answer.status, title: text("title") || `status ${answer.status}`, detail: text("detail"), code: text("code"), requestId });
}

/**
 * @param {string} method
 * @param {string} path with its query
 * @param {{body?: unknown, signal?: AbortSignal | undefined, headers?: Record<string, string>, endless?: boolean | undefined}} [options]
 * @returns {Promise<Response>} of success
 * @throws {ApiError}
 */
export async function request(method, path, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { ...options.headers };
  const sent = token.value;
  if (sent !== "") headers["authorization"] = `Bearer ${sent}`;
  if (options.body !== undefined) headers["content-type"] = "application/json";
  const limit = options.endless ? undefined : AbortSignal.timeout(REQUEST_MS_MAX);
  const signals = [options.signal, limit].filter((signal) => signal !== undefined);
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: options.body === undefined ? null : JSON.stringify(options.body),
      signal: AbortSignal.any(signals),
      credentials: "omit",
      cache: "no-store",
      redirect: "error",
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    // A slow service is not away: its return would start the slow request again, without an end.
    if (limit?.aborted && (await lives())) {
      throw new ApiError({ status: 0, title: "The answer takes too long", detail: `The service is there, but did not answer within ${REQUEST_MS_MAX / 1000} s.` });
    }
    goAway();
    throw new ApiError({ status: 0, title: "The service does not answer", detail: "It is not running, or the network to it is interrupted." });
  }
  if (answer.ok) return answer;
  // A refusal of a credential that was replaced meanwhile is ignored.
  if (answer.status === 401 && sent === token.value) refused.set(true);
  throw await problemOf(answer);
}

/**
 * @template T
 * @param {string} method
 * @param {string} path
 * @param {{body?: unknown, signal?: AbortSignal | undefined, endless?: boolean | undefined}} [options] `endless`: without a time limit
 * @returns {Promise<T>}
 * @throws {ApiError}
 */
export async function call(method, path, options = {}) {
  const answer = await request(method, path, options);
  if (answer.status === 204) return /** @type {T} */ (undefined);
  try {
    return /** @type {T} */ (await answer.json());
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError({ status: 0, title: "The answer was cut off", detail: "Send the request again." });
  }
}

/**
 * A query, without what is absent.
 * @param {Record<string, string | number | boolean | undefined>} fields
 */
export function query(fields) {
  const given = Object.entries(fields).flatMap(([name, value]) => (value === undefined || value === "" || value === false ? [] : [[name, String(value)]]));
  const text = new URLSearchParams(given).toString();
  return text === "" ? "" : `?${text}`;
}
