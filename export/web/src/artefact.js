/** Fetches an exported folder by URL: its manifest first, then the necessary files. */

import { openStore } from "./cache.js";
import { known, latest, replace } from "./download.js";
import { readManifest } from "./manifest.js";
import { builtin, inNode } from "./node.js";

/** @typedef {import("./manifest.js").Manifest} Manifest */
/** @typedef {import("./translator.js").LoadOptions} LoadOptions */
/** @typedef {{url: string, sha256: string, bytes: number}} Extra a file that no manifest lists */

/**
 * @param {string | URL} url of the folder; in Node also its path
 * @param {(manifest: Manifest, url: string) => void} check throws for unsupported artefacts
 * @param {string[]} names files to fetch, if the manifest has them
 * @param {LoadOptions} options
 * @param {Extra[]} [extras] more files to fetch
 * @returns {Promise<{manifest: Manifest, files: Record<string, Uint8Array>, extras: Uint8Array[]}>}
 */
export async function fetchArtefact(url, check, names, options, extras = []) {
  const { onProgress, signal, cache = true } = options;
  const folder = folderUrl(url);
  const store = await openStore(folder.startsWith("file:") ? false : cache);
  const place = new URL("artefact.json", folder).href;
  const listing = await latest(place, store, { signal });
  const manifest = await readManifest(listing, place);
  check(manifest, folder);

  const there = names.filter((name) => name in manifest.files);
  const wanted = [
    ...extras,
    ...there.map((name) => ({ url: new URL(name, folder).href, ...manifest.files[name] })),
  ];
  const total = wanted.reduce((sum, { bytes }) => sum + bytes, 0);
  let loaded = 0;
  const onBytes = (/** @type {number} */ count) => onProgress?.({ loaded: (loaded += count), total });
  onBytes(0);
  const data = await allOrNone(signal, (either) =>
    wanted.map((entry) => known(entry.url, entry, store, { signal: either, onBytes })),
  );
  if (store) await replace(place, listing, wanted, store);
  const own = data.slice(extras.length);
  const files = Object.fromEntries(there.map((name, i) => [name, own[i]]));
  return { manifest, files, extras: data.slice(0, extras.length) };
}

/**
 * Returns the results of all tasks. After the first failure, or if `signal` aborts, the other tasks
 * are stopped. The error is thrown when all have ended, so that nothing is stored after that.
 *
 * @template T
 * @param {AbortSignal | undefined} signal
 * @param {(signal: AbortSignal) => Promise<T>[]} start begins the tasks, each of which stops at the signal
 * @returns {Promise<T[]>}
 */
async function allOrNone(signal, start) {
  const failure = new AbortController();
  const tasks = start(AbortSignal.any([failure.signal, ...(signal ? [signal] : [])]));
  try {
    return await Promise.all(tasks);
  } catch (error) {
    failure.abort();
    await Promise.allSettled(tasks);
    throw error;
  }
}

/** @param {string | URL} url @returns {string} with a slash at the end */
function folderUrl(url) {
  const path = String(url);
  let whole = path;
  if (inNode && !/^[a-z][a-z\d+.-]+:/i.test(path)) whole = builtin("node:url").pathToFileURL(path).href;
  else if (!inNode) whole = new URL(path, globalThis.document?.baseURI ?? globalThis.location.href).href;
  return whole.endsWith("/") ? whole : `${whole}/`;
}
