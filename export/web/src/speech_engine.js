/**
 * Runs a Whisper model in the worker: computes features of samples, and runs the model once per window of 30
 * seconds to write text and times. It follows Python's `Transcriber`, but does not retry bad texts at other
 * temperatures.
 */

import * as ort from "../vendor/ort.wasm.min.mjs";
import { openSession, startRuntime } from "./engine.js";
import { FRAMES_PER_SECOND, logMel } from "./log_mel.js";
import { defaultTensor, withoutDefaults } from "./options.js";
import { SECONDS, SpeechTokens } from "./speech_tokens.js";

/** @typedef {import("./manifest.js").Manifest} Manifest */
/** @typedef {import("./transcriber.js").Segment} Segment */
/** @typedef {{start: number, end: number, ids: number[]}} Part a segment without scores */
/** @typedef {{segments: Segment[], position: number, language: string | null}} Heard of one window */

const [PAD_ID, END_ID] = [0, 3];
const FRAMES_PER_TIME = 2; // between two time tokens
// OpenAI's thresholds: a window is skipped if it is likely without speech and its text is unlikely.
const [MOST_NO_SPEECH, LEAST_LOG_PROBABILITY] = [0.6, -1];
const OUTPUTS = ["token_ids", "scores", "start_scores"];

export class SpeechEngine {
  /**
   * @param {ort.InferenceSession} session
   * @param {SpeechTokens} tokens
   * @param {Manifest} manifest
   */
  constructor(session, tokens, manifest) {
    this.session = session;
    this.tokens = tokens;
    this.manifest = manifest;
    this.mels = Number(manifest.inputs.find(({ name }) => name === "features")?.axes.at(-1));
    /** @type {Map<number, Sound>} by the number of the call that opened them */
    this.sounds = new Map();
  }

  /**
   * @param {{manifest: Manifest, files: Record<string, Uint8Array>, runtime: Uint8Array, threads?: number}} parts
   *   as for `Engine.open`
   */
  static async open({ manifest, files, runtime, threads }) {
    startRuntime(runtime, threads);
    const tokens = new SpeechTokens(files["tokenizer.model"], manifest.search.config.languages);
    withoutDefaults(files["model.onnx"], manifest.options ?? []);
    return new SpeechEngine(await openSession(files["model.onnx"]), tokens, manifest);
  }

  /** The number of threads that compute a window. */
  get threads() {
    return ort.env.wasm.numThreads ?? 1;
  }

  /**
   * @param {number} key
   * @param {Float32Array} samples at 16 kHz
   * @param {string | null} language
   * @param {string} task
   * @returns {number} seconds
   */
  openSound(key, samples, language, task) {
    const { languages } = this.tokens;
    if (language !== null && !(languages.length ? languages : ["en"]).includes(language)) {
      throw new RangeError(`The model does not know the language '${language}'. It knows ${languages.join(", ")}.`);
    }
    if (task === "translate" && !languages.length) throw new RangeError("The model knows English only.");
    const sound = new Sound(this, logMel(samples, this.mels), languages.length ? language : "en", task);
    this.sounds.set(key, sound);
    return sound.total / FRAMES_PER_SECOND;
  }

  /** Returns the next window of a sound; null after the last. @param {number} key */
  async nextWindow(key) {
    return (await this.sounds.get(key)?.next()) ?? null;
  }

  /** @param {number} key */
  closeSound(key) {
    this.sounds.delete(key);
  }
}

/** A sound that is transcribed window by window. */
class Sound {
  /**
   * @param {SpeechEngine} engine
   * @param {Float32Array} features (S, M)
   * @param {string | null} language
   * @param {string} task
   */
  constructor(engine, features, language, task) {
    const { source_length, target_length } = engine.manifest.limits;
    this.engine = engine;
    this.features = features;
    this.language = language;
    this.task = task;
    this.size = source_length; // frames of a window
    this.mostBefore = Math.max(1, Math.floor(target_length / 2) - 1);
    this.total = features.length / engine.mels;
    this.start = 0;
    /** @type {number[]} tokens of the text so far */
    this.before = [];
  }

