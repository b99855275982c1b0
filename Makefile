# make demo: speak a sentence.  make test: lint, types, tests.  Both set up .venv themselves.
PYTHON ?= python3
# On machines without a GPU, name a CPU build of torch here to save gigabytes.
TORCH ?= torch==2.13.0
TEXT ?= Hello! This is Triton Speech, speaking through a real inference server.
OUT ?= hello.wav

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint unit parity server client perf clean

demo: $(READY)
	@$(BIN)/triton-speech demo "$(TEXT)" -o "$(OUT)"

test: lint unit parity server client

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit parity server client: $(READY)
	$(BIN)/python -m pytest tests/$@ -q

perf: $(READY)
	$(BIN)/python tests/perf/bench_pipeline.py

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[server,client,dev]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
