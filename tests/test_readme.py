"""The Python of the README runs as it stands there."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet(number, tiny_gguf, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANEX_CACHE", str(tmp_path))
    exec(SNIPPETS[number].replace("model.gguf", str(tiny_gguf)), {})


def test_there_are_snippets():
    assert len(SNIPPETS) >= 2
