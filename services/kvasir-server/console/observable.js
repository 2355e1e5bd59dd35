// A value that components watch.

import { useEffect, useState } from "./vendor/preact-hooks.js";

/** @template T */
export class Observable {
  /** @type {T} */
  #value;
  /** @type {Set<(value: T) => void>} */
  #watchers = new Set();

  /** @param {T} value */
  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  /** @param {T} value */
  set(value) {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const watcher of [...this.#watchers]) watcher(value);
  }

  /**
   * @param {(value: T) => void} watcher
   * @returns {() => void} ends it
   */
  watch(watcher) {
    this.#watchers.add(watcher);
    return () => {
      this.#watchers.delete(watcher);
    };
  }
}

/**
 * The value, and a new rendering whenever it changes.
 * @template T
 * @param {Observable<T>} observable
 * @returns {T}
 */
export function useObservable(observable) {
  const [, render] = useState(0);
  useEffect(() => observable.watch(() => render((n) => n + 1)), [observable]);
  return observable.value;
}
