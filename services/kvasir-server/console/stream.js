// Server-sent events read with `fetch`, because an `EventSource` sends no credential. Goes on where it ended.

import { ApiError, request } from "./api.js";

/** A longer event is not ours. */
const EVENT_CHARACTERS_MAX = 1 << 20;
const WAIT_MS_MIN = 500;
const WAIT_MS_MAX = 15_000;

/** @typedef {{id: string, event: string, data: string}} Message */

/**
 * The messages of a body.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<Message>}
 */
async function* messages(body) {
  const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let rest = "";
  let id = "";
  let event = "";
  /** @type {string[]} */
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      if (rest.length > EVENT_CHARACTERS_MAX) throw new Error("an event is too long");
      const lines = rest.split("\n");
      rest = lines.pop() ?? "";
      for (const ended of lines) {
        const line = ended.endsWith("\r") ? ended.slice(0, -1) : ended;
        if (line === "") {
          if (data.length > 0) yield { id, event: event || "message", data: data.join("\n") };
          event = "";
          data = [];
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue;
        const field = colon < 0 ? line : line.slice(0, colon);
        const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "id") id = text;
        else if (field === "event") event = text;
        else if (field === "data") data.push(text);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Follows a stream until the signal. Refusals end it; everything else is tried again, after the last event heard.
 * @param {string} path
 * @param {AbortSignal} signal
 * @param {{message: (message: Message) => void, state: (state: "open" | "waiting" | ApiError) => void}} on
 */
export async function follow(path, signal, on) {
  let last = "";
  let wait_ms = WAIT_MS_MIN;
  while (!signal.aborted) {
    try {
      /** @type {Record<string, string>} */
      const headers = { accept: "text/event-stream" };
      if (last !== "") headers["last-event-id"] = last;
      const answer = await request("GET", path, { headers, signal, endless: true });
      on.state("open");
      if (answer.body !== null) {
        for await (const message of messages(answer.body)) {
          if (message.id !== "") last = message.id;
          wait_ms = WAIT_MS_MIN;
          on.message(message);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
        on.state(error);
        return;
      }
    }
    if (signal.aborted) return;
    on.state("waiting");
    const jittered = wait_ms * (0.5 + Math.random());
    await new Promise((resolve) => setTimeout(resolve, jittered));
    wait_ms = Math.min(wait_ms * 2, WAIT_MS_MAX);
  }
}
