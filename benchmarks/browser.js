// What `browser.py` measures in Node.js and Chromium.
//
//     node browser.js brotli FILE ...       the sum of their sizes, each compressed
//     node browser.js node < request        CPU seconds in this process, one thread
//     node browser.js page < request        seconds in Chromium
//
// A request is {package, folder, names, lines, rounds, chromium}, and for `page` a name.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { brotliCompressSync } from "node:zlib";

const [command, ...files] = process.argv.slice(2);
const OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"];
OPTIONS.push("--disable-background-networking", "--disable-component-update", "--disable-sync");

/** CPU seconds that a function takes, over all threads of this process. */
async function cpu(work) {
  const before = process.cpuUsage();
  await work();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1e6;
}

async function inNode({ package: folder, folder: models, names, lines, rounds }) {
  const { Translator } = await import(join(folder, "src/index.js"));
  const [found, loaded] = [{}, {}];
  for (const name of names) {
    const load = async () => (loaded[name] = await Translator.load(join(models, name)));
    found[name] = { load: await cpu(load), one: [], batch: [] };
    await loaded[name].translate(lines);
    await loaded[name].translate(lines.slice(0, 1));
  }
  for (let round = 0; round < rounds; round++) {
    for (const name of names) {
      const one = lines.slice(round, round + 1);
      found[name].one.push(await cpu(() => loaded[name].translate(one)));
      found[name].batch.push(await cpu(() => loaded[name].translate(lines)));
    }
  }
  return found;
}

async function inPage({ package: folder, folder: site, name, lines, rounds, chromium }) {
  const { chromium: driver } = createRequire(join(folder, "package.json"))("playwright-core");
  const server = spawn("node", [join(folder, "tools/serve.js"), site, "0"]);
  const [line] = await once(server.stdout, "data");
  const url = String(line).trim();
  const found = { first: [], one_thread: [], all_threads: [], threads: 0 };
  for (let round = 0; round < 3; round++) {
    const profile = await mkdtemp(join(tmpdir(), "profile-"));
    const options = { executablePath: chromium, args: OPTIONS };
    const browser = await driver.launchPersistentContext(profile, options);
    const page = await browser.newPage();
    await page.goto("about:blank");
    const started = performance.now();
    await page.goto(url, { waitUntil: "commit" });
    await page.fill("#source", lines[0]);
    await page.locator("#figures").filter({ hasText: "ms" }).waitFor();
    found.first.push((performance.now() - started) / 1000);
    if (round === 0) {
      const times = (threads) => page.evaluate(timed, { name, lines, rounds, threads });
      found.one_thread = (await times(1)).seconds;
      Object.assign(found, (({ seconds, threads }) => ({ all_threads: seconds, threads }))(await times()));
    }
    await browser.close();
    await rm(profile, { recursive: true });
  }
  server.kill();
  return found;
}

/** Runs in the page: seconds of a sentence. */
async function timed({ name, lines, rounds, threads }) {
  const { Translator } = await import("./src/index.js");
  const translator = await Translator.load(name, { threads });
  await translator.translate(lines);
  const seconds = [];
  for (let round = 0; round < rounds; round++) {
    const started = performance.now();
    await translator.translate(lines.slice(round, round + 1));
    seconds.push((performance.now() - started) / 1000);
  }
  translator.close();
  return { seconds, threads: translator.threads };
}

if (command === "brotli") {
  const sizes = files.map((file) => brotliCompressSync(readFileSync(file)).length);
  console.log(sizes.reduce((sum, size) => sum + size));
} else {
  const request = JSON.parse(readFileSync(0, "utf-8"));
  console.log(JSON.stringify(await (command === "node" ? inNode : inPage)(request)));
}
process.exit(0);
