// Visits the page of the folder `site` in Chromium, by keyboard, as a phone and as a desktop, with the
// network and without, and without the headers that threads need (`plain`, a server's address). Reads
// {site, plain, chromium, arguments, profile, shots, lines, sentence, paragraph, again}; writes what it found.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { serve } from "./server.js";

const asked = JSON.parse(readFileSync(0, "utf-8"));
const found = { errors: [], widths: {} };
const server = await serve(asked.site);
const browser = await chromium.launchPersistentContext(asked.profile, {
  executablePath: asked.chromium,
  args: asked.arguments,
  viewport: { width: 1200, height: 800 },
  timeout: 60000,
});
browser.setDefaultTimeout(60000);
const page = await browser.newPage();
page.on("console", (message) => message.type() === "error" && found.errors.push(message.text()));
page.on("pageerror", (error) => found.errors.push(String(error)));

const says = (page, text) => page.getByRole("status").filter({ hasText: text }).textContent();
const translated = async (page) => {
  await page.locator("#figures").filter({ hasText: "ms" }).waitFor();
  return page.getByRole("status", { name: "Translation" }).textContent();
};
// Lines in the page's own way: with the package, in its worker.
const nBest = (page, lines) =>
  page.evaluate(async (lines) => {
    const { Translator } = await import("./src/index.js");
    const translator = await Translator.load("model");
    const results = await translator.nBest(lines);
    translator.close();
    return { results, threads: translator.threads };
  }, lines);

await page.goto(server.url);
found.ready = await says(page, "Works without a network now");
found.isolated = await page.evaluate(() => crossOriginIsolated);
Object.assign(found, await nBest(page, asked.lines));

// By keyboard alone: every control in turn, then text and Ctrl+Enter.
found.controls = [];
for (let i = 0; i < 4; i++) {
  await page.keyboard.press("Tab");
  found.controls.push(
    await page.evaluate(() => {
      const { id, textContent, labels } = document.activeElement;
      const outline = getComputedStyle(document.activeElement).outlineStyle;
      return { id, name: (labels?.[0] ?? document.activeElement).textContent, outline };
    }),
  );
}
await page.getByRole("textbox", { name: "Text" }).focus();
await page.keyboard.type(asked.sentence);
await page.keyboard.press("Control+Enter");
found.typed = await translated(page);
found.figures = await page.locator("#figures").textContent();
await page.getByRole("textbox", { name: "Text" }).fill("dog ".repeat(600));
await page.locator("#result .failed").waitFor();
found.refused = await page.locator("#result").textContent();
await page.getByRole("textbox", { name: "Text" }).fill(asked.sentence);
await page.locator("#result .failed").waitFor({ state: "detached" });
await page.getByRole("textbox", { name: "Text" }).fill(asked.paragraph);
await page.locator("#result span").nth(1).waitFor();
found.paragraph = await page.locator("#result").textContent();
await page.getByRole("textbox", { name: "Text" }).fill(asked.sentence);
await page.locator("#result span").nth(1).waitFor({ state: "detached" });
await page.getByText("Other translations").click();
found.others = await page.getByRole("listitem").count();
await page.getByText("Attention", { exact: true }).click();
const cells = page.getByRole("table").getByRole("cell");
await cells.last().waitFor();
found.columns = await page.getByRole("columnheader").allTextContents();
found.rows = await page.getByRole("rowheader").count();
found.weights = (await cells.allTextContents()).filter(Boolean).map(Number);
found.tree = await page.locator("body").ariaSnapshot();
for (const [name, width, height] of [["desktop", 1200, 800], ["phone", 360, 740]]) {
  await page.setViewportSize({ width, height });
  found.widths[name] = await page.evaluate(() => document.documentElement.scrollWidth);
  await page.screenshot({ path: join(asked.shots, `${name}.png`), fullPage: true });
}
found.errors_online = found.errors.splice(0);

await server.stop();
await page.reload();
found.offline_status = await says(page, "Ready");
await page.getByRole("textbox", { name: "Text" }).fill(asked.sentence);
found.offline_typed = await translated(page);
found.offline = (await nBest(page, asked.lines.slice(0, asked.again))).results;

const other = await browser.newPage();
await other.goto(asked.plain);
await says(other, "Ready");
await other.getByRole("textbox", { name: "Text" }).fill(asked.sentence);
found.plain_typed = await translated(other);
found.plain_figures = await other.locator("#figures").textContent();

await browser.close();
console.log(JSON.stringify(found));
