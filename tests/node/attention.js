// The attention of a translation. Reads {translator, attention, line}, paths of two artefacts; writes
// {sourceIds, ids, weights}, and the errors {before, other} of asking too early and of the wrong folder.

import { readFileSync } from "node:fs";
import { Translator } from "../src/index.js";

const asked = JSON.parse(readFileSync(0, "utf-8"));
const translator = await Translator.load(asked.translator);
const [{ sourceIds, ids }] = await translator.nBest([asked.line]);
const message = (error) => error.message;
const before = await translator.attention(sourceIds, ids[0]).catch(message);
const other = await translator.loadAttention(asked.translator).catch(message);
await translator.loadAttention(asked.attention);
const weights = await translator.attention(sourceIds, ids[0]);
translator.close();
console.log(JSON.stringify({ sourceIds, ids: ids[0], weights, before, other }));
