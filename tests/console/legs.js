// What is checked, leg by leg. A leg throws, or says in a line what it saw.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { axe, faults, openPage, overflow } from "./browser.js";
import { MEMBERS, measured } from "./fixtures.js";
import { CONTEXT, MODEL, pages, visit } from "./pages.js";
import { INJECTED } from "./world.js";

/** A browser says an answer that is no success in its console: these are expected where the test asks for them. */
const REFUSED = [/status of 40[13]/];
const AWAY = [/ERR_CONNECTION_(REFUSED|RESET)|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED_ENCODING/];
const WIDTHS = [360, 3840];

const problem = (status) => ({ status, contentType: "application/problem+json", body: JSON.stringify({ title: "busy", detail: "try again later" }) });

const clean = async (page, where) => assert.deepEqual(await faults(page), [], where);

/** The page's types against the document that the service serves. */
async function types(world) {
  const document = join(world.folder, "openapi.json");
  writeFileSync(document, await (await fetch(`${world.base}/v1/openapi.json`)).text());
  await promisify(execFile)(join(import.meta.dirname, "types"), [document]).catch((error) => {
    throw new Error(`${error.stdout}${error.stderr}`);
  });
  return "tsc finds nothing with the types of the OpenAPI document";
}

/** Every page with data: no fault, nothing for axe in either theme, no sideways scrolling, hardly any shift. */
async function data(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  let nodes = 0;
  let worst = 0;
  for (const one of pages(world.prompt)) {
    await visit(page, world.base, one);
    await clean(page, one.name);
    const shift = await page.evaluate(() => window.shifts);
    worst = Math.max(worst, shift);
    assert(shift < 0.1, `${one.name}: the layout shifts by ${shift}`);
    assert.deepEqual(await axe(page), [], `axe, ${one.name}, light`);
    await page.emulateMedia({ colorScheme: "dark" });
    await page.waitForFunction(() => document.documentElement.dataset.theme === "dark");
    assert.deepEqual(await axe(page), [], `axe, ${one.name}, dark`);
    await page.emulateMedia({ colorScheme: "light" });
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: 900 });
      assert.equal(await overflow(page), "", `${one.name} at ${width} px`);
    }
    await page.setViewportSize({ width: 1280, height: 900 });
    await clean(page, one.name);
    nodes += 1;
  }
  await page.context().close();
  return `${nodes} pages with data, axe 0 violations in light and dark, no sideways scrolling at ${WIDTHS.join(" and ")} px, layout shift ≤ ${worst.toFixed(3)}`;
}

/** A tenant that has nothing. */
async function empty(world, browser) {
  const page = await openPage(browser, { token: world.tokens.empty });
  for (const [hash, text] of [
    ["#/overview", "Overview"],
    ["#/loads", "No loads reported yet"],
    ["#/events", "Nothing yet"],
    ["#/contexts", "No contexts yet"],
    ["#/contexts?search=nobody", "No context matches"],
    ["#/models", "No models yet"],
    ["#/tenant", "Nothing is stored."],
    ["#/explain", "no models are registered"],
    ["#/nowhere", "There is no such page"],
  ]) {
    await page.goto("about:blank");
    await page.goto(`${world.base}/console/${hash}`);
    await page.getByText(text).first().waitFor({ state: "attached", timeout: 10_000 });
    assert.equal(await overflow(page), "", hash);
  }
  await clean(page, "empty");
  page.expected = [/status of 404/];
  await page.goto("about:blank");
  await page.goto(`${world.base}/console/#/contexts/${CONTEXT}`);
  await page.getByRole("alert").waitFor();
  await clean(page, "another tenant's context");
  await page.context().close();
  return "empty states, and another tenant's context is not there";
}

