// Visits transcribe.html of the folder `site` in Chromium: chooses the file `sound`, drops it, and records what
// the arguments of Chromium give as the microphone. Reads {site, chromium, arguments, profile, shots, sound,
// seconds}; writes {errors, chosen, dropped, recorded, figures, widths, tree}.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { serve } from "./server.js";

const asked = JSON.parse(readFileSync(0, "utf-8"));
const found = { errors: [], widths: {}, figures: [] };
const server = await serve(asked.site);
const browser = await chromium.launchPersistentContext(asked.profile, {
  executablePath: asked.chromium,
  args: asked.arguments,
  permissions: ["microphone"],
  timeout: 60000,
});
browser.setDefaultTimeout(120000);
const page = await browser.newPage();
page.on("console", (message) => message.type() === "error" && found.errors.push(message.text()));
page.on("pageerror", (error) => found.errors.push(String(error)));

const shown = async () => {
  await page.locator("#figures").filter({ hasText: "of sound" }).waitFor();
  found.figures.push(await page.locator("#figures").textContent());
  return page.getByRole("log").getByRole("listitem").allTextContents();
};

// Before an action: to wait until the page has emptied them would miss a page that is quick to fill them again.
const emptyFigures = () => page.evaluate(() => document.querySelector("#figures").replaceChildren());

await page.goto(`${server.url}transcribe.html`);
await page.getByLabel("Sound file").setInputFiles(asked.sound);
found.chosen = await shown();
const data = readFileSync(asked.sound).toString("base64");
await emptyFigures();
await page.evaluate((data) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))], "a.wav"));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}, data);
found.dropped = await shown();
await emptyFigures();
await page.getByRole("button", { name: "Record" }).click();
await page.waitForTimeout(1000 * asked.seconds);
await page.getByRole("button", { name: "Stop" }).click();
found.recorded = await shown();
found.status = await page.getByRole("status").textContent();
await page.getByLabel("Sound file").setInputFiles(new URL(import.meta.url).pathname); // no sound
await page.locator("#status.error").waitFor();
found.refused = await page.getByRole("status").textContent();
found.tree = await page.locator("body").ariaSnapshot();
for (const [name, width, height] of [["desktop", 1200, 800], ["phone", 360, 740]]) {
  await page.setViewportSize({ width, height });
  found.widths[name] = await page.evaluate(() => document.documentElement.scrollWidth);
  await page.screenshot({ path: join(asked.shots, `speech_${name}.png`), fullPage: true });
}
await browser.close();
await server.stop();
console.log(JSON.stringify(found));
