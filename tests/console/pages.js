// Every page: its address, and what is there once it has its data.

export const MODEL = "4ec814141b19dee1ca6ca2d47b93004a14a010fba32bf5b1a3ea47b81f7c8713";
export const CONTEXT = "01a20a96-c10c-7238-a81d-404a9575c465";

/** @param {number[]} tokens */
export function pages(tokens) {
  const prompt = new URLSearchParams({ model_id: MODEL, namespace: "default", tokens: tokens.join(",") });
  return [
    { name: "overview", hash: "#/overview", ready: ".tiles .tile" },
    { name: "loads", hash: "#/loads", ready: "tbody tr:visible" },
    { name: "events", hash: "#/events", ready: ".badge.good" },
    { name: "contexts", hash: "#/contexts", ready: "tbody tr:visible" },
    { name: "context", hash: `#/contexts/${CONTEXT}`, ready: ".chunk-map button" },
    { name: "explain", hash: "#/explain", ready: '#model:has(option:checked:not([value=""]))' },
    { name: "explained", hash: `#/explain?${prompt}`, ready: ".sentences li" },
    { name: "models", hash: "#/models", ready: "tbody tr:visible" },
    { name: "model", hash: `#/models/${MODEL}`, ready: "svg.drawn circle" },
    { name: "plan", hash: "#/plan", ready: "#plan-model", act: (page) => page.getByRole("button", { name: "Calculate" }).click().then(() => page.waitForSelector(".way")) },
    { name: "jobs", hash: "#/jobs", ready: "tbody tr:visible" },
    { name: "tenants", hash: "#/tenant", ready: ".tiles .tile" },
    { name: "audit", hash: "#/audit", ready: "tbody tr:visible" },
  ];
}

/** Opens a page and waits until it shows data. */
export async function visit(page, base, { hash, ready, act }) {
  await page.goto("about:blank");
  await page.goto(`${base}/console/${hash}`);
  await page.waitForSelector(ready, { timeout: 20_000 });
  if (act !== undefined) await act(page);
  // Charts draw after their library came; nothing else moves then.
  await page.waitForFunction(() => document.querySelector(".bone") === null && [...document.querySelectorAll(".chart .canvas")].every((one) => one.childElementCount > 0));
  await page.waitForTimeout(100);
}
