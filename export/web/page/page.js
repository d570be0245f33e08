/** The translation page: loads the picked model and translates the text that is typed. */

import { Translator } from "../src/index.js";
import { attentionTable } from "./attention.js";
import { splitSentences } from "./sentences.js";

const PAUSE = 500; // milliseconds after the last key until text is translated

/**
 * A model that `models.json` lists.
 *
 * @typedef {object} Model
 * @property {string} name
 * @property {string} url of its folder, from the page
 * @property {string} [source] language of the text, such as "en", for the browser and screen readers
 * @property {string} [target] language of the translation
 * @property {string[]} [examples] sentences to try
 * @property {string} [attention] url of the folder that `export_attention` wrote for it
 */

const element = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const [picker, load, progress, status] = ["model", "load", "progress", "status"].map(element);
const [source, result, figures, copy] = ["source", "result", "figures", "copy"].map(element);

/** @type {Model[]} */
let models = [];
/** @type {Translator | null} */
let translator = null;
/** @type {AbortController | null} */
let loading = null;
/** @type {AbortController | null} */
let running = null;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
/** @type {import("../src/index.js").Translation | null} the only sentence, if it has a translation */
let sentence = null;
/** @type {Promise<void> | null} */
let attention = null;

/** @param {string} text @param {boolean} [error] */
function say(text, error = false) {
  status.textContent = text;
  status.classList.toggle("error", error);
}

const megabytes = (/** @type {number} */ bytes) => (bytes / 1e6).toFixed(1);

async function loadModel() {
  loading?.abort();
  const own = (loading = new AbortController());
  const model = models[picker.selectedIndex];
  translator?.close();
  translator = null;
  showModel(model);
  progress.removeAttribute("value");
  progress.hidden = load.hidden = false;
  load.textContent = "Cancel";
  say(`Loading ${model.name}`);
  const started = performance.now();
  try {
    const loaded = await Translator.load(model.url, {
      signal: own.signal,
      onProgress({ loaded, total }) {
        progress.value = loaded / total;
        progress.textContent = `${Math.round((100 * loaded) / total)} %`;
        if (loaded === total) say("Starting");
      },
    });
    if (own.signal.aborted) return loaded.close();
    translator = loaded;
    load.hidden = true;
    const seconds = ((performance.now() - started) / 1000).toFixed(1);
    const sizes = Object.values(loaded.manifest.files).map(({ bytes }) => bytes);
    const size = megabytes(sizes.reduce((sum, bytes) => sum + bytes));
    say(`Ready: ${size} MB, ${loaded.manifest.precision}, loaded in ${seconds} s.`);
    await translate();
    await workOffline();
  } catch (error) {
    if (own !== loading) return; // another model was picked
    load.textContent = "Load";
    if (own.signal.aborted) say("Not loaded.");
    else say(`Not loaded. ${/** @type {Error} */ (error).message}`, true);
  } finally {
    if (own === loading) progress.hidden = true;
  }
}

/** @param {Model} model */
function showModel(model) {
  attention = null;
  source.lang = model.source ?? "";
  result.lang = model.target ?? "";
  showResults([], 0);
  const examples = (model.examples ?? []).map((text) => {
    const button = document.createElement("button");
    button.type = "button";
    button.lang = source.lang;
    button.textContent = text;
    button.onclick = () => {
      source.value = text;
      translate();
    };
    return button;
  });
  element("examples").replaceChildren("Try:", ...examples);
  element("examples").hidden = examples.length === 0;
}

async function translate() {
  clearTimeout(timer);
  running?.abort();
  const own = (running = new AbortController());
  if (!translator) return;
  const { sentences, spaces } = splitSentences(source.value, source.lang);
  if (!sentences.length) return showResults([], 0);
  result.classList.add("old");
  const started = performance.now();
  try {
    const results = await translator.nBest(sentences, { signal: own.signal });
    showResults(results, performance.now() - started, spaces);
  } catch (error) {
    if (own.signal.aborted) return; // newer text is being translated
    say(`Not translated. ${/** @type {Error} */ (error).message}`, true);
  }
}

