// Plays chunks of samples one after another. Where none is left it glides to silence and, later, back from it:
// a step in the wave is what one hears as a click.

const GLIDE_SECONDS = 0.005;
const REPORT_SECONDS = 0.05;
const LONGEST_FILL_SECONDS = 0.8;

class SpeechPlayer extends AudioWorkletProcessor {
  constructor(options) {
    super();
    this.fill = options.processorOptions.fillSeconds * sampleRate;
    this.reset();
    this.port.onmessage = ({ data }) => this.take(data);
  }

  reset() {
    this.chunks = [];
    this.at = 0;
    this.buffered = 0;
    this.played = 0;
    this.gaps = 0;
    this.ended = false;
    this.stopping = false;
    this.state = "filling";
    this.gain = 0;
    this.last = 0;
    this.sinceReport = 0;
  }

  take(message) {
    if (message.samples) {
      this.chunks.push(message.samples);
      this.buffered += message.samples.length;
    } else if (message.end) {
      this.ended = true;
    } else if (message.stop) {
      this.stopping = true;
    }
  }

  process(_inputs, outputs) {
    const output = outputs[0][0];
    const step = 1 / (GLIDE_SECONDS * sampleRate);
    if (this.state === "filling" && (this.buffered >= this.fill || (this.ended && this.buffered))) {
      this.state = "playing";
      this.report();
    }
    for (let i = 0; i < output.length; i++) {
      const playing = this.state === "playing" && this.buffered > 0;
      this.gain = playing && !this.stopping ? Math.min(1, this.gain + step) : Math.max(0, this.gain - step);
      if (playing) this.last = this.next();
      output[i] = this.last * this.gain;
    }
    return this.settle(output.length);
  }

  next() {
    const sample = this.chunks[0][this.at++];
    if (this.at === this.chunks[0].length) {
      this.chunks.shift();
      this.at = 0;
    }
    this.buffered--;
    this.played++;
    return sample;
  }

  settle(length) {
    const silent = this.gain === 0;
    if ((this.stopping && silent) || (this.ended && !this.buffered && silent)) {
      this.state = this.stopping ? "stopped" : "done";
      this.report();
      return false;
    }
    if (this.state === "playing" && !this.buffered && !this.ended) {
      this.state = "filling";
      this.gaps++;
      this.fill = Math.min(2 * this.fill, LONGEST_FILL_SECONDS * sampleRate);
      this.report();
    }
    this.sinceReport += length;
    if (this.sinceReport >= REPORT_SECONDS * sampleRate) this.report();
    return true;
  }

  report() {
    this.sinceReport = 0;
    this.port.postMessage({
      state: this.state,
      played: this.played / sampleRate,
      buffered: this.buffered / sampleRate,
      gaps: this.gaps,
    });
  }
}

registerProcessor("speech-player", SpeechPlayer);