  /** @returns {Promise<Heard | null>} */
  async next() {
    if (this.start >= this.total) return null;
    const { tokens } = this.engine;
    const size = Math.min(this.size, this.total - this.start);
    const { ids, averageLogProbability, noSpeechProbability } = await this.#decode();
    const skipped = noSpeechProbability > MOST_NO_SPEECH && averageLogProbability < LEAST_LOG_PROBABILITY;
    const { parts, advance } = skipped ? { parts: [], advance: size } : split(ids, this.start, size, tokens);
    const segments = [];
    for (const { start, end, ids } of parts) {
      const text = tokens.text(ids);
      if (start === end || !text.trim()) continue;
      this.before = [...this.before, ...ids];
      segments.push({ start, end, text, averageLogProbability, noSpeechProbability });
    }
    this.start += advance;
    const position = Math.min(this.start, this.total) / FRAMES_PER_SECOND;
    return { segments, position, language: this.language };
  }

  /** Decodes the window at `start`. */
  async #decode() {
    const { session, tokens, manifest, mels } = this.engine;
    this.before = this.before.slice(-this.mostBefore);
    const window = new Float32Array(this.size * mels); // zeros after the end, as in Python
    window.set(this.features.subarray(this.start * mels, (this.start + this.size) * mels));
    const startIds = tokens.start(this.language, this.task, this.before);
    const outputs = await session.run(
      {
        features: new ort.Tensor("float32", window, [1, this.size, mels]),
        start_ids: new ort.Tensor("int32", Int32Array.from(startIds), [1, startIds.length]),
        ...Object.fromEntries((manifest.options ?? []).map((entry) => [entry.name, defaultTensor(entry)])),
      },
      OUTPUTS,
    );
    const [noSpeech, ...languages] = Array.from(/** @type {Float32Array} */ (outputs.start_scores.data));
    if (this.language === null) this.language = tokens.languages[languages.indexOf(Math.max(...languages))];
    const [, , length] = outputs.token_ids.dims;
    const row = Array.from(/** @type {Int32Array} */ (outputs.token_ids.data).subarray(0, length));
    const written = row.filter((id) => id !== PAD_ID);
    const ids = written.filter((id) => id !== END_ID);
    const score = Number(outputs.scores.data[0]);
    const sum = score * Math.max(written.length - 1, 1) ** manifest.search.config.length_penalty;
    return { ids, averageLogProbability: sum / (ids.length + 1), noSpeechProbability: Math.exp(noSpeech) };
  }
}

/**
 * Divides the tokens of a window into segments, at pairs of times.
 *
 * @param {number[]} ids without end token
 * @param {number} start first frame of the window
 * @param {number} size number of its frames
 * @param {SpeechTokens} tokens
 * @returns {{parts: Part[], advance: number}} the segments, in seconds of the sound, all within the window, and the
 *   number of frames to the next window
 */
export function split(ids, start, size, tokens) {
  const offset = start / FRAMES_PER_SECOND;
  const isTime = ids.map((id) => tokens.isTime(id));
  const ends = ids.flatMap((_, i) => (i && isTime[i - 1] && isTime[i] ? [i] : []));
  const closed = ids.length > 1 && !(isTime.at(-2) ?? true) && Boolean(isTime.at(-1));
  if (!ends.length) {
    const last = tokens.seconds(ids.findLast((id) => tokens.isTime(id)) ?? tokens.firstTime);
    const end = offset + (last > 0 ? last : size / FRAMES_PER_SECOND);
    return { parts: [within({ start: offset, end, ids }, offset, size)], advance: size };
  }
  if (closed) ends.push(ids.length);
  const parts = ends.map((end, i) => {
    const part = ids.slice(i ? ends[i - 1] : 0, end);
    const [first, last] = [part[0], part[part.length - 1]].map((id) => offset + tokens.seconds(id));
    return within({ start: first, end: last, ids: part }, offset, size);
  });
  const last = (parts[parts.length - 1].ids.at(-1) ?? 0) - tokens.firstTime;
  // A window that ends at 0 would be decoded again and again.
  return { parts, advance: closed || last <= 0 ? size : Math.min(last * FRAMES_PER_TIME, size) };
}

/**
 * Moves a segment that ends after its window, such as after the end of the sound.
 *
 * @param {Part} part
 * @param {number} offset start of the window in seconds
 * @param {number} size number of its frames
 * @returns {Part}
 */
function within(part, offset, size) {
  const end = offset + size / FRAMES_PER_SECOND;
  if (part.end <= end) return part;
  const latest = part.start === part.end ? end : Math.max(offset, end - SECONDS);
  return { ...part, start: part.start < end ? part.start : latest, end };
}
