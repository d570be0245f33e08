// Serves the folder `site`, translates `lines` with `site`/model from there, stops the server, loads once
// more and translates the `again` first lines. Reads {site, cache, lines, again}; writes
// {results, offline, progress}.

import { readFileSync } from "node:fs";
import { Translator } from "../src/index.js";
import { serve } from "./server.js";

const { site, cache, lines, again } = JSON.parse(readFileSync(0, "utf-8"));
const server = await serve(site);
const progress = [];
const folder = `${server.url}model`;
const first = await Translator.load(folder, { cache, onProgress: (state) => progress.push(state) });
const results = await first.nBest(lines);
first.close();
await server.stop();
const second = await Translator.load(folder, { cache });
const offline = await second.nBest(lines.slice(0, again));
second.close();
console.log(JSON.stringify({ results, offline, progress }));
