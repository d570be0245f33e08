/**
 * What Node has and a browser has not. By `process.getBuiltinModule` and not by `import`, so that
 * bundlers for browsers have nothing to resolve.
 */

/** Whether this is Node. */
export const inNode = typeof globalThis.process?.getBuiltinModule === "function";

/**
 * A module of Node's own; only where `inNode`.
 *
 * @param {string} name such as "node:fs/promises"
 * @returns {any}
 */
export function builtin(name) {
  return globalThis.process.getBuiltinModule(name);
}
