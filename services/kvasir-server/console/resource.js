// What a page shows of the service: loaded, kept while it is loaded again, and loaded anew when the service is back or
// the credential changes.

import { ApiError, away, call, token } from "./api.js";
import { Observable, useObservable } from "./observable.js";
import { useCallback, useEffect, useRef, useState } from "./view.js";

const HIDDEN_MS = 1_000;

/** Why data that a page shows could not be loaded again, by the load that failed. */
export const behind = new Observable(/** @type {ReadonlyMap<object, ApiError>} */ (new Map()));

/** @param {object} load @param {ApiError | undefined} problem */
function setBehind(load, problem) {
  if (problem === undefined && !behind.value.has(load)) return;
  const all = new Map(behind.value);
  if (problem === undefined) all.delete(load);
  else all.set(load, problem);
  behind.set(all);
}

/**
 * @template T
 * @typedef {{data: T | undefined, error: ApiError | undefined, loading: boolean, reload: () => void}} Resource
 */

/** @param {unknown} error @returns {ApiError} */
export function asProblem(error) {
  if (error instanceof ApiError) return error;
  return new ApiError({ status: 0, title: "The page met an error", detail: error instanceof Error ? error.message : String(error) });
}

/**
 * @template T
 * @param {string | null} key what is loaded; another key is another thing, null is nothing
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {{every_ms?: number}} [options]
 * @returns {Resource<T>}
 */
export function useLoaded(key, load, options = {}) {
  const credential = useObservable(token);
  const isAway = useObservable(away);
  const [state, setState] = useState(/** @type {{key: string | null, data?: T, error?: ApiError, loading: boolean}} */ ({ key, loading: key !== null }));
  const [turn, setTurn] = useState(0);
  const current = useRef(load);
  current.current = load;
  const shown = useRef("");
  const hasData = useRef(false);

  useEffect(() => {
    if (key === null || isAway) return undefined;
    const stop = new AbortController();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    const identity = `${credential}\n${key}`;
    // Another credential may not see what the last one saw.
    if (shown.current !== identity) {
      setState({ key, loading: true });
      hasData.current = false;
    } else {
      setState((before) => ({ ...before, loading: true }));
    }
    shown.current = identity;
    const run = async () => {
      try {
        const data = await current.current(stop.signal);
        if (stop.signal.aborted) return;
        setState({ key, data, loading: false });
        hasData.current = true;
        setBehind(stop, undefined);
      } catch (error) {
        if (stop.signal.aborted) return;
        const problem = asProblem(error);
        // What is refused or gone is no longer shown.
        if (problem.status === 401 || problem.status === 403 || problem.status === 404) {
          setState({ key, error: problem, loading: false });
          hasData.current = false;
          setBehind(stop, undefined);
          return;
        }
        setState((before) => ({ ...before, error: problem, loading: false }));
        // A service that is away has a banner of its own.
        if (hasData.current && !away.value) setBehind(stop, problem);
      }
      if (options.every_ms !== undefined) timer = setTimeout(again, options.every_ms);
    };
    // A hidden page sends no requests.
    const again = () => {
      if (document.hidden) timer = setTimeout(again, HIDDEN_MS);
      else run();
    };
    run();
    return () => {
      stop.abort();
      clearTimeout(timer);
      setBehind(stop, undefined);
    };
  }, [key, credential, isAway, turn, options.every_ms]);

  const reload = useCallback(() => setTurn((n) => n + 1), []);
  const mine = state.key === key;
  return { data: mine ? state.data : undefined, error: mine ? state.error : undefined, loading: key !== null && (!mine || state.loading), reload };
}

/**
 * @template T
 * @param {string | null} path
 * @param {{every_ms?: number, endless?: boolean}} [options] `endless`: as of `call`
 * @returns {Resource<T>}
 */
export function useResource(path, options) {
  return useLoaded(path, (signal) => call("GET", path ?? "", { signal, endless: options?.endless }), options);
}
