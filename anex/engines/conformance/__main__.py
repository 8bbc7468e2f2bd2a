"""`python -m anex.engines.conformance ENGINE`: put an engine through the suite."""

from __future__ import annotations

import argparse
import sys

from anex.engines import engine
from anex.engines.conformance import run
from anex.errors import AnexError


def main() -> int:
    """Exit code 0 where everything passed, 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m anex.engines.conformance", description=__doc__)
    parser.add_argument("engine", help="name of an engine, `emulator` for one")
    parser.add_argument("--numerics", default="fp16", choices=("fp16", "fp32"), help="arithmetic level")
    parser.add_argument(
        "--only", action="append", default=[], metavar="ID", help="a case, or a group of cases"
    )
    args = parser.parse_args()
    try:
        count, failures = run(engine(args.engine, numerics=args.numerics), args.numerics, args.only)
    except AnexError as error:
        print(f"anex: error: {error}", file=sys.stderr)
        return error.exit_code
    for failure in failures:
        print(failure)
    print(f"{count - len(failures)} passed, {len(failures)} failed")
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main())
