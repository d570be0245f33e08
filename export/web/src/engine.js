/**
 * Runs one artefact in the worker: encodes lines, batches ids of similar length, and runs the model once per
 * batch. Shapes: B lines of a batch, S tokens of the longest, W beam width, T tokens of the longest
 * hypothesis.
 */

import * as ort from "../vendor/ort.wasm.min.mjs";
import { batches, padRows, runRows } from "./batches.js";
import { ArtefactError } from "./errors.js";
import { encodeLines } from "./lines.js";
import { inNode } from "./node.js";
import { Options, withoutDefaults } from "./options.js";
import { Tokenizer } from "./tokenizer.js";

/** @typedef {import("./manifest.js").Manifest} Manifest */
/** @typedef {import("./translator.js").Translation} Translation */

const BEGIN_ID = 2;
const REPLACEMENT = "\ufffd";
const MOST_THREADS = 4; // more do not help models of this size, and heat phones

export class Engine {
  /**
   * @param {ort.InferenceSession} session
   * @param {Tokenizer} source
   * @param {Tokenizer} target
   * @param {number} sourceLimit
   * @param {Options} options
   */
  constructor(session, source, target, sourceLimit, options) {
    this.session = session;
    this.source = source;
    this.target = target;
    this.sourceLimit = sourceLimit;
    this.options = options;
    /** @type {ort.InferenceSession | null} */
    this.attentionSession = null;
  }

  /**
   * @param {object} parts
   * @param {Manifest} parts.manifest
   * @param {Record<string, Uint8Array>} parts.files the artefact's, by name
   * @param {Uint8Array} parts.runtime WebAssembly of ONNX Runtime
   * @param {number} [parts.threads]
   */
  static async open({ manifest, files, runtime, threads }) {
    startRuntime(runtime, threads);
    const sizes = manifest.vocab_size;
    const source = await Tokenizer.load(files["tokenizer.model"], "tokenizer.model", sizes.source);
    const own = "target_tokenizer.model";
    const target = files[own] ? await Tokenizer.load(files[own], own, sizes.target) : source;
    const entries = manifest.options ?? [];
    withoutDefaults(files["model.onnx"], entries);
    const session = await openSession(files["model.onnx"]);
    const options = new Options(entries, target);
    return new Engine(session, source, target, manifest.limits.source_length, options);
  }

  /** The number of threads that compute a batch. */
  get threads() {
    return ort.env.wasm.numThreads ?? 1;
  }

  /**
   * Returns all hypotheses of each line.
   *
   * @param {string[]} lines
   * @param {number} batchTokens
   * @param {Record<string, any>} values options of the search
   * @param {() => Promise<void>} pause awaited before each batch; may throw, to stop
   * @returns {Promise<Translation[]>}
   */
  async nBest(lines, batchTokens, values, pause) {
    const optionsOf = this.options.read(values, lines.length);
    const { rows, refused } = encodeLines(lines, this.source, this.sourceLimit);
    /** @type {Translation[]} */
    const results = lines.map((_, index) =>
      refused.has(index) ? failed(refused.get(index) ?? "") : { ...EMPTY },
    );
    for (const keys of batches(rows, batchTokens)) {
      await pause();
      const numbers = new Map(keys.map((key) => [rows.get(key) ?? [], key]));
      const found = await runRows(
        (part) => this.#run(part, optionsOf(part.map((row) => numbers.get(row) ?? 0))),
        [...numbers.keys()],
      );
      keys.forEach((key, index) => {
        results[key] = this.#result(rows.get(key) ?? [], found[index]);
      });
    }
    return results;
  }

  /** @param {Uint8Array} model the ONNX file that computes attention */
  async openAttention(model) {
    this.attentionSession = await openSession(model);
  }

  /**
   * Returns the attention of the steps that wrote `ids`, T rows of S weights.
   *
   * @param {number[]} sourceIds
   * @param {number[]} ids
   */
  async attention(sourceIds, ids) {
    if (!this.attentionSession) throw new Error("No attention is loaded: call loadAttention(url) first.");
    const row = (/** @type {number[]} */ some) => new ort.Tensor("int32", Int32Array.from(some), [1, some.length]);
    const target_ids = row([BEGIN_ID, ...ids.slice(0, -1)]);
    const { attention } = await this.attentionSession.run({ source_ids: row(sourceIds), target_ids });
    const weights = Array.from(/** @type {Float32Array} */ (attention.data));
    const width = sourceIds.length;
    return ids.map((_, step) => weights.slice(step * width, (step + 1) * width));
  }

