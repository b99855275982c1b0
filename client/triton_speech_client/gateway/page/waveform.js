// Draws loudness over time: bars for what has come, in another colour for what has been heard.

const BIN_SECONDS = 0.02;
const BAR = 3;
const LEAST_SECONDS = 3;

export class Waveform {
  constructor(canvas) {
    this.canvas = canvas;
    this.asked = false;
    this.clear();
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear() {
    this.peaks = [];
    this.peak = 0;
    this.inBin = 0;
    this.played = 0;
    this.draw();
  }

  add(samples, sampleRate) {
    const size = BIN_SECONDS * sampleRate;
    for (const sample of samples) {
      this.peak = Math.max(this.peak, Math.abs(sample));
      if (++this.inBin >= size) {
        this.peaks.push(this.peak);
        this.peak = this.inBin = 0;
      }
    }
    this.draw();
  }

  playedTo(seconds) {
    this.played = seconds;
    this.draw();
  }

  draw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.paint();
    });
  }

  paint() {
    const { canvas, peaks } = this;
    const scale = devicePixelRatio || 1;
    const width = (canvas.width = Math.round(canvas.clientWidth * scale));
    const height = (canvas.height = Math.round(canvas.clientHeight * scale));
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const bars = Math.floor(width / (BAR * scale));
    const seconds = Math.max(LEAST_SECONDS, peaks.length * BIN_SECONDS);
    const loudest = Math.max(0.1, ...peaks);
    context.clearRect(0, 0, width, height);
    for (let bar = 0; bar < bars; bar++) {
      const from = Math.floor((bar / bars) * (seconds / BIN_SECONDS));
      const to = Math.max(from + 1, Math.floor(((bar + 1) / bars) * (seconds / BIN_SECONDS)));
      const peak = Math.max(0, ...peaks.slice(from, to)) / loudest;
      const tall = Math.max(1.5 * scale, peak * height * 0.94);
      const heard = (bar / bars) * seconds < this.played;
      context.fillStyle = style.getPropertyValue(heard ? "--accent" : "--wave");
      context.globalAlpha = from < peaks.length ? 1 : 0.4;
      context.fillRect(bar * BAR * scale, (height - tall) / 2, 2 * scale, tall);
    }
  }
}
