/** Text to token ids and back, with SentencePiece. Ids: 0 pad, 1 unknown, 2 begin, 3 end. */

import { SentencePieceProcessor } from "../vendor/sentencepiece.mjs";
import { ArtefactError } from "./errors.js";
import { fields } from "./protobuf.js";

const [PAD_ID, , BEGIN_ID, END_ID] = [0, 1, 2, 3];

export class Tokenizer {
  /**
   * @param {SentencePieceProcessor} processor
   * @param {string[]} pieces by id
   */
  constructor(processor, pieces) {
    this.processor = processor;
    this.pieces = pieces;
  }

  /**
   * @param {Uint8Array} model content of a `.model` file
   * @param {string} name of the file, for errors
   * @param {number} known number of ids of the translator
   */
  static async load(model, name, known) {
    if (model[0] === "{".charCodeAt(0)) {
      throw new ArtefactError(
        `${name} is a tokenizer of the package tokenizers (JSON), which this package does not read: it ` +
          "reads SentencePiece's. Serve the artefact with Python.",
      );
    }
    const pieces = readPieces(model);
    if (pieces.length <= END_ID) {
      throw new ArtefactError(`${name}: these ${model.length} bytes are not a SentencePiece model.`);
    }
    if (pieces.length > known) {
      throw new ArtefactError(
        `${name}: the tokenizer has ${pieces.length} ids and the model knows ${known}. Export the model ` +
          "with the tokenizer that it was trained with.",
      );
    }
    const processor = new SentencePieceProcessor();
    await processor.load(model);
    return new Tokenizer(processor, pieces);
  }

  /**
   * Returns the ids of a text, without begin and end tokens.
   *
   * @param {string} text
   * @returns {number[]}
   */
  encode(text) {
    return this.processor.encodeIds(text);
  }

  /**
   * Returns the text of ids, up to the first end token; U+FFFD for bytes that spell no character.
   *
   * @param {number[]} ids
   * @returns {string}
   */
  decode(ids) {
    const end = ids.indexOf(END_ID);
    const kept = end < 0 ? ids : ids.slice(0, end);
    const unknown = kept.find((id) => id < 0 || id >= this.pieces.length);
    if (unknown !== undefined) {
      throw new Error(
        `id ${unknown} is not within this vocabulary of ${this.pieces.length} ids. Were the ids made by ` +
          "another tokenizer?",
      );
    }
    return this.processor.decodeIds(kept.filter((id) => id !== PAD_ID && id !== BEGIN_ID));
  }

  /**
   * Returns a label for each id: a piece of text in which "▁" is a space, or a special token's name.
   *
   * @param {number[]} ids
   */
  labels(ids) {
    return ids.map((id) => this.pieces[id]);
  }
}

/**
 * Returns the pieces of a SentencePiece model, by id. The file is a protocol buffer. Its field 1 is a
 * piece, and field 1 of a piece is its text.
 *
 * @param {Uint8Array} data
 * @returns {string[]}
 */
function readPieces(data) {
  const text = new TextDecoder();
  const pieces = [...fields(data)].filter(({ number, value }) => number === 1 && value);
  return pieces.map(({ value }) => {
    const first = [...fields(/** @type {Uint8Array} */ (value))].find(({ number }) => number === 1);
    return text.decode(first?.value ?? undefined);
  });
}
