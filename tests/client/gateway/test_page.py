"""The page in a real Chromium, before a real server: it speaks, records, cancels, and plays without a click."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

PAGE_WAIT_MS = 30_000
SPEECH = {"input": "Hi.", "seed": 1, "response_format": "pcm", "sample_rate": 48000}
"""What the page asks for after ``set_up``."""
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("the package playwright is not there")
    if CHROMIUM is None:
        pytest.skip("chromium is not there; name one in the environment variable CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, headless=True)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, gateway: Any) -> Iterator[Any]:
    """Opens the page; afterwards nothing may stand in its console, and nothing was asked of another host."""
    contexts, troubles, hosts = [], [], set()

    def open_page(url: str = gateway.url, **options: Any) -> Any:
        context = browser.new_context(**options)
        context.set_default_timeout(PAGE_WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: hosts.add(httpx.URL(request.url).host))
        page.goto(url)
        wait_for(page, "#server", "ready")
        page.wait_for_load_state("networkidle")
        page.troubles = troubles
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert hosts <= {"127.0.0.1", ""}
    assert troubles == []


def set_up(page: Any, text: str = "Hi.", seed: str = "1") -> None:
    page.fill("#text", text)
    if page.get_attribute("#more", "open") is None:
        page.click("summary")
    page.fill("#seed", seed)


def wait_for_status(page: Any, pattern: str) -> str:
    wait_for(page, "#status", pattern)
    return str(page.inner_text("#status"))


def downloaded(page: Any, tmp_path: Path) -> bytes:
    """The samples of the file that the page offers, int16 at 48 kHz."""
    with page.expect_download() as download:
        page.click("#download")
    download.value.save_as(tmp_path / "speech.wav")
    samples, rate = soundfile.read(tmp_path / "speech.wav", dtype="int16")
    assert rate == 48000
    return bytes(samples.tobytes())


def wait_for(page: Any, selector: str, pattern: str) -> None:
    """Returns once the element's text matches."""
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_text(re.compile(pattern), timeout=PAGE_WAIT_MS)


def test_it_speaks_while_the_speech_is_made_and_offers_it_as_a_file(
    open_page: Any, gateway: Any, tmp_path: Path
) -> None:
    page = open_page()
    set_up(page)
    page.click("#speak")
    said = wait_for_status(page, "Done")
    samples = downloaded(page, tmp_path)
    assert samples == gateway.post(SPEECH).content
    seconds = len(samples) / 2 / 48000
    assert said == f"Done: {seconds:.1f} s of speech."
    assert re.fullmatch(r"\d+ ms", page.inner_text("#first"))
    assert page.inner_text("#played") == f"{seconds:.1f} s"
    assert page.inner_text("#buffer") == "0 ms"
    assert page.evaluate("document.querySelector('#wave').getContext('2d').getImageData(0,0,400,60).data.some(x => x)")
    page.click("#again")
    assert wait_for_status(page, "Speaking|Done")
    page.click("#cancel")


def test_it_is_worked_by_keyboard_alone(open_page: Any, gateway: Any) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.press("Control+A")
    page.keyboard.type("Hi.")
    reached = []
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "file":  # hidden itself, its label stands for it
            assert page.evaluate("getComputedStyle(document.querySelector('label[for=file]')).outlineStyle") == "solid"
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached == ["voice", "model", "file", "record", "SUMMARY", "speak"]
    page.focus("#text")
    page.keyboard.press("Control+Enter")
    wait_for_status(page, "Done")
    assert page.evaluate("document.activeElement.id") == "text"


def test_cancelling_ends_the_sound_and_the_work(open_page: Any, gateway: Any) -> None:
    page = open_page()
    set_up(page, "word " * 45)
    page.fill("#steps", "100")
    page.click("#speak")
    wait_for_status(page, "Speaking")
    page.keyboard.press("Escape")
    assert wait_for_status(page, "Cancelled") == "Cancelled."
    assert page.is_disabled("#cancel")
    assert page.is_enabled("#again")
    limit = time.monotonic() + PAGE_WAIT_MS / 1000
    while gateway.shared.access.house.active:
        assert time.monotonic() < limit
        page.wait_for_timeout(10)
    set_up(page)
    page.fill("#steps", "")
    page.click("#speak")
    wait_for_status(page, "Done")


def test_it_records_a_voice_and_sends_it(open_page: Any, gateway: Any, tmp_path: Path) -> None:
    page = open_page()
    set_up(page)
    page.click("#record")
    wait_for(page, "#record", r"\(2 s\)")
    assert page.get_attribute("#record", "aria-pressed") == "true"
    page.keyboard.press("Enter")
    page.wait_for_selector("#preview:visible")
    assert re.search(r"Recording, [1-3]\.\d s", page.inner_text("#reference"))
    page.click("#speak")
    wait_for_status(page, "Done")
    assert downloaded(page, tmp_path) != gateway.post(SPEECH).content
    page.click("#forget")
    assert page.is_hidden("#preview")


def test_it_takes_a_file_as_voice(open_page: Any, tmp_path: Path) -> None:
    page = open_page()
    set_up(page)
    stereo = 0.3 * np.sin(np.arange(96_000) * 0.02)[:, None] * np.ones((1, 2))
    soundfile.write(tmp_path / "me.flac", stereo, 44_100)
    page.set_input_files("#file", tmp_path / "me.flac")
    page.wait_for_selector("#preview:visible")
    assert page.inner_text("#reference") == "me.flac, 2.2 s"
    page.click("#speak")
    wait_for_status(page, "Done")
    (tmp_path / "no.wav").write_bytes(b"nothing")
    page.set_input_files("#file", tmp_path / "no.wav")
    wait_for(page, "#reference", "no audio")


