"""What tests of several rooms share: the tiny models are made by tests/models/tiny_llama.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "models"))
