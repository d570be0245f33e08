// Translates `lines` with each of `calls`, dicts of options; an error stands for what is refused. Reads
// {folder, lines, calls}; writes {found}.

import { readFileSync } from "node:fs";
import { Translator } from "../src/index.js";

const { folder, lines, calls } = JSON.parse(readFileSync(0, "utf-8"));
const translator = await Translator.load(folder);
const found = [];
for (const options of calls) {
  try {
    found.push(await translator.nBest(lines, { options }));
  } catch ({ name, message }) {
    found.push(`${name}: ${message}`);
  }
}
translator.close();
console.log(JSON.stringify({ found }));
