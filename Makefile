# Everything runs in .venv, which is made from the lock file when it is needed.

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
UNFINISHED := $(VENV)/.installing
LOCK := requirements/cpu.lock
TORCH := $(shell grep '^torch==' $(LOCK))
TORCH_INDEX := https://download.pytorch.org/whl/cpu
SMOLLM2 := build/smollm2
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

.PHONY: help install smoke survey smoke-sglang smollm2 test test-all lint bench clean distclean

help:
	@echo "make smoke      check a live engine here (options in ARGS='...')"
	@echo "make survey     check both engines in every way in which they can run, 25 minutes"
	@echo "make smoke-sglang   the same for a live SGLang engine"
	@echo "make test       lint, types, and the test suite;  make test-all: also what takes long"
	@echo "make smollm2    make a checkpoint of SmolLM2-135M-Instruct in $(SMOLLM2)"
	@echo "make lint       ruff and mypy"
	@echo "make bench      measure, and keep the results in build/bench.json"
	@echo "make clean      remove caches;  make distclean: also $(VENV) and build/"

install: $(STAMP)

# The stamp is written last. An installation that was cut short may have left a package half
# written that pip would take for whole, so the next attempt starts anew.
$(STAMP): $(LOCK) pyproject.toml
	@if [ -e $(UNFINISHED) ]; then echo "removing an unfinished $(VENV)"; rm -rf $(VENV); fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "syncguard needs Python 3.11 or newer: make PYTHON=/path/to/python" >&2; exit 2; }
	@echo "installing $(LOCK) into $(VENV)"
	@mkdir -p $(VENV) && touch $(UNFINISHED)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -r $(LOCK)
	@$(BIN)/python -c 'import torch' 2>/dev/null || { \
		echo "this torch does not run here: taking the CPU build from $(TORCH_INDEX)"; \
		$(PIP) --force-reinstall --index-url $(TORCH_INDEX) '$(TORCH)' && \
		$(BIN)/python -c 'import torch'; }
	@$(PIP) --no-build-isolation -e .
	@rm $(UNFINISHED)
	@touch $(STAMP)

smoke: $(STAMP)
	@$(BIN)/syncguard smoke $(ARGS)

survey: $(STAMP)
	@$(BIN)/syncguard survey $(ARGS)

smoke-sglang: $(STAMP)
	@$(BIN)/syncguard smoke --engine sglang $(ARGS)

$(SMOLLM2)/config.json: | $(STAMP)
	@$(BIN)/python scripts/make_smollm2.py $(SMOLLM2)

smollm2: $(SMOLLM2)/config.json

lint: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

test: lint
	@$(BIN)/pytest -n $(WORKERS) --dist loadgroup $(ARGS)

test-all: lint
	@$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "" $(ARGS)

# Torch's threads would spin for milliseconds after each operation, on the cores of what is timed next.
bench: export OMP_WAIT_POLICY ?= passive
bench: $(STAMP)
	@rm -f build/bench.json
	@set -e; for script in benchmarks/[!_]*.py; do echo "$$script"; $(BIN)/python "$$script"; done

clean:
	@rm -rf dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV) build
