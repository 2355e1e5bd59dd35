// The events of the tenant's chunks, as they happen.

import { ApiError, query, token } from "./api.js";
import { useObservable } from "./observable.js";
import { follow } from "./stream.js";
import { useEffect, useState } from "./view.js";

/** @typedef {import("./types.js").ChunkEvent} ChunkEvent */
/** @typedef {{events: ChunkEvent[], state: "connecting" | "open" | "waiting" | ApiError, missed: number, heard: number}} Feed */

/** Drawn at most so often: a burst of events is one rendering. */
const RENDER_MS = 150;

/**
 * @param {{namespace?: string, types?: string, events_max: number, paused?: boolean}} options
 * @returns {Feed & {clear: () => void}}
 */
export function useFeed({ namespace, types, events_max, paused }) {
  const credential = useObservable(token);
  const [feed, setFeed] = useState(/** @type {Feed} */ ({ events: [], state: "connecting", missed: 0, heard: 0 }));
  useEffect(() => {
    if (paused) return undefined;
    const stop = new AbortController();
    /** @type {ChunkEvent[]} */
    let waiting = [];
    let heard = 0;
    let missed = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    const flush = () => {
      timer = undefined;
      const fresh = waiting.reverse();
      const [more, lost] = [heard, missed];
      waiting = [];
      heard = 0;
      missed = 0;
      setFeed((before) => ({ ...before, events: [...fresh, ...before.events].slice(0, events_max), heard: before.heard + more, missed: before.missed + lost }));
    };
    follow(`/v1/events${query({ namespace, types })}`, stop.signal, {
      message: (message) => {
        try {
          const data = JSON.parse(message.data);
          if (message.event === "dropped") missed += Number(data.missed) || 0;
          else {
            waiting.push(data);
            heard += 1;
            if (waiting.length > events_max) waiting.shift();
          }
        } catch {
          return;
        }
        timer ??= setTimeout(flush, RENDER_MS);
      },
      state: (state) => setFeed((before) => ({ ...before, state })),
    });
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [credential, namespace, types, events_max, paused]);
  // Another credential's events are another tenant's; another filter's are others too.
  useEffect(() => () => setFeed({ events: [], state: "connecting", missed: 0, heard: 0 }), [credential, namespace, types]);
  return { ...feed, clear: () => setFeed((before) => ({ ...before, events: [], heard: 0, missed: 0 })) };
}
