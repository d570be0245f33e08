/** The tokens of Whisper: start tokens, times, and text from the bytes of tokens. */

import { ArtefactError } from "./errors.js";

const [UNKNOWN_ID, BEGIN_ID, END_ID] = [1, 2, 3];
export const SECONDS = 0.02; // between two time tokens
const REPLACEMENT = "\ufffd";

export class SpeechTokens {
  /**
   * @param {Uint8Array} data JSON of the package tokenizers
   * @param {number[]} languages the tokens of the languages, in the order of the search
   */
  constructor(data, languages) {
    const { added_tokens: added, model } = JSON.parse(new TextDecoder().decode(data));
    /** @type {Map<string, number>} */
    this.special = new Map(added.map((/** @type {{content: string, id: number}} */ { content, id }) => [content, id]));
    const names = new Map([...this.special].map(([name, id]) => [id, name.slice(2, -2)]));
    /** Codes of the languages, such as "en", in the order of the search. */
    this.languages = languages.map((id) => names.get(id) ?? "");
    /** The token of second 0. All larger ids are later times. @type {number} */
    this.firstTime = this.id("<|notimestamps|>") + 1;
    /** @type {number} */
    this.firstSpecial = Math.min(...[...this.special.values()].filter((id) => id > END_ID));
    const byteOf = byteLetters();
    /** @type {Uint8Array[]} the bytes of each token of text */
    this.bytes = [];
    for (const [token, id] of Object.entries(model.vocab)) {
      if (this.isText(id)) this.bytes[id] = Uint8Array.from(token, (letter) => byteOf.get(letter) ?? 63);
    }
  }

  /** @param {string} name */
  id(name) {
    const id = this.special.get(name);
    if (id === undefined) throw new ArtefactError(`The tokenizer lacks ${name}, so it is not Whisper's.`);
    return id;
  }

  /**
   * Returns the start tokens of a window.
   *
   * @param {string | null} language its code; null: the search detects it
   * @param {string} task "transcribe" or "translate"
   * @param {number[]} before tokens of the text before
   */
  start(language, task, before) {
    const previous = before.length ? [this.id("<|startofprev|>"), ...before] : [];
    if (!this.languages.length) return [...previous, BEGIN_ID]; // a model of English only
    const spoken = language === null ? UNKNOWN_ID : this.id(`<|${language}|>`);
    return [...previous, BEGIN_ID, spoken, this.id(`<|${task}|>`)];
  }

  /** @param {number} token */
  isTime(token) {
    return token >= this.firstTime;
  }

  /** @param {number} token */
  isText(token) {
    return token > END_ID && token < this.firstSpecial;
  }

  /** Returns the time of a token, from the start of its window. @param {number} token */
  seconds(token) {
    return (token - this.firstTime) * SECONDS;
  }

  /** Returns the text of tokens, without times. @param {number[]} tokens */
  text(tokens) {
    const bytes = tokens.filter((token) => this.isText(token)).flatMap((token) => [...(this.bytes[token] ?? [])]);
    return new TextDecoder().decode(Uint8Array.from(bytes)).replaceAll("\0", REPLACEMENT);
  }
}

/** Maps each letter of a token to its byte, by GPT-2's table. Printable bytes map to themselves. */
function byteLetters() {
  const isOwn = (/** @type {number} */ byte) =>
    (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte !== 173);
  /** @type {Map<string, number>} */
  const found = new Map();
  let others = 256;
  for (let byte = 0; byte < 256; byte++) found.set(String.fromCodePoint(isOwn(byte) ? byte : others++), byte);
  return found;
}
