// One event as a line.

import { Badge, Time } from "./components.js";
import * as format from "./format.js";
import { mediumName } from "./levels.js";
import { html } from "./view.js";

/** @typedef {import("./types.js").ChunkEvent} ChunkEvent */

/** @param {string} type */
export const eventTone = (type) => /** @type {"good" | "warn" | undefined} */ ({ stored: "good", removed: "warn" }[type]);

/** @param {{event: ChunkEvent}} props */
export function EventLine({ event }) {
  return html`<span class="event-line">
    <${Time} at=${event.timestamp_ms} />
    <${Badge} tone=${eventTone(event.event_type)}>${event.event_type}<//>
    <span>${mediumName(event.medium)}</span>
    ${event.seq_hash ? html`<code title=${event.seq_hash}>${format.short(event.seq_hash)}</code>` : null}
    ${event.profile_hash ? html`<code title=${event.profile_hash}>${format.short(event.profile_hash)}</code>` : null}
    ${event.namespace ? html`<span class="muted">${event.namespace}</span>` : null}
    ${event.reason ? html`<span class="muted">${event.reason}</span>` : null}
  </span>`;
}
