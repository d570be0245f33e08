// Runs an ONNX file with onnxruntime-web in Node.js, for `engines_run.py`.
//
//     node engines_browser.js FILE      in a folder with the package onnxruntime-web
//
// Writes {"inputs": names}. Then each line of stdin is {name: {dtype, dims, data}}, with the bytes of
// the array in base64, and each line of stdout has the outputs in the same form, or {"error"}.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const TYPES = { int32: Int32Array, float32: Float32Array, bool: Uint8Array, int64: BigInt64Array };
const reply = (content) => console.log(JSON.stringify(content));

function tensor(ort, { dtype, dims, data }) {
  const bytes = Uint8Array.from(Buffer.from(data, "base64"));
  return new ort.Tensor(dtype, new TYPES[dtype](bytes.buffer), dims);
}

function described({ type, dims, data }) {
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  return { dtype: type, dims, data: bytes.toString("base64") };
}

try {
  const found = createRequire(join(process.cwd(), "package.json")).resolve("onnxruntime-web");
  const ort = await import(pathToFileURL(found));
  ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create(new Uint8Array(readFileSync(process.argv[2])));
  reply({ inputs: session.inputNames });
  for await (const line of createInterface({ input: process.stdin })) {
    const given = Object.entries(JSON.parse(line));
    const outputs = await session.run(Object.fromEntries(given.map(([n, x]) => [n, tensor(ort, x)])));
    reply(Object.fromEntries(Object.entries(outputs).map(([name, x]) => [name, described(x)])));
  }
} catch (error) {
  reply({ error: String(error?.message ?? error) });
}
process.exit(0);
