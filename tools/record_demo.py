"""Runs `anex run` for real and draws what the terminal showed: docs/demo.svg, the picture in README.

python tools/record_demo.py MODEL.gguf
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

PROMPT = "The capital of France is"
TARGET = Path(__file__).resolve().parent.parent / "docs" / "demo.svg"


def main() -> None:
    model = Path(sys.argv[1])
    options = ["-p", PROMPT, "-n", "24", "--temp", "0", "--verbose"]
    command = [Path(sys.executable).with_name("anex"), "run", model, *options]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    console = Console(record=True, width=92, file=sys.stderr)
    shown = f'anex run {model.name} -p "{PROMPT}" -n 24 --temp 0 --verbose'
    console.print(Text.assemble(("$ ", "bold green"), shown))
    console.print(Text(result.stdout.rstrip()))
    console.print(Text(result.stderr.rstrip(), style="dim"))
    console.save_svg(str(TARGET), title="anex")


if __name__ == "__main__":
    main()
