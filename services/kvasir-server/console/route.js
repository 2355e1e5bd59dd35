// Where the page is: the fragment, so that nothing of it reaches the service's logs.

import { Observable } from "./observable.js";

/** @typedef {{parts: string[], query: URLSearchParams, text: string}} Route */

/** @returns {Route} */
function read() {
  const text = location.hash.replace(/^#\/?/, "");
  const at = text.indexOf("?");
  const path = at < 0 ? text : text.slice(0, at);
  const parts = path
    .split("/")
    .filter((part) => part !== "")
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  return { parts: parts.length > 0 ? parts : ["overview"], query: new URLSearchParams(at < 0 ? "" : text.slice(at + 1)), text };
}

export const route = new Observable(read());
addEventListener("hashchange", () => route.set(read()));

/**
 * The fragment of a page.
 * @param {string[]} parts
 * @param {Record<string, string | undefined>} [query]
 */
export function link(parts, query = {}) {
  const given = Object.entries(query).flatMap(([name, value]) => (value === undefined || value === "" ? [] : [[name, value]]));
  const search = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search === "" ? "" : `?${search}`}`;
}

/**
 * Another query on the same page, without a step in the history.
 * @param {Record<string, string | undefined>} query
 */
export function replaceQuery(query) {
  history.replaceState(null, "", link(route.value.parts, query));
  route.set(read());
}
