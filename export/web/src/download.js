/** Downloads files with progress, checks their SHA-256, and stores them for the next time. */

import { ArtefactError } from "./errors.js";
import { builtin, inNode } from "./node.js";

/** @typedef {import("./cache.js").Store} Store */
/** @typedef {{sha256: string, bytes: number}} Entry a file in a manifest */

/**
 * Returns the SHA-256 in hexadecimal, or null if the browser computes none: on pages that are not from
 * https or localhost.
 *
 * @param {Uint8Array} data
 */
export async function sha256(data) {
  if (!globalThis.crypto?.subtle) return null;
  const digest = await crypto.subtle.digest("SHA-256", /** @type {BufferSource} */ (data));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Downloads the bytes of a URL.
 *
 * @param {string} url
 * @param {{signal?: AbortSignal, onBytes?: (count: number) => void, cache?: RequestCache}} [options]
 * @returns {Promise<Uint8Array>}
 * @throws {ArtefactError} the server has no such file
 * @throws {TypeError} there is no network, or no such server
 */
export async function fetchBytes(url, { signal, onBytes, cache } = {}) {
  signal?.throwIfAborted();
  if (inNode && url.startsWith("file:")) return readFile(url, onBytes);
  const response = await fetch(url, { signal, cache });
  if (!response.ok) {
    throw new ArtefactError(`${url} cannot be read (${response.status} ${response.statusText}).`);
  }
  const parts = [];
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    onBytes?.(value.length);
  }
  return joined(parts);
}

/** @param {string} url @param {((count: number) => void) | undefined} onBytes */
async function readFile(url, onBytes) {
  try {
    const data = new Uint8Array(await builtin("node:fs/promises").readFile(new URL(url)));
    onBytes?.(data.length);
    return data;
  } catch (error) {
    throw new ArtefactError(`${url} cannot be read (${/** @type {any} */ (error).code}).`);
  }
}

/** @param {Uint8Array[]} parts */
function joined(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

/**
 * Returns a file of known size and SHA-256 from the store, or downloads, checks and stores it.
 *
 * @param {string} url
 * @param {Entry} entry
 * @param {Store | null} store
 * @param {{signal?: AbortSignal, onBytes?: (count: number) => void}} options
 */
export async function known(url, entry, store, { signal, onBytes }) {
  const key = `${url}?sha256=${entry.sha256}`;
  const stored = await store?.get(key);
  if (stored && (await fault(stored, entry)) === null) {
    onBytes?.(stored.length);
    return stored;
  }
  const data = await fetchBytes(url, { signal, onBytes, cache: "no-cache" });
  const wrong = await fault(data, entry);
  if (wrong !== null) throw new ArtefactError(`${url} ${wrong}`);
  if (store) await keep(store, key, data);
  return data;
}

/**
 * Stores a small file that lists others, after all of them, and removes their files from an earlier
 * export. So the earlier export stays whole until then.
 *
 * @param {string} url
 * @param {Uint8Array} data
 * @param {({url: string} & Entry)[]} listed
 * @param {Store} store
 */
export async function replace(url, data, listed, store) {
  await keep(store, url, data);
  const kept = new Set(listed.map((entry) => `${entry.url}?sha256=${entry.sha256}`));
  const old = (await store.keys()).filter(
    (key) => !kept.has(key) && listed.some((entry) => key.startsWith(`${entry.url}?`)),
  );
  await Promise.all(old.map((key) => store.remove(key)));
}

/**
 * Returns a small file that may change: from the network, else from the store.
 *
 * @param {string} url
 * @param {Store | null} store
 * @param {{signal?: AbortSignal}} options
 */
export async function latest(url, store, { signal }) {
  try {
    return await fetchBytes(url, { signal, cache: "no-cache" });
  } catch (error) {
    const stored = error instanceof TypeError ? await store?.get(url) : undefined;
    if (stored) return stored;
    if (!(error instanceof TypeError)) throw error;
    throw new ArtefactError(`${url} cannot be read (${error.message}): no network, or no such server.`);
  }
}

/**
 * Stores data. A full disk causes a warning, not an error.
 *
 * @param {Store} store
 * @param {string} key
 * @param {Uint8Array} data
 */
async function keep(store, key, data) {
  try {
    await store.put(key, data);
  } catch (error) {
    console.warn(`${key} is not kept for the next time: ${error}`);
  }
}

/** @param {Uint8Array} data @param {Entry} entry */
async function fault(data, entry) {
  if (data.length !== entry.bytes) {
    return (
      `has ${data.length} bytes and was written with ${entry.bytes}. It was cut off or replaced: copy the ` +
      "folder again, or export the model again."
    );
  }
  const found = await sha256(data);
  if (found === null || found === entry.sha256) return null;
  return (
    `was changed after the export: its SHA-256 is ${found}, not ${entry.sha256}. Copy the folder again, or ` +
    "export the model again."
  );
}
