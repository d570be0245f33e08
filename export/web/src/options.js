/**
 * Options of a call: numbers and texts as inputs of the model. Shapes: B lines of a batch, L tokens of
 * the longest text, N texts of a line.
 */

import * as ort from "../vendor/ort.wasm.min.mjs";
import { padRows } from "./batches.js";
import { fields } from "./protobuf.js";

/** @typedef {number | string | string[]} Value of a line */
/** @typedef {import("./manifest.js").OptionEntry} OptionEntry */

const UNKNOWN_ID = 1;
// Numbers of fields in ONNX's messages, and one that GraphProto lacks.
const [GRAPH, INITIALIZER, TENSOR_NAME, NO_FIELD] = [7, 5, 8, 3];
const BYTES = 2; // the kind of a field
// Scripts without spaces between words, as in `keras_transformer/text/words.py`.
const NO_SPACES =
  /[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff65\u{20000}-\u{3ffff}]/u;
// Options that have no effect without another one.
const NEEDS = { prefix_bias: "biased_prefix" };

/**
 * Removes the defaults of options from a model, in place. onnxruntime-web accepts no value for an input with
 * a default. Each such initializer gets the key of a field that ONNX does not read.
 *
 * @param {Uint8Array} model content of an ONNX file
 * @param {OptionEntry[]} entries
 */
export function withoutDefaults(model, entries) {
  const names = new Set(entries.map(({ name }) => name));
  const text = new TextDecoder();
  for (const { number, value: graph } of fields(model)) {
    if (number !== GRAPH || !graph) continue;
    for (const { number: field, start, value: tensor } of fields(graph)) {
      if (field !== INITIALIZER || !tensor) continue;
      const name = [...fields(tensor)].find((part) => part.number === TENSOR_NAME)?.value;
      if (name && names.has(text.decode(name))) graph[start] = NO_FIELD * 8 + BYTES;
    }
  }
}

/** The options of an artefact. */
export class Options {
  /**
   * @param {OptionEntry[]} entries of the manifest
   * @param {import("./tokenizer.js").Tokenizer} tokenizer of the target
   */
  constructor(entries, tokenizer) {
    this.entries = entries;
    this.tokenizer = tokenizer;
  }

  /**
   * Returns a function from the line numbers of a batch to inputs of the model.
   *
   * @param {Record<string, any>} values by name: for all lines, or an array with one for each line
   * @param {number} lines how many
   * @returns {(keys: number[]) => Record<string, ort.Tensor>}
   * @throws {TypeError | RangeError} a value does not fit, or the artefact does not take the option
   */
  read(values, lines) {
    const known = this.entries.map(({ name }) => name);
    const unknown = Object.keys(values).find((name) => !known.includes(name));
    if (unknown !== undefined) {
      throw new TypeError(`'${unknown}' was passed, but this artefact takes the options [${known.join(", ")}].`);
    }
    for (const [name, needed] of Object.entries(NEEDS)) {
      if ((values[name] ?? null) !== null && (values[needed] ?? null) === null) {
        throw new RangeError(`${name} has no effect without ${needed}. Pass both, or neither.`);
      }
    }
    const makers = this.entries.map((entry) => {
      const value = values[entry.name];
      if (value === undefined || value === null) return () => defaultTensor(entry);
      if (!isByLine(entry, value)) {
        const tensor = this.#tensor(entry, [this.#value(entry, value)]);
        return () => tensor;
      }
      if (value.length !== lines) {
        throw new RangeError(`\`${entry.name}\` has ${value.length} values, and there are ${lines} lines.`);
      }
      const each = value.map((/** @type {Value} */ one) => this.#value(entry, one));
      return (/** @type {number[]} */ keys) => this.#tensor(entry, keys.map((key) => each[key]));
    });
    this.#checkLengths(values);
    return (keys) => Object.fromEntries(this.entries.map(({ name }, place) => [name, makers[place](keys)]));
  }

  /**
   * Throws a RangeError if the `max_length` of a line is below its `min_length`.
   *
   * @param {Record<string, any>} values
   */
  #checkLengths(values) {
    const [least, most] = ["min_length", "max_length"].map((name) =>
      [values[name] ?? this.entries.find((entry) => entry.name === name)?.default ?? -1].flat(),
    );
    for (let line = 0; line < Math.max(least.length, most.length); line++) {
      const [min, max] = [least[line] ?? least[0], most[line] ?? most[0]];
      if (max >= 1 && max < min) {
        throw new RangeError(`max_length ${max} is below min_length ${min}. Change one of them.`);
      }
    }
  }