  /**
   * Returns readable labels of ids.
   *
   * @param {number[]} ids
   * @param {"source" | "target"} side
   */
  labels(ids, side) {
    return this[side].labels(ids);
  }

  /**
   * Returns the ids (W, T) and scores (W) of each row.
   *
   * @param {number[][]} rows
   * @param {Record<string, ort.Tensor>} options
   */
  async #run(rows, options) {
    const { ids, dims } = padRows(rows);
    const outputs = await this.session.run({ source_ids: new ort.Tensor("int32", ids, dims), ...options });
    const { token_ids, scores } = outputs;
    const [, width, length] = token_ids.dims;
    const size = width * length;
    const cut = (/** @type {any} */ data, /** @type {number} */ row, /** @type {number} */ count) =>
      Array.from(data.subarray(row * count, (row + 1) * count), Number);
    return rows.map((_, row) => {
      const flat = cut(token_ids.data, row, size);
      return {
        ids: Array.from({ length: width }, (_, beam) => flat.slice(beam * length, (beam + 1) * length)),
        scores: cut(scores.data, row, width),
      };
    });
  }

  /**
   * @param {number[]} sourceIds
   * @param {{ids: number[][], scores: number[]} | Error} outputs
   * @returns {Translation}
   */
  #result(sourceIds, outputs) {
    if (outputs instanceof Error) return failed(`onnxruntime failed: ${outputs.message}`);
    const { ids, scores } = outputs;
    if (scores.some(Number.isNaN) || scores[0] === -Infinity) {
      return failed(`the model gave the scores [${scores.join(", ")}]`);
    }
    try {
      // If the search found fewer hypotheses, the rest of the beam has the score -Infinity.
      const found = ids.filter((_, index) => scores[index] > -Infinity);
      const decoded = found.map((row) => this.target.decode(row).replaceAll("\0", REPLACEMENT));
      // Several sequences of pieces may have one text: it is there once, with its best score.
      const kept = [...decoded.keys()].filter((row) => decoded.indexOf(decoded[row]) === row);
      return {
        texts: kept.map((row) => decoded[row]),
        scores: kept.map((row) => scores[row]),
        ids: kept.map((row) => found[row].filter((id) => id !== 0)),
        sourceIds,
        error: null,
      };
    } catch (error) {
      return failed(/** @type {Error} */ (error).message);
    }
  }
}

/** The result of a line without text: one empty hypothesis. @type {Translation} */
const EMPTY = { texts: [""], scores: [0], ids: [[]], sourceIds: [], error: null };

/** @param {string} reason @returns {Translation} */
function failed(reason) {
  return { texts: [], scores: [], ids: [], sourceIds: [], error: reason };
}

/** @param {Uint8Array} model content of an ONNX file */
export async function openSession(model) {
  try {
    return await ort.InferenceSession.create(model, {
      executionProviders: ["wasm"],
      enableMemPattern: false, // a pattern is kept for each shape, and almost every batch has a new one
      logSeverityLevel: 4,
    });
  } catch (error) {
    throw new ArtefactError(`onnxruntime-web ${ort.env.versions.web} cannot run model.onnx: ${error}`);
  }
}

/**
 * @param {Uint8Array} runtime
 * @param {number} [threads] default: the machine's, at most 4, if the page is isolated; else 1
 */
export function startRuntime(runtime, threads) {
  const isolated = !inNode && globalThis.crossOriginIsolated;
  const most = isolated ? Math.min(MOST_THREADS, navigator.hardwareConcurrency || 1) : 1;
  ort.env.wasm.numThreads = isolated ? (threads ?? most) : 1;
  ort.env.wasm.wasmBinary = /** @type {ArrayBuffer} */ (runtime.buffer);
  ort.env.wasm.wasmPaths = { mjs: new URL("../vendor/ort-wasm-simd-threaded.mjs", import.meta.url).href };
}
