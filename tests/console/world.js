// A real service with credentials, and data in it: what the browser looks at.

import { execFileSync, spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { cpSync, mkdirSync, openSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { load } from "./fixtures.js";

const ROOT = resolve(import.meta.dirname, "../..");
const READY_MS_MAX = 30_000;
/** What runs if a name becomes markup. */
export const INJECTED = `<img src=x onerror="window.ran=1"><script>window.ran=1</script>`;
/** Name, tenant and role of each token. */
const TOKENS = [
  ["operator", "default", "operator"],
  ["writer", "default", "write"],
  ["reader", "default", "read"],
  ["empty", "empty", "operator"],
];

function freePort() {
  return new Promise((found) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => found(port));
    });
  });
}

export class World {
  /** @param {string} folder an empty one @param {string} binary */
  constructor(folder, binary) {
    this.folder = folder;
    this.binary = binary;
    this.tokens = {};
  }

  async start() {
    let entries = "";
    for (const [name, tenant, role] of TOKENS) {
      const token = `kv_${randomBytes(32).toString("hex")}`;
      this.tokens[name] = token;
      entries += `[[token]]\nname = "${name}"\ntenant = "${tenant}"\nrole = "${role}"\nsha256 = "${createHash("sha256").update(token).digest("hex")}"\n`;
      writeFileSync(join(this.folder, `${name}.token`), token, { mode: 0o600 });
    }
    entries += "[tenant.default]\nstored_bytes = 100000000\nstored_objects = 900\n";
    writeFileSync(join(this.folder, "tenants.toml"), entries, { mode: 0o600 });
    cpSync(join(ROOT, "tests/golden-buckets/2/plain/bucket"), join(this.folder, "store"), { recursive: true });
    mkdirSync(join(this.folder, "dumps"));
    execFileSync("python3", ["-B", join(import.meta.dirname, "dumps.py"), join(this.folder, "dumps")]);
    this.prompts = JSON.parse(readFileSync(join(this.folder, "dumps/tokens.json"), "utf8"));
    // Of which a part is stored.
    this.prompt = [...this.prompts.long, ...this.prompts["late-0"]];
    this.port = await freePort();
    this.base = `http://127.0.0.1:${this.port}`;
    await this.serve();
    await this.fill();
  }

  /** Starts the service on its port. */
  async serve() {
    const log = openSync(join(this.folder, "log"), "a");
    this.service = spawn(
      this.binary,
      ["serve", "--listen", `127.0.0.1:${this.port}`, "--store.url", `file://${this.folder}/store`, "--cache.directory", join(this.folder, "cache"), "--hot.memory", "32MiB", "--hot.disk", "0", "--gc.capacity", "1GiB", "--gc.ttl", "720h", "--auth.tenants_file", join(this.folder, "tenants.toml"), "--log.filter", "warn"],
      { stdio: ["ignore", "ignore", log] },
    );
    const until = Date.now() + READY_MS_MAX;
    for (;;) {
      const answer = await fetch(`${this.base}/readyz`).catch(() => null);
      if (answer?.ok) return;
      if (this.service.exitCode !== null || Date.now() > until) throw new Error(`the service did not start: ${readFileSync(join(this.folder, "log"), "utf8")}`);
      await sleep(50);
    }
  }

  /** Ends the service, and waits for that. */
  async stop() {
    const { service } = this;
    if (service === undefined || service.exitCode !== null || service.signalCode !== null) return;
    const ended = new Promise((done) => service.once("exit", done));
    service.kill("SIGKILL");
    await ended;
  }

  /** Stores a dump as a client does. */
  put(name) {
    execFileSync(this.binary, ["context", "put", "--url", this.base, "--token-file", join(this.folder, "writer.token"), "--kv", join(this.folder, `dumps/${name}.safetensors`), "--profile", join(ROOT, "tests/golden-buckets/2/plain/profile.kvp"), "--chunk-tokens", "256"], { stdio: "pipe" });
  }

  /** @returns {Promise<any>} the answer to a request that has to succeed */
  async call(token, method, path, body) {
    const answer = await fetch(this.base + path, { method, headers: { authorization: `Bearer ${this.tokens[token]}`, "content-type": "application/json" }, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
    return answer.status === 204 ? undefined : answer.json();
  }

  /** Contexts, models and loads, some with hostile names, and a job. */
  async fill() {
    this.put("long");
    const [context] = (await this.call("writer", "GET", "/v1/contexts")).contexts;
    const spec = await this.call("writer", "GET", `/v1/models/${context.model_id}`);
    await this.call("writer", "POST", "/v1/models", { ...spec, weights: `team/${INJECTED}`, adapter: INJECTED });
    const found = await this.call("writer", "POST", "/v1/lookup", { model_id: context.model_id, namespace: "default", tokens: this.prompts.long });
    const labelled = { model_id: context.model_id, namespace: "default", chunks: found.chunks.map((chunk) => chunk.seq_hash) };
    await this.call("writer", "POST", "/v1/contexts", { ...labelled, labels: { app: "support-desk", prompt: "system v7" }, ttl_s: 86_400 });
    this.hostile = await this.call("writer", "POST", "/v1/contexts", { ...labelled, labels: { "x-name": INJECTED, other: `"onmouseover="window.ran=1` } });
    for (const [slo_ms, slow] of [[300, false], [300, true], [500, false]]) {
      const { received_at_ms: _, missed: __, ...record } = load(0, slo_ms, slow);
      await this.call("reader", "POST", "/v1/loads", record);
    }
    await this.call("operator", "POST", "/v1/admin/jobs", { kind: "gc", dry_run: true });
  }
}
