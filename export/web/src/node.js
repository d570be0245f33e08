/**
 * Node's modules, which browsers lack. `process.getBuiltinModule` loads them, because bundlers for browsers
 * could not resolve an `import`.
 */

/** Whether this is Node. */
export const inNode = typeof globalThis.process?.getBuiltinModule === "function";

/**
 * Returns a built-in module of Node; only if `inNode`.
 *
 * @param {string} name such as "node:fs/promises"
 * @returns {any}
 */
export function builtin(name) {
  return globalThis.process.getBuiltinModule(name);
}
