/** Checks lines of text, and encodes the valid ones as token ids. */

const END_ID = 3;
// As Python's `str.isspace` for every character of a line.
const BLANK = /^[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*$/;

/**
 * Returns the lines as an array.
 *
 * @param {Iterable<string>} lines
 * @returns {string[]}
 * @throws {TypeError} if `lines` is one string, or holds something other than strings
 */
export function checkedLines(lines) {
  if (typeof lines === "string" || typeof lines?.[Symbol.iterator] !== "function") {
    throw new TypeError(
      `\`lines\` must be an iterable of strings, got one ${typeof lines}. Pass a list: translate([line]).`,
    );
  }
  const list = [...lines];
  const wrong = list.findIndex((line) => typeof line !== "string");
  if (wrong >= 0) {
    throw new TypeError(`\`lines\` must hold strings, got ${typeof list[wrong]} as line ${wrong + 1}.`);
  }
  return list;
}

/**
 * Returns the text of a line, without its line ending; it ends at a NUL character.
 *
 * @param {string} line
 */
function textOf(line) {
  const lone = line.search(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/);
  if (lone >= 0) {
    throw new Error(`half a surrogate pair at character ${[...line.slice(0, lone)].length + 1}`);
  }
  return line.replace(/\n$/, "").replace(/\r$/, "").split("\0", 1)[0];
}

/**
 * Returns token ids of lines, and reasons for refused lines. A line without text or without known tokens
 * is in neither.
 *
 * @param {string[]} lines
 * @param {{encode: (text: string) => number[]}} tokenizer
 * @param {number} mostTokens a line with more tokens, the end token included, is refused
 */
export function encodeLines(lines, tokenizer, mostTokens) {
  /** @type {Map<number, number[]>} */
  const rows = new Map();
  /** @type {Map<number, string>} */
  const refused = new Map();
  lines.forEach((line, index) => {
    let text;
    try {
      text = textOf(line);
    } catch (error) {
      refused.set(index, /** @type {Error} */ (error).message);
      return;
    }
    const ids = BLANK.test(text) ? [] : tokenizer.encode(text);
    const count = ids.length + 1;
    if (count > mostTokens) {
      refused.set(
        index,
        `${count} tokens, special ones included, where this artefact takes at most ${mostTokens}; ` +
          "split or shorten it",
      );
    } else if (ids.length) {
      rows.set(index, [...ids, END_ID]);
    }
  });
  return { rows, refused };
}