  /**
   * Returns the value of a line: a number, ids, or ids of several texts.
   *
   * @param {OptionEntry} entry
   * @param {any} value
   */
  #value(entry, value) {
    const rank = entry.axes.length;
    if (rank < 2) return checkedNumber(entry, value);
    if (rank === 2) return this.#ids(entry, value);
    if (!Array.isArray(value)) throw new TypeError(`\`${entry.name}\` must be an array of texts.`);
    return value.flatMap((text) => this.#words(entry, text));
  }

  /** @param {OptionEntry} entry @param {any} text */
  #ids({ name }, text) {
    if (typeof text !== "string") throw new TypeError(`\`${name}\` must be a text, got ${typeof text}.`);
    return this.tokenizer.encode(text);
  }

  /**
   * Returns the ids of a word, in one form or more: in a script without spaces between words, a term is
   * written without the space that the tokenizer puts before it, and a forbidden word is forbidden with
   * and without it.
   *
   * @param {OptionEntry} entry @param {any} text
   * @returns {number[][]}
   */
  #words(entry, text) {
    const [ids, isTerm] = [this.#ids(entry, text), entry.name === "terms"];
    if (!ids.length || (isTerm && ids.includes(UNKNOWN_ID))) {
      const piece = JSON.stringify(text);
      throw new RangeError(`The target's tokenizer has no pieces for ${piece} of ${entry.name}. Leave it out.`);
    }
    const pieces = this.tokenizer.pieces;
    const [first, rest] = [pieces[ids[0]].replace(/^▁/, ""), ids.slice(1)];
    const place = first ? pieces.indexOf(first) : -1;
    const within = first ? (place < 0 ? [] : [place, ...rest]) : rest;
    if (!within.length || place === ids[0] || !NO_SPACES.test(text)) return [ids];
    return isTerm ? [within] : [ids, within];
  }

  /**
   * Returns the input for the values of lines: (B,), (B, L) or (B, N, L); or a scalar.
   *
   * @param {OptionEntry} entry
   * @param {any[]} values results of `#value`
   */
  #tensor({ dtype, axes }, values) {
    const rank = axes.length;
    if (rank < 2) return numbers(dtype, values, rank ? [values.length] : []);
    if (rank === 2) {
      const { ids, dims } = padRows(values);
      return new ort.Tensor("int32", ids, dims);
    }
    const count = Math.max(...values.map((texts) => texts.length));
    const rows = values.flatMap((texts) => [...texts, ...Array(count - texts.length).fill([])]);
    const { ids, dims } = rows.length ? padRows(rows) : { ids: new Int32Array(0), dims: [0, 0] };
    return new ort.Tensor("int32", ids, [values.length, count, dims[1]]);
  }
}

/**
 * Returns whether a value is an array with one value for each line.
 *
 * @param {OptionEntry} entry
 * @param {any} value
 */
function isByLine({ axes }, value) {
  if (!axes.length || !Array.isArray(value)) return false;
  return axes.length < 3 || Array.isArray(value[0]);
}

/** @param {OptionEntry} entry @returns {ort.Tensor} */
export function defaultTensor({ dtype, axes, default: value }) {
  if (axes.length < 2) return numbers(dtype, [value].flat(), axes.length ? [1] : []);
  return numbers(dtype, [], [1, ...Array(axes.length - 1).fill(0)]);
}

/** @param {string} dtype @param {number[]} values @param {number[]} dims */
function numbers(dtype, values, dims) {
  if (dtype === "int32") return new ort.Tensor("int32", Int32Array.from(values), dims);
  return new ort.Tensor("float32", Float32Array.from(values), dims);
}

/** @param {OptionEntry} entry @param {any} value @returns {number} */
function checkedNumber({ name, dtype, lowest, highest }, value) {
  const isInteger = dtype === "int32";
  if (!(isInteger ? Number.isInteger(value) : typeof value === "number")) {
    throw new TypeError(`${name} must be ${isInteger ? "an integer" : "a number"}, got ${value} (${typeof value}).`);
  }
  if (!Number.isFinite(value) || value < (lowest ?? -Infinity) || value > (highest ?? Infinity)) {
    // The smallest float32 stands for "above 0".
    const least = lowest !== null && lowest > 0 && lowest < 1e-30 ? "above 0" : `at least ${lowest}`;
    const most = highest === null ? "finite" : `at most ${highest}`;
    throw new RangeError(`${name} must be ${least} and ${most}, got ${value}.`);
  }
  return value;
}
