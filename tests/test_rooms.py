"""A room is used through its `__init__`: nobody imports the inner modules of another room."""

import ast
import importlib
from pathlib import Path

import anex

ROOT = Path(anex.__file__).parent

DOORS = {
    "anex.errors",
    "anex.files",
    "anex.mil",
    "anex.mil.examples",
    "anex.mil.ops",
    "anex.formats.gguf",
    "anex.formats.hub",
    "anex.formats.safetensors",
    "anex.models",
    "anex.models.chat",
    "anex.models.encoder",
    "anex.models.tokenizer",
    "anex.emulator",
    "anex.engines",
    "anex.engines.conformance",
    "anex.runtime",
    "anex.api",
    "anex.cli",
}
"""What may be imported from outside its room."""


def imported(path: Path) -> set[str]:
    """Every `anex` module that a file imports; a name that a door exports counts as the door."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "anex":
            exported = importlib.import_module(node.module).__dict__.get("__all__", ())
            for alias in node.names:
                inner = (ROOT.parent / node.module.replace(".", "/") / f"{alias.name}.py").exists()
                found.add(
                    f"{node.module}.{alias.name}" if inner and alias.name not in exported else node.module
                )
    return {name for name in found if name.split(".")[0] == "anex"}


def test_rooms_are_entered_by_their_doors():
    around = []
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT.parent).with_suffix("")
        room = relative.parts[1] if len(relative.parts) > 2 else ""
        for name in sorted(imported(path)):
            parts = name.split(".")
            if name != "anex" and name not in DOORS and (len(parts) < 2 or parts[1] != room):
                around.append(f"{relative}: {name}")
    assert not around, "\n".join(around)