/** No token, a wrong one, the right one; forgotten again. */
async function unauthorized(world, browser) {
  const page = await openPage(browser, {});
  page.expected = REFUSED;
  await page.goto(`${world.base}/console/#/contexts`);
  await page.getByRole("heading", { name: "The service asks for a credential" }).waitFor();
  assert.deepEqual(await axe(page), [], "axe, sign in");
  const field = page.getByLabel("Token", { exact: true });
  await field.fill("two words");
  await page.keyboard.press("Enter");
  await page.getByText("A token is one word").waitFor();
  await field.fill("kv_wrong");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "The service refused this credential" }).waitFor();
  await page.getByLabel("Token", { exact: true }).fill(world.tokens.reader);
  await page.keyboard.press("Enter");
  await page.waitForSelector("table tbody tr");
  assert(!page.url().includes(world.tokens.reader));
  assert.equal(await page.evaluate((token) => Object.values(localStorage).includes(token) || document.cookie.includes(token), world.tokens.reader), false);
  await page.getByRole("button", { name: "Forget" }).click();
  await page.getByRole("heading", { name: "The service asks for a credential" }).waitFor();
  assert.equal(await page.locator("table").count(), 0, "what the token showed is gone with it");
  await clean(page, "401");
  await page.context().close();
  return "401: asked, refused, accepted, forgotten";
}

/** A reader: what it may not see says so, what it may not do is refused where it was asked. */
async function forbidden(world, browser) {
  const page = await openPage(browser, { token: world.tokens.reader });
  page.expected = REFUSED;
  for (const hash of ["#/overview", "#/jobs", "#/audit"]) {
    await page.goto("about:blank");
    await page.goto(`${world.base}/console/${hash}`);
    await page.getByText("Not for this credential").first().waitFor();
    assert.deepEqual(await axe(page), [], `axe, ${hash}, 403`);
  }
  await page.goto(`${world.base}/console/#/contexts/${CONTEXT}`);
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  assert.deepEqual(await axe(page), [], "axe, dialog");
  await page.getByRole("button", { name: "Delete the context" }).click();
  await page.getByRole("alert").getByText("Not for this credential").waitFor();
  await page.keyboard.press("Escape");
  await clean(page, "403");
  await page.context().close();
  return "403: said on pages, in panels and in dialogs";
}

/** The states of the list of members, which a test's only replica does not have. */
async function members(world, browser) {
  const page = await openPage(browser, { token: world.tokens.reader });
  page.expected = REFUSED;
  const panel = page.getByRole("region", { name: "Members" });
  const shows = async (answer, text) => {
    if (answer !== undefined) await page.route("**/v1/members", (route) => route.fulfill(answer));
    await page.goto("about:blank");
    await page.goto(`${world.base}/console/#/overview`);
    await panel.getByText(text).first().waitFor();
    assert.deepEqual(await axe(page), [], `axe, members: ${text}`);
    assert.equal(await overflow(page), "", `members: ${text}`);
    if (answer !== undefined) await page.unroute("**/v1/members");
  };
  const list = (change) => ({ status: 200, contentType: "application/json", body: JSON.stringify({ ...MEMBERS, ...change }) });
  await page.setViewportSize({ width: 360, height: 900 });
  await shows(undefined, "No members are configured");
  await shows(list({}), "answers this page");
  const row = panel.getByRole("row").filter({ hasText: "kvasir-3" });
  assert.equal((await row.innerText()).replace(/\s+/g, " "), "http://kvasir-3.kvasir-headless:7480 eu-west-1b 2 33.3 %");
  assert.equal(await panel.getByText("answers this page").count(), 1);
  await shows(list({}), "2 routes of the tenant split");
  await shows(list({ members: [{ url: MEMBERS.this, weight: 1 }], splits: [] }), "None of the tenant's routes is split");
  assert.equal((await panel.getByRole("row").last().innerText()).replace(/\s+/g, " "), `${MEMBERS.this} answers this page not known 1 100 %`);
  await shows(list({ this: undefined }), "not in its own list");
  await shows(list({ members: Array.from({ length: 300 }, (_, i) => ({ url: `http://${i}.${"long".repeat(15)}:7480`, weight: 1 })) }), "300 replicas");
  const problem = { status: 403, contentType: "application/problem+json", body: JSON.stringify({ title: "forbidden", detail: "the role read is needed" }) };
  await shows(problem, "Not for this credential");
  await clean(page, "members");
  await page.context().close();
  return "members: none, one, many, 300, a replica outside its list, and 403";
}

