/** Protocol buffers: the fields of a message, without its schema. */

/**
 * A field of a message.
 *
 * @typedef {object} Field
 * @property {number} number
 * @property {number} start position of its key
 * @property {Uint8Array | null} value a view of the bytes; null for a number
 */

/**
 * Yields the fields of a message. Stops at invalid bytes.
 *
 * @param {Uint8Array} data
 * @returns {Generator<Field>}
 */
export function* fields(data) {
  let place = 0;
  const varint = () => {
    let number = 0;
    for (let scale = 1; place < data.length; scale *= 128) {
      const byte = data[place++];
      number += (byte & 127) * scale;
      if (byte < 128) break;
    }
    return number;
  };
  while (place < data.length) {
    const start = place;
    const key = varint();
    const [number, kind] = [Math.floor(key / 8), key % 8];
    const size = { 0: 0, 1: 8, 2: -1, 5: 4 }[kind];
    if (size === undefined) return;
    if (kind === 0) varint();
    const length = size < 0 ? varint() : size;
    yield { number, start, value: kind === 2 ? data.subarray(place, place + length) : null };
    place += length;
  }
}
