// Headless Chromium that notes whatever a page does wrong.

import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(`${process.env.CONSOLE_MODULES}/`);
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export async function openBrowser() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

/**
 * A page of its own, with its own storage. `faults` gets what must not be: errors, refused scripts and styles, dialogs.
 * `expected` holds patterns of console errors that the test itself causes: an answer of 403 is one to the browser.
 */
export async function openPage(browser, { theme = "light", width = 1280, height = 900, token = "", timezone = "Europe/Berlin", scale = 1 } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: theme, timezoneId: timezone, deviceScaleFactor: scale, reducedMotion: "reduce" });
  const page = await context.newPage();
  page.faults = [];
  page.expected = [];
  page.on("console", (message) => {
    if (message.type() !== "error" && message.type() !== "warning") return;
    const text = `${message.text()} ${message.location().url}`;
    if (!page.expected.some((pattern) => pattern.test(text))) page.faults.push(`console: ${text}`);
  });
  page.on("pageerror", (error) => page.faults.push(`error: ${error.stack ?? error}`));
  page.on("dialog", (dialog) => {
    page.faults.push(`dialog: ${dialog.message()}`);
    dialog.dismiss().catch(() => {});
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (/^https?:$/.test(url.protocol) && url.hostname !== "127.0.0.1") page.faults.push(`request to elsewhere: ${request.url()}`);
    if (token !== "" && request.url().includes(token)) page.faults.push("the token is in an address");
  });
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sourceFile ?? ""}:${event.lineNumber}`));
    window.shifts = 0;
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
    }).observe({ type: "layout-shift", buffered: true });
  });
  if (token !== "") await page.addInitScript((value) => {
      // Not on about:blank, which has no storage.
      if (location.protocol === "http:") sessionStorage.setItem("kvasir.token", value);
    }, token);
  return page;
}

/** What the page did wrong so far. */
export async function faults(page) {
  const inside = await page.evaluate(() => ({ violations: window.violations, ran: window.ran ?? 0 }));
  return [...page.faults, ...inside.violations.map((one) => `CSP: ${one}`), ...(inside.ran ? ["injected script ran"] : [])];
}

/** Violations that axe-core finds, as text. */
export async function axe(page) {
  await page.evaluate(AXE);
  const result = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return result.violations.map((one) => `${one.id} (${one.impact}): ${one.nodes.map((node) => `${node.target.join(" ")} – ${node.failureSummary.split("\n").slice(1).join(" ").trim()}`).slice(0, 3).join(" | ")}`);
}

/** Whether anything makes the page scroll sideways, and what. */
export async function overflow(page) {
  return page.evaluate(() => {
    const room = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= room) return "";
    const wide = [...document.querySelectorAll("body *")].filter((element) => element.getBoundingClientRect().right > room + 1 && element.closest(".scroll") === null);
    return `${document.documentElement.scrollWidth} px of ${room}: ${wide.slice(0, 4).map((element) => `${element.tagName}.${element.className}`).join(", ")}`;
  });
}
