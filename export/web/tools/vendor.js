/**
 * Fills `vendor/` from `node_modules/`: what a browser loads beside `src/`, without a bundler.
 *
 * - ONNX Runtime's build for WebAssembly, as it is;
 * - SentencePiece, a CommonJS file that reads the model from Node's `fs`, as an ES module that takes the
 *   model's bytes in the place of its path;
 * - `runtime.js`: size and SHA-256 of the WebAssembly, for progress and cache.
 */

import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";

const at = (/** @type {string} */ path) => new URL(`../${path}`, import.meta.url);
const ORT = "node_modules/onnxruntime-web/dist/";
const WASM = "ort-wasm-simd-threaded.wasm";
const SENTENCEPIECE = "node_modules/@agnai/sentencepiece-js/";

mkdirSync(at("vendor"), { recursive: true });
for (const name of ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", WASM]) {
  copyFileSync(at(ORT + name), at(`vendor/${name}`));
}
writeFileSync(at("vendor/ort.wasm.min.d.mts"), 'export * from "onnxruntime-common";\n');

const wasm = readFileSync(at(`vendor/${WASM}`));
const runtime = { file: WASM, bytes: wasm.length, sha256: createHash("sha256").update(wasm).digest("hex") };
writeFileSync(at("vendor/runtime.js"), `export const RUNTIME = ${JSON.stringify(runtime)};\n`);

const source = readFileSync(at(`${SENTENCEPIECE}dist/index.js`), "utf-8");
const wrapped = `// @ts-nocheck
const node = (name) => globalThis.process?.getBuiltinModule?.(name);
const readModel = { readFileSync: (model) => model };
const made = {};
((exports, require, __filename) => {
${source.replace("var fs = require('fs');", "var fs = require('model');")}
})(made, (name) => ({ model: readModel, url: { URL } })[name] ?? node(name), "/sentencepiece.mjs");
export const SentencePieceProcessor = made.SentencePieceProcessor;
`;
writeFileSync(at("vendor/sentencepiece.mjs"), wrapped);
copyFileSync(at(`${SENTENCEPIECE}LICENSE`), at("vendor/LICENSE.sentencepiece"));
