/** The speech page: transcribes a dropped or recorded sound, with times. */

import { Transcriber, readSound } from "../src/index.js";

/** @typedef {import("../src/index.js").Segment} Segment */
/** @typedef {{name: string, url: string}} Model an entry of `speech` in `models.json`; `url` is its folder */

const element = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const [picker, load, progress, status] = ["model", "load", "progress", "status"].map(element);
const [file, record, language, translate] = ["file", "record", "language", "translate"].map(element);
const [result, figures, copy] = ["result", "figures", "copy"].map(element);

/** @type {Model[]} */
let models = [];
/** @type {Promise<Transcriber> | null} */
let transcriber = null;
/** @type {AbortController | null} of the current sound */
let running = null;
/** @type {MediaRecorder | null} */
let recorder = null;

/** @param {string} text @param {boolean} [error] */
function say(text, error = false) {
  status.textContent = text;
  status.classList.toggle("error", error);
}

/** Formats minutes and seconds. @param {number} seconds */
function clock(seconds) {
  const rounded = Math.round(seconds * 10) / 10;
  return `${Math.floor(rounded / 60)}:${(rounded % 60).toFixed(1).padStart(4, "0")}`;
}

/** Returns the picked model; loads it at the first call. */
function loaded() {
  transcriber ??= loadModel(models[picker.selectedIndex]).catch((error) => {
    transcriber = null;
    throw error;
  });
  return transcriber;
}

/** @param {Model} model */
async function loadModel({ name, url }) {
  const started = performance.now();
  say(`Loading ${name}`);
  load.disabled = true;
  progress.hidden = false;
  try {
    const made = await Transcriber.load(url, {
      onProgress({ loaded, total }) {
        progress.value = loaded / total;
        if (loaded === total) say("Starting");
      },
    });
    const size = Object.values(made.manifest.files).reduce((sum, { bytes }) => sum + bytes, 0) / 1e6;
    const seconds = (performance.now() - started) / 1000;
    say(`Ready: ${size.toFixed(1)} MB, ${made.manifest.precision}, loaded in ${seconds.toFixed(1)} s.`);
    const { languages = [] } = made.manifest.search.config;
    language.disabled = translate.disabled = !languages.length;
    load.hidden = true;
    return made;
  } finally {
    progress.hidden = true;
    load.disabled = false;
  }
}

/** @param {Blob} sound */
async function transcribe(sound) {
  running?.abort();
  const own = (running = new AbortController());
  result.replaceChildren();
  figures.textContent = "";
  copy.hidden = true;
  try {
    const [model, samples] = await Promise.all([loaded(), readSound(sound)]);
    own.signal.throwIfAborted();
    const started = performance.now();
    progress.hidden = false;
    progress.removeAttribute("value");
    const segments = model.transcribe(samples, {
      language: language.value || null,
      task: translate.checked ? "translate" : "transcribe",
      signal: own.signal,
      onProgress({ position, duration, language }) {
        if (position) progress.value = position / duration;
        say(`Transcribed ${clock(position)} of ${clock(duration)}${language ? `, language: ${language}` : ""}`);
      },
    });
    for await (const segment of segments) result.append(item(segment));
    const [seconds, length] = [(performance.now() - started) / 1000, samples.length / 16000];
    const threads = model.threads === 1 ? "1 thread" : `${model.threads} threads`;
    figures.textContent = `${seconds.toFixed(1)} s for ${length.toFixed(1)} s of sound, ${threads}`;
    copy.hidden = !result.childElementCount;
    copy.textContent = "Copy";
    if (!result.childElementCount) say("No speech was found.");
  } catch (error) {
    if (own === running) say(`Not transcribed. ${/** @type {Error} */ (error).message}`, true);
  } finally {
    if (own === running) progress.hidden = true;
  }
}

/** @param {Segment} segment */
function item({ start, end, text }) {
  const made = document.createElement("li");
  const times = document.createElement("small");
  times.textContent = `${clock(start)} to ${clock(end)} `;
  made.append(times, text.trim());
  return made;
}

/** Starts a recording, or ends it and transcribes it. */
async function toggleRecording() {
  if (recorder) return recorder.stop();
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    /** @type {Blob[]} */
    const parts = [];
    recorder = new MediaRecorder(stream);
    recorder.ondataavailable = ({ data }) => parts.push(data);
    recorder.onstop = () => {
      stream.getTracks().forEach((track) => track.stop());
      recorder = null;
      record.textContent = "Record";
      transcribe(new Blob(parts));
    };
    recorder.start();
    record.textContent = "Stop";
    say("Recording");
    loaded().catch(() => {}); // `transcribe` shows the error
  } catch (error) {
    say(`No recording. ${/** @type {Error} */ (error).message}`, true);
  }
}

file.onchange = () => file.files[0] && transcribe(file.files[0]);
record.onclick = toggleRecording;
load.onclick = () => loaded().catch((error) => say(`Not loaded. ${error.message}`, true));
picker.onchange = () => {
  transcriber?.then((old) => old.close());
  transcriber = null;
  load.hidden = false;
  say("");
};
document.ondragover = (event) => event.preventDefault();
document.ondrop = (event) => {
  event.preventDefault();
  const [dropped] = event.dataTransfer?.files ?? [];
  if (dropped) transcribe(dropped);
};
copy.onclick = async () => {
  const lines = [...result.children].map(({ lastChild }) => lastChild?.textContent);
  await navigator.clipboard.writeText(lines.join("\n"));
  copy.textContent = "Copied";
};

const names = new Intl.DisplayNames("en", { type: "language" });
for (const code of ["ar", "de", "en", "es", "fr", "hi", "it", "ja", "ko", "nl", "pl", "pt", "ru", "sv", "tr", "zh"]) {
  language.append(new Option(names.of(code), code));
}
try {
  const response = await fetch("models.json");
  models = (await response.json()).speech ?? [];
  picker.replaceChildren(...models.map(({ name }) => new Option(name)));
  picker.disabled = load.disabled = models.length === 0;
  if (!models.length) say("No model is here yet: add the folder of an export to `speech` in models.json.", true);
} catch (error) {
  say(`models.json cannot be read: ${/** @type {Error} */ (error).message}`, true);
}
