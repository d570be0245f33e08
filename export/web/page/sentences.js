/** Splits text into sentences, as in the models' training data, and the white space between them. */

// Browsers begin a new sentence after these.
const TITLE = /(?:^|\P{L})(?:Dr|Dra|Hr|Fr|Mme|Mr|Mrs|Ms|Nr|Prof|Sr|Sra|St)\.\s*$/u;

/**
 * Returns the sentences of a text without surrounding white space, and the white space around them:
 * `spaces[i]` is before sentence i. A line break always ends a sentence.
 *
 * @param {string} text
 * @param {string} [language] such as "en"
 * @returns {{sentences: string[], spaces: string[]}} one more of `spaces`
 */
export function splitSentences(text, language) {
  const segmenter = new Intl.Segmenter(language || undefined, { granularity: "sentence" });
  const sentences = [];
  const spaces = [""];
  for (const line of text.split(/(?<=\n)/)) {
    let start = 0;
    for (const { segment, index } of segmenter.segment(line)) {
      const end = index + segment.length;
      if (end < line.length && TITLE.test(line.slice(start, end))) continue;
      const part = line.slice(start, end);
      start = end;
      const sentence = part.trim();
      const at = part.indexOf(sentence);
      spaces[spaces.length - 1] += part.slice(0, sentence ? at : part.length);
      if (!sentence) continue;
      sentences.push(sentence);
      spaces.push(part.slice(at + sentence.length));
    }
  }
  return { sentences, spaces };
}
