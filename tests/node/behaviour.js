// How calls, abortion and the cache behave, by `node --test`. The environment names the folder ARTEFACT of
// an artefact that knows the line "two dogs run along the beach .".

import assert from "node:assert/strict";
import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { createServer, get } from "node:http";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { tmpdir } from "node:os";
import { after, before, test } from "node:test";
import { runRows } from "../src/batches.js";
import { openStore } from "../src/cache.js";
import { sha256 } from "../src/download.js";
import { ArtefactError, Translator } from "../src/index.js";
import { sealed } from "../src/manifest.js";
import { splitSentences } from "../page/sentences.js";
import { serve } from "./server.js";

const folder = process.env.ARTEFACT;
const LINE = "two dogs run along the beach .";
let translator;

before(async () => {
  translator = await Translator.load(folder);
});
after(() => translator.close());

/** A server of the artefact, or of other files, that counts requests and may be slow with the model. */
async function counting({ slow = false, others = {} } = {}) {
  const asked = [];
  const server = createServer((request, response) => {
    const name = request.url.slice(1);
    asked.push(name);
    if (slow && name === "model.onnx") response.write("part"); // the rest never comes
    else response.end(others[name] ?? readFileSync(join(folder, name)));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () => (server.closeAllConnections(), new Promise((resolve) => server.close(resolve)));
  return { url: `http://127.0.0.1:${server.address().port}/`, asked, close };
}

test("calls that overlap are answered each", async () => {
  const lines = [[LINE], [], ["", LINE], [LINE, ""]];
  const all = await Promise.all(lines.map((some) => translator.translate(some)));
  const [[text]] = all;
  assert.ok(text);
  assert.deepEqual(all, [[text], [], ["", text], [text, ""]]);
});

test("what is no list of strings is refused", async () => {
  await assert.rejects(translator.translate(LINE), /Pass a list: translate\(\[line\]\)/);
  await assert.rejects(translator.translate([LINE, 7]), { name: "TypeError", message: /as line 2/ });
  await assert.rejects(translator.translate([LINE], { batchTokens: 0 }), RangeError);
});

test("a line with an error is empty, and a warning says why", async (context) => {
  const warn = context.mock.method(console, "warn", () => {});
  assert.deepEqual((await translator.translate(["\ud800"]))[0], "");
  assert.match(warn.mock.calls[0].arguments[0], /line 1 is not translated: half a surrogate pair/);
});

test("an aborted call is rejected at once, and the next is answered", async () => {
  const stop = new AbortController();
  const long = translator.nBest(Array(200).fill(LINE), { signal: stop.signal, batchTokens: 16 });
  stop.abort();
  await assert.rejects(long, { name: "AbortError" });
  await assert.rejects(translator.translate([LINE], { signal: stop.signal }), { name: "AbortError" });
  assert.equal((await translator.translate([LINE])).length, 1);
});

test("loading can be stopped, and then nothing is kept", async () => {
  const server = await counting({ slow: true });
  const cache = await mkdtemp(join(tmpdir(), "cache-"));
  const stop = new AbortController();
  const loading = Translator.load(server.url, { cache, signal: stop.signal });
  setTimeout(() => stop.abort(), 200);
  await assert.rejects(loading, { name: "AbortError" });
  assert.ok(!(await readdir(cache)).some((name) => name.includes("model.onnx")));
  await server.close();
  await rm(cache, { recursive: true });
});

test("files are kept by their checksum, damaged ones are fetched again", async () => {
  const server = await counting();
  const cache = await mkdtemp(join(tmpdir(), "cache-"));
  const load = async () => (await Translator.load(server.url, { cache })).close();
  await load();
  assert.deepEqual(server.asked.splice(0).sort(), ["artefact.json", "model.onnx", "tokenizer.model"]);
  await load();
  assert.deepEqual(server.asked.splice(0), ["artefact.json"]);
  const kept = (await readdir(cache)).find((name) => name.includes("tokenizer.model"));
  await writeFile(join(cache, kept), "damaged");
  await load();
  assert.deepEqual(server.asked.splice(0), ["artefact.json", "tokenizer.model"]);
  const old = encodeURIComponent(`${server.url}tokenizer.model?sha256=of-an-earlier-export`);
  await writeFile(join(cache, old), "old");
  await rm(join(cache, kept));
  await load();
  assert.ok(!(await readdir(cache)).includes(old));
  await server.close();
  await assert.rejects(Translator.load(`${server.url}other`, { cache }), /no network, or no such server/);
  await rm(cache, { recursive: true });
});

test("an update that fails leaves the earlier export for use without a network", async () => {
  const others = {};
  const server = await counting({ others });
  const cache = await mkdtemp(join(tmpdir(), "cache-"));
  const load = async () => (await Translator.load(server.url, { cache })).close();
  await load();
  const manifest = JSON.parse(readFileSync(join(folder, "artefact.json")));
  const tokenizer = Buffer.from("another tokenizer");
  manifest.files["tokenizer.model"] = { sha256: await sha256(tokenizer), bytes: tokenizer.length };
  manifest.files["model.onnx"].sha256 = "0".repeat(64);
  manifest.checksum = await sha256(new TextEncoder().encode(sealed(JSON.stringify(manifest))));
  Object.assign(others, { "artefact.json": JSON.stringify(manifest), "tokenizer.model": tokenizer });
  await assert.rejects(load(), /model.onnx was changed after the export/);
  await server.close();
  await load();
  await rm(cache, { recursive: true });
});

test("a folder with odd files is a cache, and a key too long for a file name is not kept", async () => {
  const folder = await mkdtemp(join(tmpdir(), "cache-"));
  await writeFile(join(folder, "100%.txt"), "");
  const store = await openStore(folder);
  const long = "https://a.example/".padEnd(300, "b");
  await assert.rejects(store.put(long, new Uint8Array(3)), { code: "ENAMETOOLONG" });
  assert.equal(await store.get(long), undefined);
  await store.put("https://a.example/b", new Uint8Array(3));
  assert.deepEqual(await store.get("https://a.example/b"), new Uint8Array(3));
  assert.deepEqual(await store.keys(), ["https://a.example/b"]);
  assert.equal((await readdir(folder)).length, 2);
  await rm(folder, { recursive: true });
});

test("a translator that was closed says so", async () => {
  const other = await Translator.load(folder);
  const waiting = other.translate([LINE]);
  other.close();
  await assert.rejects(waiting, /has ended: close\(\) was called/);
  await assert.rejects(other.translate([LINE]), /has ended/);
});

test("neighbours of bad rows are answered, and few rows are run where all fail alike", async () => {
  let runs = 0;
  const failing = (bad) => async (rows) => {
    runs += 1;
    if (rows.some(([id]) => bad(id))) throw new Error("the same for all");
    return rows.map(([id]) => id);
  };
  const rows = Array.from({ length: 23 }, (_, id) => [id]);
  for (const bad of [[0], [11], [5, 6], [0, 22]]) {
    const found = await runRows(failing((id) => bad.includes(id)), rows);
    found.forEach((item, id) => assert.equal(item instanceof Error, bad.includes(id)));
  }
  runs = 0;
  const found = await runRows(failing(() => true), rows);
  assert.ok(found.length === 23 && found.every((item) => item instanceof Error));
  assert.equal(runs, 6);
});

test("good rows are answered wherever the bad ones are", async () => {
  for (const message of ["failed: ERROR_CODE: 2, INVALID_ARGUMENT", "a plain failure"]) {
    const run = async (rows) => {
      if (rows.some(([id]) => id !== 3)) throw new Error(message);
      return rows.map(([id]) => id);
    };
    const other = message === "a plain failure" ? () => 0 : (id) => id; // copies of one row
    const found = await runRows(run, Array.from({ length: 53 }, (_, id) => [id === 3 ? 3 : other(id)]));
    found.forEach((item, id) => assert.equal(item instanceof Error, id !== 3));
  }
});

test("the server of the page refuses malformed addresses and goes on", async () => {
  const { url, stop } = await serve(folder);
  const status = (path) =>
    new Promise((resolve, reject) => {
      const { hostname, port } = new URL(url);
      get({ hostname, port, path }, (answer) => resolve(answer.resume().statusCode)).on("error", reject);
    });
  assert.deepEqual([await status("/%"), await status("/%ff"), await status("//")], [400, 400, 400]);
  assert.deepEqual([await status("/%00"), await status("/../../etc/passwd")], [404, 404]);
  assert.equal(await status("/artefact.json"), 200);
  await stop();
});

test("errors are of the package's own class", async () => {
  await assert.rejects(Translator.load(join(folder, "nothing")), ArtefactError);
});

test("pieces of ids can be shown", async () => {
  const [{ sourceIds, ids }] = await translator.nBest([LINE]);
  const labels = await translator.labels(sourceIds, "source");
  assert.equal(labels.join("").replaceAll("▁", " "), ` ${LINE}</s>`);
  assert.equal((await translator.labels(ids[0], "target")).length, ids[0].length);
});

test("the page translates sentence by sentence and keeps white space", () => {
  const text = "  Dr. Smith waits.  Who else? It costs 3.5.\n\n\tNo end\n你好。再见。";
  const { sentences, spaces } = splitSentences(text, "en");
  const expected = ["Dr. Smith waits.", "Who else?", "It costs 3.5.", "No end", "你好。", "再见。"];
  assert.deepEqual(sentences, expected);
  assert.deepEqual(spaces, ["  ", "  ", " ", "\n\n\t", "\n", "", ""]);
  assert.equal(spaces[0] + sentences.map((each, i) => each + spaces[i + 1]).join(""), text);
  assert.deepEqual(splitSentences(" \n ", "en"), { sentences: [], spaces: [" \n "] });
});
