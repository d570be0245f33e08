/** Batches of rows of similar length, and isolation of failing rows. */

/**
 * Returns lists of keys of `rows`, short rows first, that each fit a batch.
 *
 * @param {Map<number, number[]>} rows
 * @param {number} batchTokens maximum tokens of a batch, padding included; a longer row is a separate
 *   batch
 * @returns {number[][]}
 */
export function batches(rows, batchTokens) {
  const found = [];
  /** @type {number[]} */
  let batch = [];
  for (const [key, row] of [...rows].sort(([, one], [, other]) => one.length - other.length)) {
    if (batch.length && (batch.length + 1) * row.length > batchTokens) {
      found.push(batch);
      batch = [];
    }
    batch.push(key);
  }
  return batch.length ? [...found, batch] : found;
}

// Different rows that fail alone and alike show a fault of the machine. At least 3 and at most 5 run.
const [FEWEST_PROBES, PROBES] = [3, 5];

/**
 * Returns a model's output for each row: in one call, or in smaller ones if that fails. If a few different
 * rows fail alone and alike, with an error that no input can cause, no other rows run.
 *
 * @template T
 * @param {(rows: number[][]) => Promise<T[]>} run
 * @param {number[][]} rows
 * @param {boolean} probed whether different rows were run alone before
 * @returns {Promise<(T | Error)[]>} an error for a row that fails alone
 */
export async function runRows(run, rows, probed = false) {
  try {
    return await run(rows);
  } catch (error) {
    if (rows.length === 1) return [error instanceof Error ? error : new Error(String(error))];
    const failure = probed || isOfInput(error) ? null : await machineFailure(run, rows);
    if (failure) return rows.map(() => failure);
  }
  const half = rows.length >> 1;
  return [...(await runRows(run, rows.slice(0, half), true)), ...(await runRows(run, rows.slice(half), true))];
}

/**
 * Returns whether an input caused an error of ONNX Runtime, such as an id outside of a table.
 *
 * @param {unknown} error
 */
function isOfInput(error) {
  return /INVALID_ARGUMENT|ERROR_CODE: 2\b/.test(String(error));
}

/**
 * Returns the error with which different rows, far apart, fail alone and alike; or null.
 *
 * @template T
 * @param {(rows: number[][]) => Promise<T[]>} run
 * @param {number[][]} rows
 * @returns {Promise<Error | null>}
 */
async function machineFailure(run, rows) {
  const different = [...new Map(rows.map((row) => [String(row), row])).values()];
  const count = Math.min(PROBES, different.length);
  if (count < FEWEST_PROBES) return null;
  let failure = null;
  for (let place = 0; place < count; place += 1) {
    const row = different[Math.floor((place * (different.length - 1)) / (count - 1))];
    const [item] = await runRows(run, [row]);
    if (!(item instanceof Error) || isOfInput(item)) return null;
    failure ??= item;
    if (String(item) !== String(failure)) return null;
  }
  return failure;
}

/**
 * Returns rows of ids as one array (B, S), padded on the right with 0.
 *
 * @param {number[][]} rows
 */
export function padRows(rows) {
  const length = Math.max(...rows.map((row) => row.length));
  const ids = new Int32Array(rows.length * length);
  rows.forEach((row, index) => ids.set(row, index * length));
  return { ids, dims: [rows.length, length] };
}
