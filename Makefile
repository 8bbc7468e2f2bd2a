# Everything runs in a virtual environment of its own; nothing outside this folder is changed
# except the model cache (ANEX_CACHE, by default ~/.cache/anex).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROMPT ?= The capital of France is

.PHONY: demo test lint proof bench goldens clean

$(BIN)/anex: pyproject.toml setup.py anex/emulator/native/matmul.cpp anex/emulator/native/simd.h
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(BIN)/pytest: $(BIN)/anex
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

demo: $(BIN)/anex  ## Fetch a small model and let it answer.
	@$(BIN)/anex run "$$($(BIN)/python tools/fetch_smollm2.py)" -n 48 -p "$(PROMPT)"

test: $(BIN)/pytest lint  ## What CI runs; minutes.
	$(BIN)/python -m pytest -n auto

lint: $(BIN)/pytest
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build *.egg-info anex/emulator/native/*.so
