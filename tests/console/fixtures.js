// What an hour of a busy replica looks like, for the pictures: a service of a test has seconds. Seeded, so that the
// pictures stay the same.

const STEP_S = 10;
const POINTS = 360;

function random(seed) {
  let state = seed;
  return () => {
    state = (state * 1664525 + 1013904223) % 4294967296;
    return state / 4294967296;
  };
}

/** A value that wanders around a level, never below 0. */
function wander(next, level, spread) {
  let value = level;
  return Array.from({ length: POINTS }, () => {
    value += (level - value) * 0.08 + (next() - 0.5) * spread;
    return Math.max(0, Math.round(value * 1000) / 1000);
  });
}

export function series(now_ms) {
  const next = random(7);
  const end = Math.floor(now_ms / 10_000) * 10_000;
  const times_ms = Array.from({ length: POINTS }, (_, i) => end - (POINTS - 1 - i) * STEP_S * 1000);
  const trouble = (i) => i > 215 && i < 245;
  const line = (name, labels, unit, values) => ({ name, labels, unit, values });
  const asked = wander(next, 42_000, 9000);
  const found = asked.map((value, i) => value * (0.78 - (trouble(i) ? 0.3 : 0) + 0.05 * Math.sin(i / 40)));
  const missed = times_ms.map((_, i) => (trouble(i) ? 0.9 + next() * 0.6 : next() < 0.12 ? 0.1 : 0));
  const seconds = (level, spread, slow) => wander(next, level, spread).map((value, i) => (trouble(i) ? value * slow : value));
  return {
    version: "0.2.0",
    started_at_ms: end - 3 * 86_400_000,
    step_s: STEP_S,
    times_ms,
    series: [
      line("requests", { class: "lookup" }, "per_second", wander(next, 38, 9)),
      line("requests", { class: "read" }, "per_second", wander(next, 61, 14)),
      line("requests", { class: "write" }, "per_second", wander(next, 12, 4)),
      line("requests", { class: "other" }, "per_second", wander(next, 3, 1)),
      line("errors", { status: "4xx" }, "per_second", wander(next, 0.4, 0.3)),
      line("errors", { status: "5xx" }, "per_second", times_ms.map((_, i) => (trouble(i) ? 1.4 : 0))),
      line("lookup_tokens", { result: "asked" }, "per_second", asked),
      line("lookup_tokens", { result: "matched" }, "per_second", found),
      line("loads", { slo: "met" }, "per_second", wander(next, 8, 2)),
      line("loads", { slo: "missed" }, "per_second", missed),
      line("load_bytes", { level: "0" }, "bytes_per_second", wander(next, 9e6, 3e6).map((value, i) => (trouble(i) ? value * 4 : value))),
      line("load_bytes", { level: "1" }, "bytes_per_second", wander(next, 21e6, 6e6)),
      line("load_bytes", { level: "2" }, "bytes_per_second", wander(next, 88e6, 20e6).map((value, i) => (trouble(i) ? value * 0.2 : value))),
      line("load_bytes", { level: "3" }, "bytes_per_second", wander(next, 12e6, 5e6).map((value, i) => (trouble(i) ? 0 : value))),
      line("served_bytes", { medium: "cpu" }, "bytes_per_second", wander(next, 84e6, 18e6)),
      line("served_bytes", { medium: "disk" }, "bytes_per_second", wander(next, 31e6, 9e6)),
      line("served_bytes", { medium: "object" }, "bytes_per_second", wander(next, 14e6, 5e6)),
      line("sent_bytes", {}, "bytes_per_second", wander(next, 130e6, 25e6)),
      line("received_bytes", {}, "bytes_per_second", wander(next, 17e6, 6e6)),
      line("store_requests", { outcome: "ok" }, "per_second", wander(next, 29, 8)),
      line("store_requests", { outcome: "failed" }, "per_second", times_ms.map((_, i) => (trouble(i) ? 3 + next() * 2 : 0))),
      line("store_seconds", { op: "get", quantile: "0.5" }, "seconds", seconds(0.018, 0.004, 2)),
      line("store_seconds", { op: "get", quantile: "0.99" }, "seconds", seconds(0.074, 0.02, 5)),
      line("store_seconds", { op: "put", quantile: "0.5" }, "seconds", seconds(0.031, 0.006, 2)),
      line("store_seconds", { op: "put", quantile: "0.99" }, "seconds", seconds(0.121, 0.03, 4)),
      line("breaker_open", {}, "count", times_ms.map((_, i) => (i > 222 && i < 236 ? 1 : 0))),
      line("hot_bytes", { medium: "cpu" }, "bytes", times_ms.map((_, i) => 58e9 + i * 12e6)),
      line("hot_bytes", { medium: "disk" }, "bytes", times_ms.map((_, i) => 620e9 + i * 90e6)),
      line("hot_capacity_bytes", { medium: "cpu" }, "bytes", times_ms.map(() => 64e9)),
      line("hot_capacity_bytes", { medium: "disk" }, "bytes", times_ms.map(() => 1.6e12)),
      line("connections", {}, "count", wander(next, 211, 20).map(Math.round)),
    ],
    now: {
      hit_ratio_curve: [
        { memory: 0.5, hit_ratio: 0.44 },
        { memory: 1, hit_ratio: 0.61 },
        { memory: 2, hit_ratio: 0.74 },
        { memory: 4, hit_ratio: 0.79 },
      ],
      hot_tenants: [
        { tenant: "assistants", cpu_bytes: 31e9, disk_bytes: 288e9 },
        { tenant: "code-review", cpu_bytes: 18.2e9, disk_bytes: 210e9 },
        { tenant: "search", cpu_bytes: 9.9e9, disk_bytes: 121e9 },
        { tenant: "batch", cpu_bytes: 1.1e9, disk_bytes: 38e9 },
      ],
      breaker_open: 0,
    },
  };
}