/**
 * @param {import("../src/index.js").Translation[]} results of each sentence
 * @param {number} time in milliseconds
 * @param {string[]} spaces before each sentence, and after the last
 */
function showResults(results, time, spaces = [""]) {
  result.classList.remove("old");
  const parts = results.flatMap(({ texts, error }, i) => {
    const part = document.createElement("span");
    part.classList.toggle("failed", error !== null);
    part.textContent = error === null ? texts[0] : `[${error}]`;
    return [i ? spaces[i] || " " : spaces[i], part]; // Chinese has no space there
  });
  result.replaceChildren(...parts, spaces[results.length]);
  const count = (/** @type {number[][]} */ rows) => rows.reduce((sum, row) => sum + row.length, 0);
  const read = count(results.map(({ sourceIds }) => sourceIds));
  const written = count(results.map(({ ids }) => ids[0] ?? []));
  const threads = translator?.threads === 1 ? "1 thread" : `${translator?.threads} threads`;
  figures.textContent = results.length
    ? `${Math.round(time)} ms, ${read} tokens read, ${written} written, ${threads}`
    : "";
  copy.hidden = !results.some(({ texts }) => texts[0]);
  copy.textContent = "Copy";
  const [one] = results;
  sentence = results.length === 1 && one.texts.some(Boolean) ? one : null;
  showOthers();
  showAttention();
}

/** Shows the other hypotheses if the text is one sentence. */
function showOthers() {
  const { texts, scores } = sentence ?? { texts: [], scores: [] };
  const items = texts.map((text, index) => {
    const item = document.createElement("li");
    const score = document.createElement("small");
    item.lang = result.lang;
    score.lang = "en";
    score.textContent = ` score ${scores[index].toFixed(2)}`;
    item.append(text, score);
    return item;
  });
  element("hypotheses").replaceChildren(...items);
  element("others").hidden = items.length < 2;
}

/** Shows the attention if the text is one sentence and the model has it; loads it on first use. */
async function showAttention() {
  const { attention: url, source, target } = models[picker.selectedIndex] ?? {};
  const [box, map, shown, used] = [element("attention"), element("attention-map"), sentence, translator];
  box.hidden = !url;
  if (!url || !box.open || !used) return;
  map.textContent = shown ? "Loading" : "It is shown for one sentence.";
  if (!shown) return;
  try {
    await (attention ??= used.loadAttention(url));
    const { sourceIds, ids } = shown;
    const [weights, from, to] = await Promise.all([
      used.attention(sourceIds, ids[0]),
      used.labels(sourceIds, "source"),
      used.labels(ids[0], "target"),
    ]);
    if (shown === sentence) map.replaceChildren(attentionTable(weights, from, to, source, target));
  } catch (error) {
    attention = null;
    if (shown === sentence) map.textContent = /** @type {Error} */ (error).message;
  }
}

/** Stores the page for offline use; the model's files are stored already. */
async function workOffline() {
  if (!("serviceWorker" in navigator) || navigator.serviceWorker.controller) return;
  try {
    await navigator.serviceWorker.register("service_worker.js");
    await navigator.serviceWorker.ready;
    say(`${status.textContent} Works without a network now.`);
  } catch (error) {
    console.warn(`The page is not kept for later: ${error}`);
  }
}

picker.onchange = loadModel;
load.onclick = () => (load.textContent === "Cancel" ? loading?.abort() : loadModel());
source.oninput = () => {
  clearTimeout(timer);
  timer = setTimeout(translate, PAUSE);
};
source.onkeydown = (/** @type {KeyboardEvent} */ event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  translate();
};
element("attention").ontoggle = showAttention;
copy.onclick = async () => {
  await navigator.clipboard.writeText(result.textContent);
  copy.textContent = "Copied";
};

try {
  const response = await fetch("models.json");
  models = (await response.json()).models;
  picker.replaceChildren(...models.map(({ name }) => new Option(name)));
  picker.disabled = models.length === 0;
  if (models.length) await loadModel();
  else say("No model is here yet: put the folder of an export beside this page, and its name into models.json.", true);
} catch (error) {
  say(`models.json cannot be read: ${/** @type {Error} */ (error).message}`, true);
}
