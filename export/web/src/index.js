/**
 * Translates text with an artefact of keras-transformer-onnx, in a browser or in Node:
 *
 *     const translator = await Translator.load("models/en-de");
 *     await translator.translate(["A man rides a bicycle."]);
 */

export { ArtefactError } from "./errors.js";
export { Translator } from "./translator.js";

/** @typedef {import("./translator.js").Translation} Translation */
/** @typedef {import("./translator.js").LoadOptions} LoadOptions */
/** @typedef {import("./translator.js").CallOptions} CallOptions */
/** @typedef {import("./translator.js").Progress} Progress */
