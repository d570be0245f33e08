/** `Transcriber`: a Whisper model by URL, in a browser or in Node. */

import { SAMPLE_RATE } from "./log_mel.js";
import { checkTranscription } from "./manifest.js";
import { openModel } from "./remote.js";

/** @typedef {import("./translator.js").LoadOptions} LoadOptions */

/**
 * Text of one speaker's turn or sentence.
 *
 * @typedef {object} Segment
 * @property {number} start in seconds from the start of the sound
 * @property {number} end in seconds
 * @property {string} text with the space in front
 * @property {number} averageLogProbability of the tokens of its window
 * @property {number} noSpeechProbability of its window
 */

/**
 * @typedef {object} SpeechProgress
 * @property {number} position seconds that are done
 * @property {number} duration seconds of the sound
 * @property {string | null} language code of the spoken language; null before the first window
 */

/**
 * @typedef {object} SpeechOptions
 * @property {string | null} [language] code of the spoken language, such as "de"; default: detected in the
 *   first window
 * @property {"transcribe" | "translate"} [task] "translate" writes English; default "transcribe"
 * @property {(progress: SpeechProgress) => void} [onProgress] called before the first window and after each
 * @property {AbortSignal} [signal] rejects at once; the running window finishes in the background
 */

const FILES = ["model.onnx", "tokenizer.model"];

export class Transcriber {
  #remote;

  /**
   * Use `Transcriber.load`.
   *
   * @param {import("./remote.js").Opened} opened
   * @private
   */
  constructor({ remote, manifest, threads }) {
    this.#remote = remote;
    /** The content of `artefact.json`. */
    this.manifest = manifest;
    /** The number of threads that compute a window. */
    this.threads = threads;
  }

  /**
   * Loads the folder of a Whisper model that `keras_transformer.export.export_onnx` wrote.
   *
   * @param {string | URL} url of the folder; in Node also its path
   * @param {LoadOptions} [options]
   * @returns {Promise<Transcriber>}
   * @throws {ArtefactError} the folder is missing, damaged, foreign, of a newer format, or holds no Whisper model
   */
  static async load(url, options = {}) {
    return new Transcriber(await openModel(url, checkTranscription, FILES, options));
  }

  /**
   * Yields the segments of a sound, as soon as their window of 30 seconds is decoded.
   *
   * @param {Float32Array} samples at 16 kHz, one channel, from -1 to 1: see `readSound`
   * @param {SpeechOptions} [options]
   * @returns {AsyncGenerator<Segment, void>}
   * @throws {TypeError} the samples are not a Float32Array
   * @throws {RangeError} the model does not know the language or the task
   */
  async *transcribe(samples, { language = null, task = "transcribe", onProgress, signal } = {}) {
    if (!(samples instanceof Float32Array)) {
      throw new TypeError("`samples` must be a Float32Array of one channel at 16 kHz, such as readSound gives.");
    }
    if (task !== "transcribe" && task !== "translate") {
      throw new RangeError(`\`task\` must be "transcribe" or "translate", got ${JSON.stringify(task)}.`);
    }
    const opened = await this.#remote.ask("openSound", { samples, language, task }, { signal });
    const { sound, duration } = opened;
    onProgress?.({ position: 0, duration, language });
    try {
      for (;;) {
        /** @type {import("./speech_engine.js").Heard | null} */
        const heard = await this.#remote.ask("nextWindow", { sound }, { signal });
        if (heard === null) return;
        onProgress?.({ position: heard.position, duration, language: heard.language });
        yield* heard.segments;
      }
    } finally {
      await this.#remote.ask("closeSound", { sound }).catch(() => {}); // it may have ended
    }
  }

  /** Ends the worker and frees its memory. */
  close() {
    this.#remote.close();
  }
}

/**
 * Returns the samples of a sound file or recording, resampled to 16 kHz and mixed to one channel. Browsers only.
 *
 * @param {Blob} file in any format that the browser plays
 * @returns {Promise<Float32Array>}
 * @throws {Error} the browser cannot read it
 */
export async function readSound(file) {
  const context = new OfflineAudioContext(1, 1, SAMPLE_RATE);
  let buffer;
  try {
    buffer = await context.decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error(`This browser cannot read the file as sound (${file.size} bytes). Try a WAV, MP3 or OGG file.`);
  }
  const samples = new Float32Array(buffer.length);
  for (let channel = 0; channel < buffer.numberOfChannels; channel++) {
    buffer.getChannelData(channel).forEach((value, i) => (samples[i] += value / buffer.numberOfChannels));
  }
  return samples;
}
