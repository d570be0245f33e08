/**
 * A static server for trying the page, on this machine only: `node tools/serve.js [FOLDER] [PORT]`. It
 * sends the headers that threads need (COOP and COEP), and compresses as public servers do.
 */

import { readFile, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { join, normalize, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { brotliCompress, constants } from "node:zlib";

const [folder = fileURLToPath(new URL("..", import.meta.url)), port = "8000"] = process.argv.slice(2);
/** @type {Record<string, string>} */
const TYPES = {
  css: "text/css",
  html: "text/html; charset=utf-8",
  js: "text/javascript",
  json: "application/json",
  mjs: "text/javascript",
  wasm: "application/wasm",
};
const BROTLI = { params: { [constants.BROTLI_PARAM_QUALITY]: 5 } };
const compress = promisify(brotliCompress);
/** @type {Map<string, Promise<Buffer>>} what was compressed before, by path and tag */
const compressed = new Map();

const server = createServer((request, response) => {
  answer(request, response).catch((error) => {
    const malformed = error instanceof URIError || error.code === "ERR_INVALID_URL";
    if (!response.headersSent) response.writeHead(malformed ? 400 : 500);
    response.end();
  });
});

/**
 * @param {import("node:http").IncomingMessage} request
 * @param {import("node:http").ServerResponse} response
 */
async function answer(request, response) {
  const { pathname } = new URL(request.url ?? "/", "http://localhost");
  const path = normalize(join(folder, decodeURIComponent(pathname), pathname.endsWith("/") ? "index.html" : ""));
  const found = path.startsWith(normalize(folder + sep)) && (await stat(path).catch(() => null));
  if (!found || !found.isFile()) {
    response.writeHead(404).end();
    return;
  }
  const tag = `"${found.mtimeMs}-${found.size}"`;
  const headers = {
    "Cache-Control": "no-cache",
    "Content-Type": TYPES[path.slice(path.lastIndexOf(".") + 1)] ?? "application/octet-stream",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    ETag: tag,
  };
  if (request.headers["if-none-match"] === tag) {
    response.writeHead(304, headers).end();
    return;
  }
  const key = path + tag;
  if (!compressed.has(key)) compressed.set(key, readFile(path).then((data) => compress(data, BROTLI)));
  try {
    const data = await compressed.get(key);
    response.writeHead(200, { ...headers, "Content-Encoding": "br" }).end(data);
  } catch (error) {
    compressed.delete(key); // the file may be readable at the next request
    throw error;
  }
}

server.listen(Number(port), "127.0.0.1", () => {
  const address = /** @type {import("node:net").AddressInfo} */ (server.address());
  console.log(`http://localhost:${address.port}/`);
});
