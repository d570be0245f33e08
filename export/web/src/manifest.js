/**
 * Reads `artefact.json` and checks whether this package can serve the folder. The checks are a part of
 * Python's `manifest.py`. Every sealed artefact passed all of them there.
 */

import { sha256 } from "./download.js";
import { ArtefactError } from "./errors.js";

const FORMAT = "keras-transformer-onnx";
const FORMAT_VERSION = 1;
const EXPORT_AGAIN = "Copy the folder again, or export the model again.";

/**
 * An option of a call: an input of the model. Its default is a number, or an array of numbers.
 *
 * @typedef {object} OptionEntry
 * @property {string} name
 * @property {string} dtype "int32" or "float32"
 * @property {string[]} axes
 * @property {any} default
 * @property {number | null} lowest of its numbers, null for texts
 * @property {number | null} highest
 */

/**
 * The fields of a manifest that this package reads.
 *
 * @typedef {object} Manifest
 * @property {string} task
 * @property {{name: string, axes: (string | number)[]}[]} inputs
 * @property {OptionEntry[]} [options] inputs with a default
 * @property {{name: string}[]} outputs
 * @property {{source: number, target: number}} vocab_size
 * @property {{source_length: number, target_length: number}} limits
 * @property {string} precision
 * @property {Record<string, {sha256: string, bytes: number}>} files
 * @property {{class_name: string, config: Record<string, any>}} search
 * @property {string} [layout]
 * @property {string} [engine]
 * @property {Record<string, string>} versions
 */

/**
 * Parses the bytes of `artefact.json`, and checks that the manifest is undamaged.
 *
 * @param {Uint8Array} data
 * @param {string} url of the file, for errors
 * @returns {Promise<Manifest>}
 */
export async function readManifest(data, url) {
  const text = new TextDecoder().decode(data);
  let manifest;
  try {
    manifest = JSON.parse(text);
  } catch (error) {
    throw new ArtefactError(
      `${url} is not JSON (${/** @type {Error} */ (error).message}). Is this the folder that export_onnx wrote?`,
    );
  }
  if (manifest?.format !== FORMAT) {
    throw new ArtefactError(
      `${url} does not say format='${FORMAT}'. The folder is not an artefact of ` +
        "keras_transformer.export.export_onnx, or it is damaged.",
    );
  }
  if (manifest.format_version !== FORMAT_VERSION) {
    throw new ArtefactError(
      `This artefact has format_version ${manifest.format_version}, and this package reads ` +
        `${FORMAT_VERSION}. Use the release that wrote it, or export again.`,
    );
  }
  const found = await sha256(new TextEncoder().encode(sealed(text)));
  if (found !== null && found !== manifest.checksum) {
    throw new ArtefactError(
      `${url} is damaged or was edited by hand: its checksum should be ${found}. ${EXPORT_AGAIN}`,
    );
  }
  return manifest;
}

/**
 * Returns the text under the checksum: all other fields, sorted by name, as Python's `json.dumps` writes
 * them without white space. Numbers stay as they are written: 1.0 is not 1.
 *
 * @param {string} text
 */
export function sealed(text) {
  const quoted = text.replace(
    /"(?:[^"\\]|\\.)*"|-?(?:\d[\d.eE+-]*|Infinity)|NaN/g,
    (token) => (token.startsWith('"') ? token : `"\\u0000${token}"`),
  );
  const { checksum, ...rest } = JSON.parse(quoted);
  return canonical(rest).replace(
    /[\x7f-\uffff]/g,
    (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** @param {any} value @returns {string} */
function canonical(value) {
  if (typeof value === "string" && value.startsWith("\0")) return value.slice(1);
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const parts = Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`);
  return `{${parts.join(",")}}`;
}

/**
 * Throws an `ArtefactError` unless this package can serve the translator.
 *
 * @param {Manifest} manifest
 * @param {string} url of the folder
 */
export function checkTranslation(manifest, url) {
  const names = manifest.inputs.map(({ name }) => name);
  if (manifest.task !== "translate" || names.join() !== "source_ids") {
    throw new ArtefactError(
      `${url} was exported for the task '${manifest.task}' with the inputs [${names}], but this package ` +
        "serves 'translate' from [source_ids]: greedy or beam search of an encoder-decoder model. Serve it " +
        "with Python.",
    );
  }
  checkLayout(manifest, url);
  checkTokenizer(manifest, url);
}

/**
 * The same for a Whisper model.
 *
 * @param {Manifest} manifest
 * @param {string} url of the folder
 */
export function checkTranscription(manifest, url) {
  const names = manifest.inputs.map(({ name }) => name);
  if (manifest.search?.class_name !== "SpeechSearch" || names.join() !== "features,start_ids") {
    throw new ArtefactError(
      `${url} was exported for the task '${manifest.task}' with the inputs [${names}], but Transcriber serves ` +
        "Whisper models: python -m keras_transformer.importers whisper FOLDER out --export onnx.",
    );
  }
  checkLayout(manifest, url);
  checkTokenizer(manifest, url);
}

/** @param {Manifest} manifest @param {string} url */
function checkTokenizer(manifest, url) {
  if (!("tokenizer.model" in manifest.files)) {
    throw new ArtefactError(
      `${url} holds no tokenizer.model. Export the model with its tokenizer: ` +
        "export_onnx(model, path, tokenizer, search).",
    );
  }
}

/**
 * The same for a folder that `export_attention` wrote.
 *
 * @param {Manifest} manifest
 * @param {string} url of the folder
 */
export function checkAttention(manifest, url) {
  const [inputs, outputs] = [manifest.inputs, manifest.outputs].map((values) => values.map(({ name }) => name));
  if ([...inputs].sort().join() !== "source_ids,target_ids" || outputs.join() !== "attention") {
    throw new ArtefactError(
      `${url} has the inputs [${inputs}] and the outputs [${outputs}], but attention needs the inputs ` +
        "[source_ids,target_ids] and the output [attention]. Write it with export_attention(model, path).",
    );
  }
  checkLayout(manifest, url);
}

/** @param {Manifest} manifest @param {string} url */
function checkLayout(manifest, url) {
  if ((manifest.engine ?? "onnxruntime") !== "onnxruntime") {
    throw new ArtefactError(
      `${url} was exported for ${manifest.engine}, but this package runs ONNX Runtime. Export the model with ` +
        "export_onnx.",
    );
  }
  if ((manifest.layout ?? "loop") !== "loop") {
    throw new ArtefactError(
      `${url} has the layout '${manifest.layout}', which is for GPUs. Export the model with layout='loop'.`,
    );
  }
  if ("model.onnx.data" in manifest.files) {
    throw new ArtefactError(
      `${url} has weights past 2 GB (model.onnx.data), more than WebAssembly holds. Serve it with Python.`,
    );
  }
}