def test_an_error_is_shown_in_the_gateways_words(open_page: Any) -> None:
    page = open_page()
    page.fill("#text", "")
    page.click("#speak")
    assert wait_for_status(page, "empty") == "input: is empty"
    page.troubles.clear()  # Chromium writes every 400 to the console


def test_a_key_is_asked_for(speech_server: Any, start_gateway: Any, open_page: Any) -> None:
    from triton_speech_client.gateway.settings import ApiKey

    with start_gateway(triton=speech_server.grpc_url, keys=(ApiKey(name="a", key="sk-of-the-page"),)) as gateway:
        page = open_page(gateway.url)
        page.click("#speak")
        wait_for_status(page, "API key")
        assert page.evaluate("document.activeElement.id") == "key"
        page.fill("#key", "sk-of-the-page")
        page.keyboard.press("Tab")
        page.click("#speak")
        wait_for_status(page, "Done|Speaking")
        page.troubles.clear()  # Chromium writes every 401 to the console
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(open_page: Any, scheme: str) -> None:
    page = open_page(viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True, color_scheme=scheme)
    page.tap("summary")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    small = page.evaluate(
        "[...document.querySelectorAll('button, .button, select, input:not([type=file]), textarea')]"
        ".filter(e => e.offsetParent && e.getBoundingClientRect().height < 44).map(e => e.id)"
    )
    assert small == []
    page.tap("#speak")
    wait_for_status(page, "Speaking|Done")
    assert page.evaluate("document.querySelector('#player').getBoundingClientRect().top < innerHeight")


def test_every_field_has_a_name_and_news_are_announced(open_page: Any) -> None:
    page = open_page()
    page.click("summary")
    nameless = page.evaluate(
        "[...document.querySelectorAll('input, select, textarea')].filter(e => !e.labels.length).map(e => e.id)"
    )
    assert nameless == []
    assert page.get_attribute("#status", "aria-live") == "polite"


RENDER = """async ({pieces, gap, stop}) => {
  const context = new OfflineAudioContext(1, 48000, 48000);
  await context.audioWorklet.addModule('/page/player-worklet.js');
  const node = new AudioWorkletNode(context, 'speech-player',
    {numberOfInputs: 0, outputChannelCount: [1], processorOptions: {fillSeconds: 0.02}});
  node.connect(context.destination);
  const reports = [];
  node.port.onmessage = ({data}) => reports.push(data);
  const wave = Float32Array.from({length: 24000}, (_, i) => 0.5 * Math.cos(i * 0.05));
  const send = (from, to) => node.port.postMessage({samples: wave.slice(from, to)});
  const settle = () => new Promise(done => setTimeout(done, 50));
  let at = 0;
  if (gap) {
    send(0, 6000);
    await settle();
    context.suspend(0.25).then(async () => {
      send(6000, 24000); node.port.postMessage({end: true}); await settle(); context.resume();
    });
  } else {
    for (const size of pieces) { send(at, at + size); at += size; }
    node.port.postMessage({end: true});
    await settle();
    if (stop) context.suspend(0.25).then(async () => {
      node.port.postMessage({stop: true}); await settle(); context.resume();
    });
  }
  const audio = (await context.startRendering()).getChannelData(0);
  await settle();
  return {audio: [...audio], last: reports[reports.length - 1]};
}"""
LOUDEST_STEP = 0.5 * 0.05 * 1.1  # of the wave itself, and a little for the glides


def rendered(page: Any, **how: Any) -> tuple[Any, dict[str, Any]]:
    """What the worklet plays of half a second of a wave, and its last report."""
    result = page.evaluate(RENDER, {"pieces": [], "gap": False, "stop": False, **how})
    return np.array(result["audio"]), result["last"]


def test_the_player_joins_pieces_without_a_seam(open_page: Any) -> None:
    page = open_page()
    audio, last = rendered(page, pieces=[1, 127, 128, 129, 5000, 18615])
    wave = 0.5 * np.cos(np.arange(24_000) * 0.05)
    start = 240  # the glide from silence
    begin = int(np.flatnonzero(audio)[0])
    assert np.allclose(
        audio[begin + start : begin + 24_000], wave[start : 24_000 - 0][: len(audio) - begin - start], atol=1e-6
    )
    assert (last["state"], last["gaps"], round(last["played"], 3)) == ("done", 0, 0.5)


def test_a_gap_is_a_glide_and_not_a_click(open_page: Any) -> None:
    page = open_page()
    audio, last = rendered(page, gap=True)
    assert (last["state"], last["gaps"]) == ("done", 1)
    assert np.abs(np.diff(audio)).max() < LOUDEST_STEP
    assert np.abs(audio[7000:11000]).max() == 0


def test_stopping_is_a_glide_and_not_a_click(open_page: Any) -> None:
    page = open_page()
    audio, last = rendered(page, pieces=[24000], stop=True)
    assert last["state"] == "stopped"
    assert np.abs(np.diff(audio)).max() < LOUDEST_STEP
    assert np.abs(audio[14000:]).max() == 0


def test_the_pages_files_come_with_a_policy_and_from_here(gateway: Any) -> None:
    for path in ("/", "/page/app.js", "/page/style.css", "/page/player-worklet.js"):
        answer = httpx.get(gateway.url + path)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "//" not in re.sub(r"//[^\n]*\n|http://www\.w3\.org/2000/svg", "", answer.text)
    assert httpx.get(f"{gateway.url}/page/../app.py").status_code == 404
    assert httpx.get(f"{gateway.url}/page/%2e%2e/app.py").status_code == 404
