/**
 * Translates text and transcribes speech with an artefact of keras-transformer-onnx, in a browser or in Node:
 *
 *     const translator = await Translator.load("models/en-de");
 *     await translator.translate(["A man rides a bicycle."]);
 *
 *     const transcriber = await Transcriber.load("models/whisper");
 *     for await (const { text } of transcriber.transcribe(await readSound(file))) console.log(text);
 */

export { ArtefactError } from "./errors.js";
export { Transcriber, readSound } from "./transcriber.js";
export { Translator } from "./translator.js";

/** @typedef {import("./transcriber.js").Segment} Segment */
/** @typedef {import("./transcriber.js").SpeechOptions} SpeechOptions */
/** @typedef {import("./transcriber.js").SpeechProgress} SpeechProgress */
/** @typedef {import("./translator.js").Translation} Translation */
/** @typedef {import("./translator.js").LoadOptions} LoadOptions */
/** @typedef {import("./translator.js").CallOptions} CallOptions */
/** @typedef {import("./translator.js").Progress} Progress */
