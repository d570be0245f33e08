/** Client of the worker: calls return promises, and can fail or be aborted. */

import { RUNTIME } from "../vendor/runtime.js";
import { fetchArtefact } from "./artefact.js";
import { revived } from "./errors.js";
import { builtin, inNode } from "./node.js";

/** @typedef {import("./manifest.js").Manifest} Manifest */
/** @typedef {{remote: Remote, manifest: Manifest, threads: number}} Opened a model in its worker */

/**
 * Fetches an artefact and ONNX Runtime, and opens them in a worker.
 *
 * @param {string | URL} url of the folder; in Node also its path
 * @param {(manifest: Manifest, url: string) => void} check throws for unsupported artefacts
 * @param {string[]} names files to fetch, if the manifest has them
 * @param {import("./translator.js").LoadOptions} options
 * @returns {Promise<Opened>}
 */
export async function openModel(url, check, names, options) {
  const { signal, threads } = options;
  const runtimeUrl = new URL(`../vendor/${RUNTIME.file}`, import.meta.url).href;
  const fetched = await fetchArtefact(url, check, names, options, [{ ...RUNTIME, url: runtimeUrl }]);
  const { manifest, files } = fetched;
  const [runtime] = fetched.extras;
  const transfer = [runtime, ...Object.values(files)].map(({ buffer }) => buffer);
  const remote = new Remote();
  try {
    const parts = { manifest, files, runtime, threads };
    const opened = await remote.ask("open", { parts }, { signal, transfer });
    return { remote, manifest, threads: opened.threads };
  } catch (error) {
    remote.close();
    throw error;
  }
}

/** Starts `worker.js` in Node or a browser. */
function start() {
  if (inNode) {
    const { Worker } = builtin("node:worker_threads");
    return new Worker(new URL("./worker.js", import.meta.url));
  }
  return new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
}

export class Remote {
  #worker = start();
  #last = 0;
  /** @type {Map<number, {resolve: (result: any) => void, reject: (error: Error) => void}>} */
  #waiting = new Map();
  /** @type {Error | null} why the worker has ended */
  #ended = null;

  constructor() {
    if (inNode) {
      this.#worker.on("message", (/** @type {any} */ data) => this.#receive(data));
      this.#worker.on("error", (/** @type {Error} */ error) => this.close(error.message));
      this.#worker.unref(); // a program may end without `close`
    } else {
      this.#worker.onmessage = (/** @type {MessageEvent} */ { data }) => this.#receive(data);
      this.#worker.onerror = (/** @type {ErrorEvent} */ { message }) =>
        this.close(message || "its script or what that imports could not be loaded");
    }
  }

  /**
   * @param {string} call
   * @param {object} fields
   * @param {{signal?: AbortSignal, transfer?: ArrayBufferLike[]}} [options]
   * @returns {Promise<any>}
   */
  ask(call, fields, { signal, transfer = [] } = {}) {
    if (this.#ended) return Promise.reject(this.#ended);
    if (signal?.aborted) return Promise.reject(signal.reason);
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      const abort = () => {
        this.#worker.postMessage({ abort: id });
        this.#settle(id)?.reject(signal?.reason);
      };
      const forget = () => signal?.removeEventListener("abort", abort);
      signal?.addEventListener("abort", abort);
      this.#waiting.set(id, {
        resolve: (result) => (forget(), resolve(result)),
        reject: (error) => (forget(), reject(error)),
      });
      if (inNode) this.#worker.ref();
      this.#worker.postMessage({ id, call, ...fields }, transfer);
    });
  }

  /**
   * Ends the worker. Pending calls fail.
   *
   * @param {string} [why]
   */
  close(why = "close() was called") {
    this.#ended ??= new Error(`The model has ended: ${why}.`);
    for (const id of [...this.#waiting.keys()]) this.#settle(id)?.reject(this.#ended);
    this.#worker.terminate();
  }

  /** @param {any} message */
  #receive({ id, result, error }) {
    const waiting = this.#settle(id);
    if (error) waiting?.reject(revived(error));
    else waiting?.resolve(result);
  }

  /** @param {number} id */
  #settle(id) {
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (inNode && !this.#waiting.size) this.#worker.unref();
    return waiting;
  }
}