/** Age, expiry and uses of chunks, and the errors of stored chunks against their profile's claim. */
async function chunks(world, browser) {
  const page = await openPage(browser, { token: world.tokens.reader });
  // The audit log is not for readers.
  page.expected = REFUSED;
  await page.goto(`${world.base}/console/#/contexts/${world.hostile.context_id}`);
  const row = page.getByRole("row").filter({ hasText: "expires in" }).first();
  await row.waitFor();
  assert.match(await row.innerText(), /expires in (29|30) d/);
  assert.match(await row.innerText(), /last .+ ago/);
  let beyond = false;
  await measured(page, () => [40, beyond ? 2.5 : 0.5, 0]);
  for (const [over, text] of [[false, "fits"], [true, "100 % beyond"]]) {
    beyond = over;
    await page.goto("about:blank");
    await page.goto(`${world.base}/console/#/models/${MODEL}`);
    await page.getByRole("button", { name: "Compare with stored chunks" }).click();
    await page.getByRole("region", { name: "Drift" }).getByText(text, { exact: true }).waitFor();
    assert.deepEqual(await axe(page), [], `axe, drift: ${text}`);
  }
  await clean(page, "chunks");
  await page.context().close();
  return "chunks: age, expiry and uses; drift: within the claim and beyond it";
}

/** The newest contexts are at the end of the list, after its first page. */
async function drift(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  await measured(page, () => [40, 0.5, 0]);
  const newest = await world.call("operator", "GET", `/v1/contexts/${world.hostile.context_id}`);
  const older = Array.from({ length: 12 }, (_, i) => ({ ...newest, context_id: `00000000-0000-7000-8000-${String(i).padStart(12, "0")}`, created_at_ms: i }));
  await page.route((url) => url.pathname === "/v1/contexts", (route) => {
    const isSecond = new URL(route.request().url()).searchParams.has("after");
    const list = isSecond ? { contexts: [newest] } : { contexts: older, next: older[11].context_id };
    return route.fulfill({ status: 200, contentType: "application/json", body: JSON.stringify(list) });
  });
  await page.goto(`${world.base}/console/#/models/${MODEL}`);
  await page.getByRole("button", { name: "Compare with stored chunks" }).click();
  const rows = page.getByRole("region", { name: "Drift" }).getByRole("row");
  await rows.filter({ hasText: newest.context_id.slice(0, 13) }).waitFor();
  assert.equal(await rows.count(), 2, "the head, and the newest context, with which the others share their chunks");
  await clean(page, "drift");
  await page.context().close();
  return "drift: the newest context is found on the second page of the list";
}

/** The bars show all that the service counts against the quotas. */
async function quotas(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  const answer = page.waitForResponse((response) => new URL(response.url()).pathname === "/v1/usage");
  await page.goto(`${world.base}/console/#/tenant`);
  const usage = await (await answer).json();
  const bytes = usage.bytes + usage.removed_bytes + usage.profile_bytes + usage.other_bytes;
  const objects =
    usage.objects + usage.removed_objects + usage.profiles + usage.context_versions + usage.waiting_uploads + usage.records;
  await page.getByRole("img", { name: `Objects: ${objects} of ${usage.stored_objects_max}`, exact: true }).waitFor();
  const shown = await page.getByRole("img", { name: /^Bytes: / }).locator("span").evaluate((part) => Number.parseFloat(part.style.width));
  const expected = (100 * bytes) / usage.stored_bytes_max;
  assert(Math.abs(shown - expected) < 0.001, `the bar of bytes shows ${shown} %, not ${expected} %`);
  await clean(page, "quotas");
  await page.context().close();
  return `quotas: ${objects} objects and ${bytes} bytes count`;
}

/** The audit page asks for all calls that the replica remembers, and says so where none is of the tenant. */
async function audit(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  const asked = page.waitForRequest((request) => new URL(request.url()).pathname === "/v1/admin/audit");
  await page.goto(`${world.base}/console/#/audit?tenant=nobody`);
  assert.equal(new URL((await asked).url()).searchParams.get("limit"), "1000");
  await page.getByText("None among the last 1,000 calls").waitFor();
  await clean(page, "audit");
  await page.context().close();
  return "audit: the last 1,000 calls are asked for";
}

