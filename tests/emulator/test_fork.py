"""XLA's threads do not follow into a forked child: a call there is refused and does not hang."""

import subprocess
import sys

CHILD = """
import os, sys
import numpy as np
import anex
from anex.errors import EvaluateError
from anex.mil import Builder, DType, Program

b = Builder("main")
program = Program({"main": b.finish({"y": b.op("exp", x=b.input("x", DType.FP16, (1, 32)))})})
exe, x = anex.compile(program), np.zeros((1, 32), np.float16)
assert (exe.call("main", {"x": x})["y"] == 1).all()
child = os.fork()
if child == 0:
    try:
        exe.call("main", {"x": x})
    except EvaluateError as error:
        os._exit(7 if "fork" in str(error) else 8)
    os._exit(9)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_call_after_a_fork_is_refused():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CHILD], timeout=120)
    assert done.returncode == 7
