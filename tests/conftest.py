"""What tests of several rooms share: tiny models, made by models/tiny_llama.py and tiny_text.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "models"))

import tiny_text


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a tokenizer."""
    return tiny_text.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
