// 16-bit mono WAV, the one format that every side reads.

const HEADER_BYTES = 44;

export function wavBlob(pieces, sampleRate) {
  const bytes = pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
  const view = new DataView(new ArrayBuffer(HEADER_BYTES));
  const words = (at, text) => [...text].forEach((sign, i) => view.setUint8(at + i, sign.charCodeAt(0)));
  words(0, "RIFF");
  view.setUint32(4, HEADER_BYTES - 8 + bytes, true);
  words(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, sampleRate, true);
  view.setUint32(28, 2 * sampleRate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  words(36, "data");
  view.setUint32(40, bytes, true);
  return new Blob([view, ...pieces], { type: "audio/wav" });
}

export function toFloat(samples) {
  return Float32Array.from(samples, (sample) => sample / 32768);
}

export function toInt16(samples) {
  return Int16Array.from(samples, (sample) => Math.max(-32768, Math.min(32767, Math.round(sample * 32768))));
}

// Whatever the browser can decode, as a mono WAV of at most `seconds`.
export async function decodeToWav(blob, seconds) {
  const context = new OfflineAudioContext(1, 1, 48000);
  const audio = await context.decodeAudioData(await blob.arrayBuffer());
  const mono = new Float32Array(Math.min(audio.length, Math.floor(seconds * audio.sampleRate)));
  for (let channel = 0; channel < audio.numberOfChannels; channel++) {
    const samples = audio.getChannelData(channel);
    for (let i = 0; i < mono.length; i++) mono[i] += samples[i] / audio.numberOfChannels;
  }
  return { blob: wavBlob([toInt16(mono)], audio.sampleRate), seconds: audio.duration };
}
