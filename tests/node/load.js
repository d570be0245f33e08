// Loads each of `folders` and translates `lines`; writes for each the results, or {name, message} of the
// error. Reads {folders, lines}.

import { readFileSync } from "node:fs";
import { Translator } from "../src/index.js";

const { folders, lines } = JSON.parse(readFileSync(0, "utf-8"));
const found = [];
for (const folder of folders) {
  try {
    const translator = await Translator.load(folder);
    found.push(await translator.nBest(lines));
    translator.close();
  } catch ({ name, message }) {
    found.push({ name, message });
  }
}
console.log(JSON.stringify(found));
