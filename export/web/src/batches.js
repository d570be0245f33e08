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
 * What a model gives for each row: in one call, or where that fails in smaller ones.
 *
 * @template T
 * @param {(rows: number[][]) => Promise<T[]>} run
 * @param {number[][]} rows
 * @returns {Promise<(T | Error)[]>} an error for a row that fails alone
 */
export async function runRows(run, rows) {
  try {
    return await run(rows);
  } catch (error) {
    if (rows.length === 1) return [error instanceof Error ? error : new Error(String(error))];
    const half = rows.length >> 1;
    return [...(await runRows(run, rows.slice(0, half))), ...(await runRows(run, rows.slice(half)))];
  }
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
