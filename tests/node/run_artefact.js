// Feeds batches of source ids to a model with ONNX Runtime's WebAssembly build.
// Reads {model, batches}, a path and a list of batches, each a list of equally long lists of ids; writes
// a list of {token_ids: {dims, data}, scores: {dims, data}}, one for each batch.

import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-web";

ort.env.wasm.numThreads = 1;
const { model, batches } = JSON.parse(readFileSync(0, "utf-8"));
const session = await ort.InferenceSession.create(new Uint8Array(readFileSync(model)));
const results = [];
for (const batch of batches) {
  const dims = [batch.length, batch[0].length];
  const source_ids = new ort.Tensor("int32", Int32Array.from(batch.flat()), dims);
  const outputs = await session.run({ source_ids });
  const plain = ({ dims, data }) => ({ dims, data: Array.from(data) });
  results.push({ token_ids: plain(outputs.token_ids), scores: plain(outputs.scores) });
}
console.log(JSON.stringify(results));
process.exit(0);
