# Everything runs in a virtual environment of its own; nothing outside this folder is changed
# except the model cache (ANEX_CACHE, by default the user's cache folder).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PROMPT ?= The capital of France is
LLAMA := build/llama.cpp

.PHONY: help demo test lint fuzz bench bench-embed goldens clean

help:  ## What there is to make.
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile

$(BIN)/anex: pyproject.toml setup.py anex/emulator/native/matmul.cpp anex/emulator/native/simd.h
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(BIN)/pytest: $(BIN)/anex
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

demo: $(BIN)/anex  ## Fetch a small model and let it answer.
	@model=$$($(BIN)/python tools/fetch_smollm2.py) && $(BIN)/anex run "$$model" -n 24 --temp 0 --verbose -p "$$PROMPT"

test: $(BIN)/pytest lint  ## What CI runs; minutes.
	$(BIN)/python -m pytest -n auto

lint: $(BIN)/pytest
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fuzz: $(BIN)/pytest  ## 100,000 mutated inputs for each reader; half an hour.
	for what in mil blob gguf safetensors; do $(BIN)/python tools/fuzz.py $$what -n 100000 || exit 1; done

$(LLAMA)/lib: | $(BIN)/pytest
	$(BIN)/python tools/build_llama_cpp.py $(LLAMA)

bench: $(BIN)/anex $(LLAMA)/lib  ## Measure beside llama.cpp; writes docs/performance.md.
	model=$$($(BIN)/python tools/fetch_smollm2.py) && $(BIN)/python bench/core.py "$$model"

bench-embed: $(BIN)/anex  ## Measure embeddings beside torch; PEER is a Python with sentence-transformers.
	model=$$($(BIN)/python tools/fetch_minilm.py) && $(BIN)/python bench/embed.py "$$model" --peer "$(PEER)"

goldens: export LLAMA_CPP_LIB_PATH := $(LLAMA)/lib
goldens: export PYTHONPATH := $(LLAMA)/python
goldens: $(BIN)/pytest $(LLAMA)/lib  ## Make tests/data/{llama,families,tokenizer} again, from llama.cpp.
	$(BIN)/python tools/goldens/llama.py
	$(BIN)/python tools/goldens/tokenizer.py --smollm2 "$$($(BIN)/python tools/fetch_smollm2.py)"

clean:
	rm -rf $(VENV) build *.egg-info anex/emulator/native/_kernels*
