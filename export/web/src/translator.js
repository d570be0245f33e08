/** `Translator`: an exported artefact by URL, in a browser or in Node. */

import { fetchArtefact } from "./artefact.js";
import { checkedLines } from "./lines.js";
import { checkAttention, checkTranslation } from "./manifest.js";
import { openModel } from "./remote.js";

/**
 * The result of one line.
 *
 * @typedef {object} Translation
 * @property {string[]} texts hypotheses, best first. One empty text for a line without text; none for a
 *   line that could not be translated.
 * @property {number[]} scores one for each text: sum of log-probabilities / length penalty
 * @property {number[][]} ids the tokens of each text, the end token included
 * @property {number[]} sourceIds the tokens of the line, the end token included
 * @property {string | null} error why the line could not be translated
 */

/**
 * @typedef {object} LoadOptions
 * @property {(progress: Progress) => void} [onProgress] called as bytes come in
 * @property {AbortSignal} [signal] stops the loading
 * @property {boolean | string} [cache] whether to keep files in the browser's Cache API, by their SHA-256;
 *   default true. In Node the path of a folder for them; default none.
 * @property {number} [threads] of a batch; default: the machine's, at most 4. Always 1 in Node, and if the
 *   page is not isolated (headers COOP and COEP).
 */

/**
 * @typedef {object} Progress
 * @property {number} loaded bytes, after decompression
 * @property {number} total bytes
 */

/**
 * @typedef {object} CallOptions
 * @property {number} [batchTokens] maximum source tokens of a batch, padding included; default 2048. A
 *   longer line is a separate batch.
 * @property {Record<string, any>} [options] options of the search that the artefact takes, by their names in
 *   Python, such as `{ max_length: 20, target_prefix: "Der", terms: ["Hut"] }`. A value holds for all lines; an
 *   array has one for each line. `terms` and `forbidden_words` are arrays of texts, or arrays of such arrays.
 * @property {AbortSignal} [signal] rejects at once; the running batch finishes in the background
 */

const MODEL = "model.onnx";
const FILES = [MODEL, "tokenizer.model", "target_tokenizer.model"];

export class Translator {
  #remote;

  /**
   * Use `Translator.load`.
   *
   * @param {import("./remote.js").Opened} opened
   * @private
   */
  constructor({ remote, manifest, threads }) {
    this.#remote = remote;
    /** The content of `artefact.json`. */
    this.manifest = manifest;
    /** The number of threads that compute a batch. */
    this.threads = threads;
  }

  /**
   * Loads the folder that `keras_transformer.export.export_onnx` wrote.
   *
   * @param {string | URL} url of the folder; in Node also its path
   * @param {LoadOptions} [options]
   * @returns {Promise<Translator>}
   * @throws {ArtefactError} the folder is missing, damaged, foreign, of a newer format, or holds no
   *   translation search with its tokenizer
   */
  static async load(url, options = {}) {
    return new Translator(await openModel(url, checkTranslation, FILES, options));
  }

  /**
   * Returns the best translation of each line. A line that could not be translated gives "", and a warning
   * with its number and the reason.
   *
   * @param {Iterable<string>} lines
   * @param {CallOptions} [options]
   * @returns {Promise<string[]>}
   */
  async translate(lines, options) {
    const results = await this.nBest(lines, options);
    return results.map(({ texts, error }, index) => {
      if (error !== null) console.warn(`line ${index + 1} is not translated: ${error}`);
      return texts[0] ?? "";
    });
  }

  /**
   * Returns all hypotheses of each line, with scores and ids.
   *
   * @param {Iterable<string>} lines
   * @param {CallOptions} [options]
   * @returns {Promise<Translation[]>}
   */
  async nBest(lines, { batchTokens = 2048, options = {}, signal } = {}) {
    const list = checkedLines(lines);
    if (!(batchTokens >= 1)) {
      throw new RangeError(`\`batchTokens\` must be at least 1, got ${batchTokens}.`);
    }
    return this.#remote.ask("nBest", { lines: list, batchTokens, options }, { signal });
  }

  /**
   * Returns labels of ids: pieces of text in which "▁" is a space, and names of special tokens.
   *
   * @param {number[]} ids
   * @param {"source" | "target"} side whose tokenizer
   * @returns {Promise<string[]>}
   */
  labels(ids, side) {
    return this.#remote.ask("labels", { ids, side });
  }

  /**
   * Loads the folder that `keras_transformer.export.export_attention` wrote for the same model, for
   * `attention`.
   *
   * @param {string | URL} url of the folder; in Node also its path
   * @param {LoadOptions} [options]
   */
  async loadAttention(url, options = {}) {
    const { files } = await fetchArtefact(url, checkAttention, [MODEL], options);
    const model = files[MODEL];
    const transfer = [model.buffer];
    await this.#remote.ask("openAttention", { model }, { signal: options.signal, transfer });
  }

  /**
   * Returns the attention: for each token of a translation the weights of its source tokens, which sum to 1.
   *
   * @param {number[]} sourceIds of a `Translation`
   * @param {number[]} ids one of its hypotheses
   * @returns {Promise<number[][]>}
   */
  attention(sourceIds, ids) {
    return this.#remote.ask("attention", { sourceIds, ids });
  }

  /** Ends the worker and frees its memory. */
  close() {
    this.#remote.close();
  }
}
