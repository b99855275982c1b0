// The recording to speak like: chosen as a file or taken from the microphone, kept as a WAV.

import { decodeToWav } from "./wav.js";

const MOST_SECONDS = 30;

export class Reference {
  constructor({ file, record, forget, says, preview }) {
    Object.assign(this, { file, record, forget, says, preview });
    this.blob = null;
    this.recorder = null;
    file.addEventListener("change", () => this.choose());
    record.addEventListener("click", () => (this.recorder ? this.recorder.stop() : this.start()));
    forget.addEventListener("click", () => {
      this.clear();
      record.focus();
    });
  }

  async choose() {
    const [file] = this.file.files;
    if (file) await this.keep(file, file.name);
  }

  async start() {
    if (!navigator.mediaDevices) {
      this.says.textContent = "Recording needs https or localhost.";
      return;
    }
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, autoGainControl: false } });
    } catch {
      this.says.textContent = "The microphone cannot be used.";
      return;
    }
    const pieces = [];
    const recorder = (this.recorder = new MediaRecorder(stream));
    recorder.ondataavailable = ({ data }) => pieces.push(data);
    recorder.onstop = async () => {
      clearInterval(clock);
      stream.getTracks().forEach((track) => track.stop());
      this.recorder = null;
      this.record.setAttribute("aria-pressed", "false");
      this.record.textContent = "Record";
      await this.keep(new Blob(pieces, { type: recorder.mimeType }), "Recording");
    };
    recorder.start();
    this.record.setAttribute("aria-pressed", "true");
    this.record.textContent = "Stop recording";
    this.says.textContent = "Recording.";
    let seconds = 0;
    const clock = setInterval(() => {
      this.record.textContent = `Stop recording (${++seconds} s)`;
      if (seconds >= MOST_SECONDS) recorder.stop();
    }, 1000);
  }

  async keep(blob, name) {
    this.clear();
    try {
      const wav = await decodeToWav(blob, MOST_SECONDS);
      this.blob = wav.blob;
      const cut = wav.seconds > MOST_SECONDS ? `, the first ${MOST_SECONDS} of` : ",";
      this.says.textContent = `${name}${cut} ${wav.seconds.toFixed(1)} s`;
    } catch {
      this.says.textContent = `${name} is no audio that this browser reads.`;
      return;
    }
    this.preview.src = URL.createObjectURL(this.blob);
    this.preview.hidden = this.forget.hidden = false;
  }

  clear() {
    if (this.preview.src) URL.revokeObjectURL(this.preview.src);
    this.preview.removeAttribute("src");
    this.preview.hidden = this.forget.hidden = true;
    this.blob = null;
    this.file.value = "";
    this.says.textContent = "";
  }
}
