"""The Python of the README runs as it stands there."""

import re
from pathlib import Path

import pytest
import tiny_text

README = Path(__file__).parents[1] / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet(number, tmp_path, monkeypatch):
    monkeypatch.setenv("ANEX_CACHE", str(tmp_path))
    metadata = {**tiny_text.metadata(), "tokenizer.chat_template": TEMPLATE}
    model = tiny_text.write(tmp_path / "model.gguf", metadata)
    exec(SNIPPETS[number].replace("model.gguf", str(model)), {})


def test_there_are_snippets():
    assert len(SNIPPETS) >= 2