/** Fields of filters follow the address. */
async function filters(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  for (const [name, field, without] of [["audit", "tenant", ""], ["contexts", "search", ""], ["events", "namespace", ""], ["explain", "namespace", "default"]]) {
    const has = (value) => page.waitForFunction(([id, text]) => document.getElementById(id)?.value === text, [field, value]);
    await page.goto("about:blank");
    await page.goto(`${world.base}/console/#/${name}?${field}=nobody`);
    await has("nobody");
    await page.goto(`${world.base}/console/#/${name}`);
    await has(without);
  }
  await clean(page, "filters");
  await page.context().close();
  return "filters: their fields follow the address";
}

/** A request that takes long does not make the service away, and the list of all objects has no time limit. */
async function slow(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  // The limit of 30 s is 1 s here.
  await page.addInitScript(() => {
    const timeout = AbortSignal.timeout.bind(AbortSignal);
    AbortSignal.timeout = (ms) => timeout(ms === 30_000 ? 1_000 : ms);
  });
  const banner = page.getByText("The service does not answer.");
  let asked = 0;
  await page.route("**/v1/usage", () => {
    asked += 1;
  });
  await page.goto(`${world.base}/console/#/tenant`);
  await page.getByRole("heading", { name: "Tenants", exact: true }).waitFor();
  await page.waitForTimeout(5_000);
  assert.equal(asked, 1, "the list of all objects is asked for once");
  assert.equal(await banner.count(), 0);
  await page.route((url) => url.pathname === "/v1/contexts", () => {});
  await page.goto(`${world.base}/console/#/contexts`);
  await page.getByRole("alert").getByText("The answer takes too long").waitFor();
  assert.equal(await banner.count(), 0);
  await clean(page, "slow");
  await page.context().close();
  return "slow: usage is waited for, and another slow answer is said to be slow";
}

/** Data that cannot be loaded again is called old; what is refused is no longer shown; other failures are said where they are. */
async function behind(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  page.expected = [/status of (403|429)/];
  await page.goto(`${world.base}/console/#/overview`);
  const tile = page.getByText("Hit ratio by tokens");
  await tile.waitFor();
  let status = 429;
  await page.route("**/v1/series**", (route) => route.fulfill(problem(status)));
  // The page asks again after 10 s.
  await page.getByText("Not up to date: busy.").waitFor({ timeout: 20_000 });
  assert.equal(await tile.count(), 1, "the last data stay");
  assert.deepEqual(await axe(page), [], "axe, behind");
  status = 403;
  await page.getByText("Not for this credential").first().waitFor({ timeout: 20_000 });
  assert.equal(await tile.count(), 0, "what is refused is not shown");
  assert.equal(await page.getByText("Not up to date").count(), 0);
  await page.route((url) => url.pathname.endsWith("/status"), (route) => route.fulfill(problem(429)));
  await page.goto(`${world.base}/console/#/contexts/${world.hostile.context_id}`);
  await page.getByText("Age and uses: busy.").waitFor();
  await page.route("**/v1/lookup", (route) => route.fulfill(problem(429)));
  await page.goto(`${world.base}/console/${pages(world.prompt).find((one) => one.name === "explained").hash}`);
  await page.getByRole("region", { name: "Chunks that match" }).getByRole("alert").waitFor();
  await clean(page, "behind");
  await page.context().close();
  return "behind: old data are called old, refused data are gone, failures are said";
}

