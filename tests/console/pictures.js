// Each page in light and dark, wide and narrow, with an hour of data that a test's service does not have.

import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { faults, openPage } from "./browser.js";
import * as fixtures from "./fixtures.js";
import { pages, visit } from "./pages.js";

const WIDTHS = [1440, 390];

export async function pictures(world, browser, folder) {
  mkdirSync(folder, { recursive: true });
  let stored = 0;
  for (const theme of ["light", "dark"]) {
    for (const width of WIDTHS) {
      const page = await openPage(browser, { theme, width, token: world.tokens.operator });
      const now_ms = Date.now();
      const answer = (body) => (route) => route.fulfill({ status: 200, contentType: "application/json", body: JSON.stringify(body) });
      await page.route("**/v1/series**", answer(fixtures.series(now_ms)));
      await page.route("**/v1/loads**", answer(fixtures.loads(now_ms)));
      await page.route("**/v1/members", answer(fixtures.MEMBERS));
      await fixtures.measured(page, (at) => [31 + at, at === 0 ? 0.71 : 1.41, 0]);
      for (const one of pages(world.prompt)) {
        await visit(page, world.base, one);
        if (one.name === "events") {
          stored += 1;
          world.put(`late-${stored}`);
          await page.waitForSelector("tbody tr");
        }
        if (one.name === "model") {
          await page.getByRole("button", { name: "Compare with stored chunks" }).click();
          await page.getByText("Median:").waitFor();
        }
        // A click scrolls to its button.
        await page.evaluate(() => scrollTo(0, 0));
        const file = join(folder, `${one.name}-${theme}-${width}.png`);
        await page.screenshot({ path: file, fullPage: true });
        const found = await faults(page);
        if (found.length > 0) throw new Error(`${file}: ${found.join("; ")}`);
        console.log(file);
      }
      await page.context().close();
    }
  }
}
