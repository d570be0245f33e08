/**
 * Log-mel features of sound for Whisper, equal to the features in Python's `Transcriber`. Frame i is
 * centred at sample 160 i. The sound is reflected at its start and padded with zeros at its end. Shapes:
 * S frames, M mel bands.
 */

export const SAMPLE_RATE = 16000;
export const FRAMES_PER_SECOND = 100;
const [WINDOW, HOP] = [400, SAMPLE_RATE / FRAMES_PER_SECOND]; // samples
const HALF = WINDOW / 2;
const RANGE = 8; // features are clamped at this distance below the loudest one, in powers of 10

/**
 * @param {Float32Array} samples at 16 kHz, from -1 to 1
 * @param {number} mels M
 * @returns {Float32Array} (S, M), a frame for every 160 whole samples
 */
export function logMel(samples, mels) {
  const frames = Math.floor(samples.length / HOP);
  const features = new Float32Array(frames * mels);
  const [filters, cosines, sines] = [melFilters(mels), waves(Math.cos), waves(Math.sin)];
  const hann = Float64Array.from({ length: WINDOW }, (_, n) => 0.5 - 0.5 * Math.cos((2 * Math.PI * n) / WINDOW));
  const [x, even, odd, power] = [WINDOW, HALF + 1, HALF + 1, HALF + 1].map((size) => new Float64Array(size));
  let loudest = -Infinity;
  for (let frame = 0; frame < frames; frame++) {
    for (let n = 0; n < WINDOW; n++) x[n] = hann[n] * sampleAt(samples, frame * HOP + n - HALF);
    // Cosines are symmetric about the middle, and sines antisymmetric. This halves the sums.
    for (let n = 0; n <= HALF; n++) {
      const other = n % HALF ? x[WINDOW - n] : 0;
      [even[n], odd[n]] = [x[n] + other, x[n] - other];
    }
    for (let k = 0, place = 0; k <= HALF; k++) {
      let [real, imaginary] = [0, 0];
      for (let n = 0; n <= HALF; n++, place++) {
        real += even[n] * cosines[place];
        imaginary += odd[n] * sines[place];
      }
      power[k] = real * real + imaginary * imaginary;
    }
    filters.forEach(({ first, weights }, mel) => {
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * power[first + k];
      const value = Math.log10(Math.max(sum, 1e-10));
      features[frame * mels + mel] = value;
      loudest = Math.max(loudest, value);
    });
  }
  for (let i = 0; i < features.length; i++) features[i] = (Math.max(features[i], loudest - RANGE) + 4) / 4;
  return features;
}

/** @param {Float32Array} samples @param {number} place */
function sampleAt(samples, place) {
  if (place >= 0) return place < samples.length ? samples[place] : 0;
  const period = 2 * (samples.length - 1);
  const reflected = -place % period;
  return samples[reflected < samples.length ? reflected : period - reflected];
}

/** Returns values of a wave of each frequency k at each sample n, one row for each k. @param {(angle: number) => number} wave */
function waves(wave) {
  const values = Float64Array.from({ length: WINDOW }, (_, n) => wave((2 * Math.PI * n) / WINDOW));
  const size = HALF + 1;
  return Float64Array.from({ length: size * size }, (_, i) => values[((i % size) * Math.floor(i / size)) % WINDOW]);
}

/**
 * Returns the nonzero weights of triangular filters on Slaney's mel scale, each of unit area.
 *
 * @param {number} mels
 */
function melFilters(mels) {
  const top = 15 + (27 / Math.log(6.4)) * Math.log(SAMPLE_RATE / 2 / 1000); // 8 kHz in mels
  const hertz = Array.from({ length: mels + 2 }, (_, i) => {
    const mel = (top * i) / (mels + 1);
    return mel < 15 ? (mel * 200) / 3 : 1000 * 6.4 ** ((mel - 15) / 27);
  });
  return Array.from({ length: mels }, (_, i) => {
    const [low, middle, high] = hertz.slice(i, i + 3);
    const all = Array.from({ length: HALF + 1 }, (_, k) => {
      const frequency = (k * SAMPLE_RATE) / WINDOW;
      const height = Math.min((frequency - low) / (middle - low), (high - frequency) / (high - middle));
      return (Math.max(0, height) * 2) / (high - low);
    });
    const first = Math.max(0, all.findIndex((weight) => weight > 0));
    const end = all.findLastIndex((weight) => weight > 0) + 1;
    return { first, weights: Float64Array.from(all.slice(first, end)) };
  });
}
