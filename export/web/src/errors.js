/** An exported folder is damaged, foreign, of another format version, or unfit for this use. */
export class ArtefactError extends Error {
  name = "ArtefactError";
}

/**
 * Returns an error's plain fields, which can be sent to another thread; `revived` restores the error.
 *
 * @param {unknown} error
 */
export function plain(error) {
  const { name, message } = error instanceof Error ? error : new Error(String(error));
  return { name, message };
}

/** @param {{name: string, message: string}} fields */
export function revived({ name, message }) {
  const Kind = { ArtefactError, TypeError, RangeError }[name] ?? Error;
  return new Kind(message);
}