/** Has the answers about a profile and its chunks say a claim and measured errors, which the golden ones lack. */
export async function measured(page, errors) {
  const change = (pattern, edit) =>
    page.route(pattern, async (route) => {
      const answer = await route.fetch();
      const body = await answer.json();
      edit(body);
      await route.fulfill({ response: answer, body: JSON.stringify(body) });
    });
  await change("**/levels", (body) => {
    body.levels[1].quality = "transparent";
  });
  await change("**/v1/lookup", (body) => {
    for (const [at, chunk] of body.chunks.entries()) chunk.errors = { levels: errors(at), beneath: 0, hops: 0 };
  });
}

/** Five replicas in three zones, one of them larger. */
export const MEMBERS = {
  epoch: "5d8a0c41f2b97e36",
  this: "http://kvasir-1.kvasir-headless:7480",
  members: [
    ["kvasir-0", "eu-west-1a", 1],
    ["kvasir-1", "eu-west-1a", 1],
    ["kvasir-2", "eu-west-1b", 1],
    ["kvasir-3", "eu-west-1b", 2],
    ["kvasir-4", "eu-west-1c", 1],
  ].map(([name, zone, weight]) => ({ url: `http://${name}.kvasir-headless:7480`, zone, weight })),
  splits: ["91c04be2d77a10f3", "d2077f3b5e6ac918"],
};

/** A load of eight chunks over a link that breaks down in the middle. */
export function load(now_ms, slo_ms, slow) {
  const levels = slow ? [2, 2, 1, 0, 0, 1, undefined, undefined] : [2, 2, 3, 3, 2, 2, 3, 2];
  const bytes = [61_000, 140_000, 410_000, 880_000];
  let at = 4;
  const chunks = levels.map((level, i) => {
    const first_token = i * 1536;
    if (level === undefined) return { first_token, tokens: 1536, bytes: 0, started_ms: Math.round(at), ready_ms: Math.round(at) + 46 };
    const started_ms = Math.max(0, Math.round(at - 6));
    const rate = slow && i > 1 && i < 5 ? 1300 : 17_000;
    at += bytes[level] / rate;
    const fetched_ms = Math.round(at);
    return { first_token, tokens: 1536, level, bytes: bytes[level], started_ms, fetched_ms, ready_ms: fetched_ms + 9 };
  });
  const elapsed_ms = Math.max(...chunks.map((chunk) => chunk.ready_ms));
  const sum = (of) => chunks.filter((chunk) => chunk.level !== undefined).reduce((all, chunk) => ({ ...all, [chunk.level]: (all[chunk.level] ?? 0) + of(chunk) }), {});
  const computed = chunks.filter((chunk) => chunk.level === undefined).length * 1536;
  return {
    received_at_ms: now_ms,
    missed: elapsed_ms > slo_ms,
    slo_ms,
    elapsed_ms,
    loaded_tokens: 8 * 1536 - computed,
    recomputed_tokens: computed,
    bytes_by_level: sum((chunk) => chunk.bytes),
    tokens_by_level: sum((chunk) => chunk.tokens),
    direct_bytes: 0,
    saved_gpu_ms: 1310,
    timeline: {
      chunks,
      bandwidth: chunks.filter((chunk) => chunk.level !== undefined).map((chunk, i) => ({ at_ms: chunk.fetched_ms, bytes_per_second: Math.round((slow && i > 1 && i < 5 ? 1.3e6 : 17e6) * (0.9 + 0.05 * (i % 4))) })),
    },
  };
}

export function loads(now_ms) {
  return { loads: Array.from({ length: 18 }, (_, i) => load(now_ms - i * 41_000, 300, i % 5 === 0)) };
}
