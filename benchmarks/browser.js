// Measures for `browser.py` in Node.js and Chromium.
//
//     node browser.js brotli FILE ...       sum of the compressed sizes
//     node browser.js node < request        CPU seconds in this process, one thread
//     node browser.js page < request        seconds, and CPU seconds of all Chromium processes
//
// A request is {package, folder, names, lines, rounds, visits, chromium}.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { brotliCompressSync } from "node:zlib";

const [command, ...files] = process.argv.slice(2);
const OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"];
OPTIONS.push("--disable-background-networking", "--disable-component-update", "--disable-sync");

/** Returns the CPU seconds of a function, over all threads of this process. */
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

async function inPage({ package: folder, folder: site, lines, visits, chromium }) {
  const { chromium: driver } = createRequire(join(folder, "package.json"))("playwright-core");
  const server = spawn("node", [join(folder, "tools/serve.js"), site, "0"]);
  const [line] = await once(server.stdout, "data");
  const url = String(line).trim();
  const found = { first: [], first_cpu: [] };
  for (let visit = 0; visit <= visits; visit++) {
    const profile = await mkdtemp(join(tmpdir(), "profile-"));
    const options = { executablePath: chromium, args: OPTIONS };
    const browser = await driver.launchPersistentContext(profile, options);
    const page = await browser.newPage();
    await page.goto("about:blank");
    const [started, spent] = [performance.now(), ofChildren(server.pid)];
    await page.goto(url, { waitUntil: "commit" });
    await page.fill("#source", lines[0]);
    await page.locator("#figures").filter({ hasText: "ms" }).waitFor();
    if (visit > 0) { // on the first visit, the server compresses
      found.first.push((performance.now() - started) / 1000);
      found.first_cpu.push(ofChildren(server.pid) - spent);
    }
    await browser.close();
    await rm(profile, { recursive: true, force: true });
  }
  server.kill();
  return found;
}

/** Returns the CPU seconds of all descendants of this process but one. Linux counts hundredths. */
function ofChildren(except) {
  const found = new Map();
  for (const name of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const fields = readFileSync(`/proc/${name}/stat`, "utf-8").split(") ").at(-1).split(" ");
      found.set(Number(name), { parent: Number(fields[1]), ticks: Number(fields[11]) + Number(fields[12]) });
    } catch {
      continue; // the process has ended
    }
  }
  const below = (pid) => pid === process.pid || (found.has(pid) && below(found.get(pid).parent));
  return [...found]
    .filter(([pid]) => pid !== process.pid && pid !== except && below(pid))
    .reduce((sum, [, { ticks }]) => sum + ticks / 100, 0);
}

if (command === "brotli") {
  const sizes = files.map((file) => brotliCompressSync(readFileSync(file)).length);
  console.log(sizes.reduce((sum, size) => sum + size));
} else {
  const request = JSON.parse(readFileSync(0, "utf-8"));
  console.log(JSON.stringify(await (command === "node" ? inNode : inPage)(request)));
}
process.exit(0);
