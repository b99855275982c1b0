// The page's loudspeaker: one AudioContext, a fresh worklet node for each utterance.

export const SAMPLE_RATE = 48000;
const FILL_SECONDS = 0.2;

export class Player {
  constructor(onReport) {
    this.onReport = onReport;
    this.context = null;
    this.node = null;
  }

  // Call it while a click or key is handled: browsers let nothing else start sound.
  async open() {
    if (!this.context) {
      this.context = new AudioContext({ sampleRate: SAMPLE_RATE, latencyHint: "interactive" });
      this.loaded = this.context.audioWorklet?.addModule("/page/player-worklet.js");
    }
    await Promise.all([this.context.resume(), this.loaded]);
    this.close();
    if (!this.context.audioWorklet) return false;
    const node = new AudioWorkletNode(this.context, "speech-player", {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions: { fillSeconds: FILL_SECONDS },
    });
    node.port.onmessage = ({ data }) => {
      if (node === this.node) this.onReport(data);
    };
    node.connect(this.context.destination);
    this.node = node;
    return true;
  }

  push(samples) {
    this.node?.port.postMessage({ samples }, [samples.buffer]);
  }

  end() {
    this.node?.port.postMessage({ end: true });
  }

  // Fades out; the node goes when it is silent.
  close() {
    this.node?.port.postMessage({ stop: true });
    this.node = null;
  }
}
