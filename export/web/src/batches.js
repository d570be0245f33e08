/** Batches: rows of similar length together, faults kept apart. */

/**
 * Lists of keys of `rows`, short rows first, such that a list fits a batch.
 *
 * @param {Map<number, number[]>} rows
 * @param {number} batchTokens most tokens of a batch, padding included; a longer row is a batch of
 *   its own
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

/**
 * The output of a model for each row: in one call, or where that fails in smaller ones. If three rows far
 * from each other fail alone and alike, no others are run.
 *
 * @template T
 * @param {(rows: number[][]) => Promise<T[]>} run
 * @param {number[][]} rows
 * @param {boolean} probed whether three rows were run alone before
 * @returns {Promise<(T | Error)[]>} an error for a row that fails alone
 */
export async function runRows(run, rows, probed = false) {
  try {
    return await run(rows);
  } catch (error) {
    if (rows.length === 1) return [error instanceof Error ? error : new Error(String(error))];
  }
  const half = rows.length >> 1;
  if (!probed && rows.length > 3) {
    const probes = [];
    for (const row of [rows[0], rows[half], rows[rows.length - 1]]) probes.push(...(await runRows(run, [row])));
    const [first] = probes;
    const alike = probes.every((probe) => probe instanceof Error && String(probe) === String(first));
    if (alike) return rows.map(() => first);
  }
  return [...(await runRows(run, rows.slice(0, half), true)), ...(await runRows(run, rows.slice(half), true))];
}

/**
 * Rows of ids as one array (B, S), padded on the right with 0.
 *
 * @param {number[][]} rows
 */
export function padRows(rows) {
  const length = Math.max(...rows.map((row) => row.length));
  const ids = new Int32Array(rows.length * length);
  rows.forEach((row, index) => ids.set(row, index * length));
  return { ids, dims: [rows.length, length] };
}
