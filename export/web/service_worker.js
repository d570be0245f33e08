/**
 * Keeps the page and its scripts, so that it opens without a network. The network comes first, so that
 * a page that is online is never an old one. Models and ONNX Runtime's WebAssembly are not kept here but
 * by `src/download.js`, by their SHA-256.
 */

const worker = /** @type {any} */ (globalThis);
const CACHE = "keras-transformer-onnx-page";
const FILES = [
  "./",
  "models.json",
  "transcribe.html",
  "page/attention.js",
  "page/page.js",
  "page/sentences.js",
  "page/style.css",
  "page/transcribe.js",
  ...["artefact", "batches", "cache", "download", "engine", "errors", "index", "lines", "manifest", "node"].map(source),
  ...["log_mel", "options", "protobuf", "remote", "speech_engine", "speech_tokens", "tokenizer"].map(source),
  ...["transcriber", "translator", "worker"].map(source),
  "vendor/ort-wasm-simd-threaded.mjs",
  "vendor/ort.wasm.min.mjs",
  "vendor/runtime.js",
  "vendor/sentencepiece.mjs",
];
const KEPT = new Set(FILES.map((file) => new URL(file, worker.location).href));

/** @param {string} name */
function source(name) {
  return `src/${name}.js`;
}

/** @param {Request} request */
async function networkFirst(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request, { ignoreSearch: true, ignoreVary: true });
    if (kept) return kept;
    throw error;
  }
}

worker.addEventListener("install", (/** @type {any} */ event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)));
});
worker.addEventListener("fetch", (/** @type {any} */ event) => {
  const url = new URL(event.request.url);
  url.search = url.hash = "";
  if (event.request.method === "GET" && KEPT.has(url.href.replace(/index\.html$/, ""))) {
    event.respondWith(networkFirst(event.request));
  }
});
