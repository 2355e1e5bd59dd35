// Runs the legs over one service, or makes the pictures:
//   check.js FOLDER BINARY [--pictures DIR]

import { openBrowser } from "./browser.js";
import { LANES, LAST } from "./legs.js";
import { pictures } from "./pictures.js";
import { World } from "./world.js";

const [folder, binary, option, to] = process.argv.slice(2);
const world = new World(folder, binary);
const browser = await openBrowser();
let failed = 0;

async function inOrder(legs) {
  for (const [name, leg] of Object.entries(legs)) {
    const began = Date.now();
    try {
      const said = await leg(world, browser);
      console.log(`ok   ${name} (${((Date.now() - began) / 1000).toFixed(1)} s): ${said}`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL ${name}: ${error.stack ?? error}`);
    }
  }
}

try {
  await world.start();
  if (option === "--pictures") {
    await pictures(world, browser, to);
  } else {
    await Promise.all(LANES.map(inOrder));
    await inOrder(LAST);
  }
} finally {
  await browser.close();
  await world.stop();
}
process.exitCode = failed === 0 ? 0 : 1;
