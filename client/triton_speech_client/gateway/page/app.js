// The page: a form in, speech out while it is being made.

import { Player, SAMPLE_RATE } from "./player.js";
import { Reference } from "./reference.js";
import { toFloat, wavBlob } from "./wav.js";
import { Waveform } from "./waveform.js";

const KEY = "triton-speech-key";
const element = (id) => document.getElementById(id);
const [form, text, voice, model, key] = ["form", "text", "voice", "model", "key"].map(element);
const [speak, cancel, again, download, status] = ["speak", "cancel", "again", "download", "status"].map(element);

const waveform = new Waveform(element("wave"));
const player = new Player(onReport);
const reference = new Reference({
  file: element("file"),
  record: element("record"),
  forget: element("forget"),
  says: element("reference"),
  preview: element("preview"),
});

let running = null; // AbortController of the utterance that is being received
let received = []; // Int16Array pieces of the last utterance
let ended = true; // whether it has been received to its end
let wavUrl = null;

function say(sentence, bad = false) {
  status.textContent = sentence;
  status.classList.toggle("bad", bad);
}

function show(id, words) {
  element(id).textContent = words;
}

const milliseconds = (seconds) => `${Math.round(1000 * seconds)} ms`;
const seconds = (pieces) => pieces.reduce((sum, piece) => sum + piece.length, 0) / SAMPLE_RATE;

function headers() {
  return key.value ? { Authorization: `Bearer ${key.value}` } : {};
}

function requestBody() {
  const body = new FormData();
  const fields = {
    input: text.value,
    voice: reference.blob ? "" : voice.value, // the recording is the voice
    model: model.value,
    instructions: element("instructions").value.trim(),
    speed: element("speed").value,
    seed: element("seed").value,
    cfg_value: element("cfg").value,
    inference_steps: element("steps").value,
    response_format: "pcm",
    sample_rate: String(SAMPLE_RATE),
  };
  for (const [name, value] of Object.entries(fields)) {
    if (value !== "" || name === "input") body.append(name, value);
  }
  if (reference.blob) body.append("reference_audio", reference.blob, "reference.wav");
  return body;
}

function setBusy(busy) {
  cancel.disabled = !busy;
  again.disabled = busy || !received.length;
  form.setAttribute("aria-busy", String(busy));
}

function offerDownload() {
  if (wavUrl) URL.revokeObjectURL(wavUrl);
  wavUrl = received.length ? URL.createObjectURL(wavBlob(received, SAMPLE_RATE)) : null;
  if (wavUrl) download.href = wavUrl;
  else download.removeAttribute("href");
  download.setAttribute("aria-disabled", String(!wavUrl));
}

function begin() {
  running?.abort();
  received = [];
  ended = false;
  offerDownload();
  waveform.clear();
  for (const id of ["first", "buffer", "played", "gaps"]) show(id, "\u2013");
  setBusy(true);
  element("player").scrollIntoView({ block: "nearest" });
}

async function start() {
  begin();
  const mine = (running = new AbortController());
  say("Waiting for the first audio.");
  try {
    const streams = await player.open();
    const began = performance.now();
    const answer = await fetch("/v1/audio/speech", {
      method: "POST",
      headers: headers(),
      body: requestBody(),
      signal: mine.signal,
    });
    if (!answer.ok) throw await refusal(answer);
    await receive(answer.body.getReader(), began);
    if (!streams) playWhole();
  } catch (error) {
    if (mine.signal.aborted) return;
    player.close();
    setBusy(false);
    offerDownload();
    say(error instanceof TypeError ? "The connection was lost." : error.message, true);
  } finally {
    if (running === mine) running = null;
  }
}

async function refusal(answer) {
  let message = `The gateway answered with status ${answer.status}.`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // not the gateway's own words
  }
  if (answer.status === 401) {
    element("more").open = true;
    key.focus();
  }
  return new Error(message);
}

async function receive(reader, began) {
  let rest = new Uint8Array(0);
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    if (!received.length) {
      show("first", milliseconds((performance.now() - began) / 1000));
      say("Speaking.");
    }
    const bytes = new Uint8Array(rest.length + value.length);
    bytes.set(rest);
    bytes.set(value, rest.length);
    const whole = bytes.length - (bytes.length % 2);
    rest = bytes.slice(whole);
    take(new Int16Array(bytes.buffer.slice(0, whole)));
  }
  ended = true;
  player.end();
  offerDownload();
}

function take(samples) {
  const floats = toFloat(samples);
  received.push(samples);
  waveform.add(floats, SAMPLE_RATE);
  player.push(floats);
}

function onReport({ state, played, buffered, gaps }) {
  show("buffer", milliseconds(buffered));
  show("played", `${played.toFixed(1)} s`);
  show("gaps", String(gaps));
  waveform.playedTo(played);
  if (state === "done") {
    setBusy(false);
    say(`Done: ${seconds(received).toFixed(1)} s of speech.`);
  } else if (state === "filling" && gaps) {
    say("Waiting for more audio.");
  } else if (state === "playing") {
    say("Speaking.");
  }
}

// Without AudioWorklet (a page that came neither by https nor from localhost) the whole is played at its end.
function playWhole() {
  setBusy(false);
  say(`Done: ${seconds(received).toFixed(1)} s of speech. Playing while it comes needs https.`);
  new Audio(wavUrl).play();
}

async function replay() {
  setBusy(true);
  if (!(await player.open())) return playWhole();
  for (const piece of received) player.push(toFloat(piece));
  player.end();
  say("Speaking.");
}

function stop() {
  if (cancel.disabled) return;
  running?.abort();
  running = null;
  player.close();
  ended = true;
  setBusy(false);
  offerDownload();
  say("Cancelled.");
  speak.focus();
}

async function fill() {
  const server = element("server");
  try {
    const ok = (await fetch("/health")).ok;
    server.textContent = ok ? "ready" : "the speech server is not ready";
    server.className = `server ${ok ? "ok" : "bad"}`;
  } catch {
    server.textContent = "not reachable";
    server.className = "server bad";
  }
  await fillSelect(model, "/v1/models", (entry) => entry.id);
  await fillSelect(voice, "/v1/audio/voices", (entry) => entry.id);
}

async function fillSelect(select, url, name) {
  const answer = await fetch(url, { headers: headers() }).catch(() => null);
  if (!answer?.ok) return;
  const chosen = select.value;
  const entries = (await answer.json()).data.map(name).filter((one) => one !== "default");
  select.replaceChildren(select.options[0], ...entries.map((one) => new Option(one, one)));
  select.value = entries.includes(chosen) ? chosen : "";
}

function count() {
  show("count", `${text.value.length} of ${text.maxLength} characters`);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
cancel.addEventListener("click", stop);
again.addEventListener("click", replay);
text.addEventListener("input", count);
key.addEventListener("change", () => {
  sessionStorage.setItem(KEY, key.value);
  fill();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});

key.value = sessionStorage.getItem(KEY) ?? "";
count();
fill();
