/**
 * The worker: serves an `Engine` or a `SpeechEngine` by messages, in a browser or Node. It answers a message
 * `{id, call, ...}` with `{id, result}` or `{id, error}`. `{abort: id}` stops a call before its next batch.
 * Calls are answered in order.
 */

import { Engine } from "./engine.js";
import { plain } from "./errors.js";
import { builtin, inNode } from "./node.js";
import { SpeechEngine } from "./speech_engine.js";

const port = inNode ? builtin("node:worker_threads").parentPort : globalThis;
/** @type {any} an `Engine`, or a `SpeechEngine` */
let engine;
/** @type {Set<number>} */
const aborted = new Set();
let last = Promise.resolve();

/** @type {Record<string, (message: any) => Promise<any>>} */
const calls = {
  async open({ parts }) {
    engine = await (parts.manifest.task === "transcribe" ? SpeechEngine : Engine).open(parts);
    return { threads: engine.threads };
  },
  nBest: ({ id, lines, batchTokens, options }) => engine.nBest(lines, batchTokens, options, () => pause(id)),
  openAttention: ({ model }) => engine.openAttention(model),
  attention: ({ sourceIds, ids }) => engine.attention(sourceIds, ids),
  labels: async ({ ids, side }) => engine.labels(ids, side),
  async openSound({ id, samples, language, task }) {
    return { sound: id, duration: engine.openSound(id, samples, language, task) };
  },
  nextWindow: ({ sound }) => engine.nextWindow(sound),
  closeSound: async ({ sound }) => engine.closeSound(sound),
};

/**
 * Waits for messages to arrive, and throws if one of them stopped this call.
 *
 * @param {number} id
 */
async function pause(id) {
  await new Promise((resolve) => setTimeout(resolve));
  if (aborted.has(id)) throw new Error("stopped");
}

/** @param {any} message */
async function answer(message) {
  let reply;
  try {
    reply = { result: await calls[message.call](message) };
  } catch (error) {
    reply = { error: plain(error) };
  }
  aborted.delete(message.id);
  port.postMessage({ id: message.id, ...reply });
}

/** @param {any} message */
function receive(message) {
  if ("abort" in message) aborted.add(message.abort);
  else last = last.then(() => answer(message));
}

if (inNode) port.on("message", receive);
else port.addEventListener("message", (/** @type {MessageEvent} */ { data }) => receive(data));
