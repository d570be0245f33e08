// Transcribes samples in Node.js. Reads {folder, samples, mels, calls}: numbers at 16 kHz, and the options of
// each call; writes {features, calls}, with segments and progress, or an error, for each call.

import { readFileSync } from "node:fs";
import { Transcriber } from "../src/index.js";
import { logMel } from "../src/log_mel.js";

const { folder, samples, mels, calls } = JSON.parse(readFileSync(0, "utf-8"));
const sound = Float32Array.from(samples);
const transcriber = await Transcriber.load(folder);
const found = { features: Array.from(logMel(sound, mels)), calls: [] };
for (const options of calls) {
  const [segments, progress] = [[], []];
  try {
    const all = transcriber.transcribe(sound, { ...options, onProgress: (state) => progress.push(state) });
    for await (const segment of all) segments.push(segment);
    found.calls.push({ segments, progress });
  } catch (error) {
    found.calls.push({ error: `${error.name}: ${error.message}` });
  }
}
transcriber.close();
console.log(JSON.stringify(found));
