/**
 * Stores of downloads: the browser's Cache API, or a folder in Node. Keys are strings. Writes are
 * atomic.
 */

import { builtin, inNode } from "./node.js";

const NAME = "keras-transformer-onnx";

/**
 * @typedef {object} Store
 * @property {(key: string) => Promise<Uint8Array | undefined>} get undefined if there is none to read
 * @property {(key: string, data: Uint8Array) => Promise<void>} put
 * @property {(key: string) => Promise<unknown>} remove
 * @property {() => Promise<string[]>} keys
 */

/**
 * Opens the store for `cache`, or returns null. Browsers have one only on pages from https or localhost.
 *
 * @param {boolean | string} cache in Node the path of a folder
 * @returns {Promise<Store | null>}
 */
export async function openStore(cache) {
  if (!cache) return null;
  if (inNode) return typeof cache === "string" ? folderStore(cache) : null;
  return "caches" in globalThis ? browserStore(await caches.open(NAME)) : null;
}

/** @param {Cache} cache @returns {Store} */
function browserStore(cache) {
  return {
    async get(key) {
      const found = await cache.match(key);
      return found && new Uint8Array(await found.arrayBuffer());
    },
    put: (key, data) => cache.put(key, new Response(/** @type {BodyInit} */ (data))),
    remove: (key) => cache.delete(key),
    keys: async () => (await cache.keys()).map(({ url }) => url),
  };
}

/** @param {string} folder @returns {Store} */
function folderStore(folder) {
  const fs = builtin("node:fs/promises");
  const { join } = builtin("node:path");
  const place = (/** @type {string} */ key) => join(folder, encodeURIComponent(key));
  return {
    async get(key) {
      const found = await fs.readFile(place(key)).catch(() => null);
      return found ? new Uint8Array(found) : undefined;
    },
    async put(key, data) {
      const aside = join(folder, `part-${process.pid}-${Math.random()}`);
      await fs.mkdir(folder, { recursive: true });
      try {
        await fs.writeFile(aside, data);
        await fs.rename(aside, place(key));
      } finally {
        await fs.rm(aside, { force: true });
      }
    },
    remove: (key) => fs.rm(place(key), { force: true }),
    keys: async () => (await fs.readdir(folder).catch(() => [])).flatMap(keyOf),
  };
}

/** @param {string} name of a file @returns {string[]} its key; none for a file from elsewhere */
function keyOf(name) {
  try {
    return [decodeURIComponent(name)];
  } catch {
    return [];
  }
}