/** Pinned, unpinned and deleted with a second look, and all of it in the audit log. */
async function changes(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  const id = world.hostile.context_id;
  await page.goto(`${world.base}/console/#/contexts/${id}`);
  await page.getByRole("button", { name: "Pin", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Pin", exact: true }).click();
  await page.getByRole("button", { name: "Unpin" }).waitFor();
  assert.equal((await world.call("reader", "GET", `/v1/contexts/${id}`)).pinned, true);
  const row = page.getByRole("row").filter({ hasText: `PATCH /v1/contexts/${id}` });
  await row.first().waitFor();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete the context" }).click();
  await page.getByRole("heading", { name: "Contexts", level: 1 }).waitFor();
  await page.goto(`${world.base}/console/#/audit`);
  await page.getByRole("row").filter({ hasText: `DELETE /v1/contexts/${id}` }).first().waitFor();
  await page.goto(`${world.base}/console/#/jobs`);
  await page.getByLabel("What to do").selectOption("scrub");
  await page.getByRole("button", { name: "Start…" }).click();
  await page.getByRole("button", { name: "Start the dry run" }).click();
  await page.getByRole("row").filter({ hasText: "Scrub" }).filter({ hasText: "done" }).waitFor();
  await page.getByLabel("What to do").selectOption("rebuild_index");
  await page.getByRole("button", { name: "Start…" }).click();
  await page.getByRole("button", { name: "Start the job" }).click();
  await page.getByRole("row").filter({ hasText: "Rebuild the index" }).filter({ hasText: "done" }).waitFor();
  // A tenant without a key keeps what it has, and the page says why.
  await page.getByLabel("What to do").selectOption("seal");
  await page.getByLabel("Tenant").fill("nobody");
  await page.getByRole("button", { name: "Start…" }).click();
  await page.getByRole("button", { name: "Start the job" }).click();
  await page.getByRole("row").filter({ hasText: "nobody" }).filter({ hasText: "has no key here" }).waitFor();
  await clean(page, "changes");
  await page.context().close();
  return "pin, delete and jobs, each with a second look and in the audit log";
}

/** What is stored appears without anybody asking. */
async function live(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  await page.goto(`${world.base}/console/#/events`);
  await page.getByText("live", { exact: true }).waitFor();
  const began = Date.now();
  world.put("late-0");
  await page.getByRole("row").filter({ hasText: "stored" }).first().waitFor({ timeout: 5000 });
  const took = Date.now() - began;
  await page.getByRole("button", { name: "Removed" }).click();
  await page.getByText("0 events heard").waitFor();
  await clean(page, "live");
  await page.context().close();
  return `a stored chunk is on the page ${took} ms after its upload began`;
}

/** The service goes and comes back: said, and mended without a hand. */
async function away(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  page.expected = AWAY;
  await page.goto(`${world.base}/console/#/events`);
  await page.getByText("live", { exact: true }).waitFor();
  await world.stop();
  await page.getByText("The service does not answer.").waitFor({ timeout: 15_000 });
  assert.deepEqual(await axe(page), [], "axe, away");
  await world.serve();
  await page.getByText("The service does not answer.").waitFor({ state: "detached", timeout: 20_000 });
  await page.getByText("live", { exact: true }).waitFor({ timeout: 20_000 });
  await page.goto(`${world.base}/console/#/contexts`);
  await page.waitForSelector("table tbody tr");
  await clean(page, "away");
  await page.context().close();
  return "away and back: said, and live again by itself";
}

/** Every string of every answer, and every name that is data, with markup in it: it stays text. */
async function injection(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  // Ids are no ids any more, so that what is asked with them is refused.
  page.expected = [/status of 4\d\d/];
  // Objects whose keys are data: other keys are the API's own.
  const KEYED = ["labels", "counts", "bytes_by_model"];
  const poison = (value, isKeyed = false) => {
    if (typeof value === "string") return value + INJECTED;
    if (Array.isArray(value)) return value.map((one) => poison(one));
    if (value !== null && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([name, inner]) => [isKeyed ? name + INJECTED : name, poison(inner, KEYED.includes(name))]));
    return value;
  };
  await page.route("**/v1/**", async (route) => {
    if (route.request().url().includes("/v1/events")) {
      const event = { event_id: "1", timestamp_ms: Date.now(), event_type: "stored", tenant_id: "t", namespace: "n", model_name: "m", lora_name: "l", block_size: 16, backend_id: "b", medium: "cpu", seq_hash: "s", reason: "r", block_hashes: [] };
      return route.fulfill({ status: 200, contentType: "text/event-stream", body: `id: 1\nevent: stored\ndata: ${JSON.stringify(poison(event))}\n\n` });
    }
    const answer = await route.fetch().catch(() => null);
    if (answer === null) return route.abort();
    const text = await answer.text();
    const body = text === "" ? "" : JSON.stringify(poison(JSON.parse(text)));
    return route.fulfill({ response: answer, body });
  });
  let texts = 0;
  for (const { name, hash } of pages(world.prompt)) {
    await page.goto("about:blank");
    await page.goto(`${world.base}/console/${hash}`);
    await page.waitForSelector("main h1");
    // Pages without a name to show are looked at after that.
    await page.waitForFunction(() => document.body.innerText.includes("<script>window.ran=1</script>"), undefined, { timeout: 3000 }).catch(() => {});
    await page.waitForTimeout(100);
    await clean(page, `injection, ${name}`);
    const found = await page.evaluate(() => ({ elements: document.querySelectorAll('img[src="x"], main script').length, text: document.body.innerText.includes("<script>window.ran=1</script>") }));
    assert.equal(found.elements, 0, `injection, ${name}`);
    texts += found.text ? 1 : 0;
  }
  assert(texts >= 8, `the names are shown as text on ${texts} pages only`);
  await page.context().close();
  return `markup in every string of every answer: text on ${texts} pages, nothing ran`;
}

/** Without a mouse. */
async function keyboard(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  await page.goto(`${world.base}/console/#/overview`);
  await page.waitForSelector(".tiles");
  const focused = () => page.evaluate(() => document.activeElement?.textContent?.trim() ?? "");
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Skip to the page");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "content");
  assert(page.url().endsWith("#/overview"), "skipping keeps the address");
  await page.locator("nav a").nth(3).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Contexts", level: 1 }).waitFor();
  await page.waitForFunction(() => document.activeElement?.tagName === "H1");
  await page.getByRole("link", { name: /^01a20a96/ }).press("Enter");
  await page.locator(".chunk-map button").first().press("Enter");
  await page.waitForSelector('.chunk-map button[aria-pressed="true"]');
  const opener = page.getByRole("button", { name: "Delete", exact: true });
  await opener.press("Enter");
  // A dialog begins with what is harmless.
  await page.waitForFunction(() => document.activeElement?.textContent === "Cancel");
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => document.activeElement?.textContent === "Delete");
  await page.setViewportSize({ width: 360, height: 740 });
  await page.getByRole("button", { name: "Menu" }).press("Enter");
  await page.getByRole("link", { name: "Jobs" }).press("Enter");
  await page.getByRole("heading", { name: "Jobs", level: 1 }).waitFor();
  await clean(page, "keyboard");
  await page.context().close();
  return "skip link, navigation, chunk map, dialogs and the menu by keyboard";
}

/** Over a link like a phone's: reported, not asserted. */
async function paint(world, browser) {
  const page = await openPage(browser, { token: world.tokens.operator });
  const link = await page.context().newCDPSession(page);
  await link.send("Network.enable");
  await link.send("Network.emulateNetworkConditions", { offline: false, latency: 150, downloadThroughput: 1_600_000 / 8, uploadThroughput: 750_000 / 8 });
  let bytes = 0;
  link.on("Network.loadingFinished", (event) => {
    bytes += event.encodedDataLength;
  });
  await page.goto(`${world.base}/console/#/contexts`);
  await page.waitForSelector("table tbody tr");
  const data = await page.evaluate(() => Math.round(performance.now()));
  const first = await page.evaluate(() => Math.round(performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN));
  await page.context().close();
  return `over 1.6 Mbit/s with 150 ms round trips: first paint after ${first} ms, data after ${data} ms, ${Math.round(bytes / 1000)} kB`;
}

/** Those that only read, in two lanes beside each other; then those that change something or measure. */
export const LANES = [{ data }, { types, empty, unauthorized, forbidden, members, chunks, drift, quotas, audit, filters, slow, behind, keyboard, injection }];
export const LAST = { changes, live, away, paint };
