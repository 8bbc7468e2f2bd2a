"""The emulator behind the protocol: calls, states, weight files, what cannot fit, what it says of itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anex.engines import engine, engines
from anex.errors import AnexError, EvaluateError, InputError, ResourceError, SurfaceError
from anex.mil import (
    BlobFile,
    BlobWriter,
    Builder,
    DType,
    Function,
    Op,
    Program,
    StateType,
    TensorType,
    Value,
    parse,
)

F16 = DType.FP16
ROW = TensorType(F16, (1, 1, 1, 32))


def compiled(*functions: Function, blob=None, **options):
    return engine("emulator", **options).compile(Program({f.name: f for f in functions}), blob)


def doubled() -> Function:
    b = Builder("main")
    return b.finish({"y": b.op("add", x=(x := b.input_of("x", ROW)), y=x)})


# --- options and calls --------------------------------------------------------------


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(InputError, match=r"engine 'emulator' has no option 'foo' \(it has numerics, "):
        engine("emulator", foo=1)
    with pytest.raises(InputError, match="'2' threads"):
        engine("emulator", threads="2")


def test_lists_and_numbers_are_taken_as_the_ports_dtype():
    b = Builder("main")
    x, n = b.input("x", F16, (1, 2)), b.input("n", DType.INT32, ())
    total = b.op("add", x=x, y=b.op("cast", x=n, dtype="fp16"))
    exe = compiled(b.finish({"y": total}))
    assert exe.call("main", {"x": [[1, 2.5]], "n": 3})["y"].tolist() == [[4, 5.5]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "missing or unknown: x"),
        ({"x": 1, "z": 2}, "missing or unknown: z"),
        ([1, 2], "a mapping from port names is needed, not a list"),
        ({"x": np.zeros((1, 4), np.float16)}, r"float16\[1, 4\], wants float16\[1, 1, 1, 32\]"),
        ({"x": np.zeros(ROW.dims, np.float32)}, "float32"),
        ({"x": [[1], [1, 2]]}, "wants float16"),
        ({"x": ["a"]}, "wants float16"),
        ({"x": [[[[1e9] * 32]]]}, "wants float16"),
        ({"x": None}, "wants float16"),
        ({"x": object()}, "wants float16"),
    ],
)
def test_a_wrong_call_is_refused(inputs, message):
    with pytest.raises(EvaluateError, match=message):
        compiled(doubled()).call("main", inputs)


def test_results_do_not_alias_what_the_caller_gave():
    b = Builder("main")
    x = b.input("x", F16, (1, 4096))
    exe = compiled(b.finish({"y": b.op("identity", x=x), "z": b.op("exp", x=x)}))
    given = np.ones((1, 4096), np.float16)
    got = exe.call("main", {"x": given})["y"]
    given[...] = 7
    assert (got == 1).all()


def test_surfaces_are_no_list():
    with pytest.raises(SurfaceError, match="a mapping"):
        compiled(doubled()).bind("main", [])


# --- states -------------------------------------------------------------------------


def state_function(*body: tuple[str, str], name: str = "main", total: str = "total") -> Function:
    """`read` gives a state under a name, `write` puts a value into it."""
    state, x = Value(total, StateType(ROW)), Value("x", ROW)
    ops = []
    for verb, other in body:
        value = Value(other, ROW)
        if verb == "read":
            ops.append(Op("read_state", {"input": state}, (value,)))
        else:
            ops.append(Op("write_state", {"input": state, "data": value}, ()))
    results = tuple(op.outputs[0] for op in ops if op.outputs)
    return Function(name, "ios18", (state, x), tuple(ops), results)


@pytest.mark.parametrize("numerics", ["fp16", "fp32"])
def test_reads_give_what_was_written_before_them(numerics):
    exe = compiled(state_function(("read", "a"), ("write", "x"), ("read", "b")), numerics=numerics)
    (port,) = exe.inputs("main")  # a state is no port
    state = exe.new_state("main")
    for value, before in ((5, 0), (6, 5)):
        got = exe.call("main", {"x": np.full(ROW.dims, value, port.dtype)}, state)
        assert (got["a"] == before).all()
        assert (got["b"] == value).all()


def test_a_state_does_not_alias_what_was_written_to_it():
    exe = compiled(state_function(("write", "x"), ("read", "a")))
    state = exe.new_state("main")
    surfaces = {p.name: exe.allocate(p) for p in (*exe.inputs("main"), *exe.outputs("main"))}
    surfaces["x"].array[...] = 4
    exe.bind("main", surfaces, state).run()
    surfaces["x"].array[...] = 9
    assert (state.read("total") == 4).all()
    x = np.full(ROW.dims, 6, np.float16)
    exe.call("main", {"x": x}, state)
    x[...] = 9
    assert (state.read("total") == 6).all()


def test_a_state_serves_every_function_that_has_it_and_no_other():
    first = state_function(("write", "x"), ("read", "a"))
    second = state_function(("read", "a"), name="second")
    other = state_function(("read", "a"), name="other", total="sum")
    exe = compiled(first, second, other)
    state, x = exe.new_state("main"), np.full(ROW.dims, 3, np.float16)
    exe.call("main", {"x": x}, state)
    assert (exe.call("second", {"x": x}, state)["a"] == 3).all()
    with pytest.raises(EvaluateError, match="the state given has no 'sum'"):
        exe.call("other", {"x": x}, state)
    with pytest.raises(EvaluateError, match=r"states are total; none was given \(new_state makes one\)"):
        exe.call("main", {"x": x})


def test_states_of_repeated_blocks():
    """Eight layers that each add their weight to one state: outlined, and still in order."""
    b = Builder("main")
    total = b.input_of("total", StateType(ROW))
    x = b.input_of("x", ROW)
    for i in range(8):
        held = b.op("read_state", input=total)
        for kind in ("abs", "sqrt", "square", "relu", "abs"):
            held = b.op(kind, x=held)
        held = b.op("add", x=held, y=np.full(ROW.dims, i, np.float16))
        b.ops("write_state", outputs=0, input=total, data=held)
    exe = compiled(b.finish({"y": b.op("add", x=held, y=x)}))
    state = exe.new_state("main")
    got = [exe.call("main", {"x": np.zeros(ROW.dims, np.float16)}, state)["y"] for _ in range(2)]
    # sqrt and square round; every total here has an error far below a half
    assert [float(np.rint(g).max()) for g in got] == [28.0, 56.0]


# --- weight files -------------------------------------------------------------------


def two_files(folder: Path) -> tuple[Program, dict[str, Path]]:
    """`y = x · a + b` with both weights at the same offset of two files, one of them in the op's place."""
    paths = {}
    for name, value in (("a", 3), ("b", 5)):
        paths[f"@model_path/{name}.bin"] = folder / f"{name}.bin"
        with BlobWriter(folder / f"{name}.bin") as writer:
            writer.add(np.full(ROW.dims, value, np.float16), F16)
    text = """program(1.3) { func main<ios18>(tensor<fp16, [1, 1, 1, 32]> x) {
        tensor<fp16, [1, 1, 1, 32]> a = const()[name = string("a"), val = tensor<fp16, [1, 1, 1, 32]>(
            BLOBFILE(path = string("@model_path/a.bin"), offset = uint64(64)))];
        tensor<fp16, [1, 1, 1, 32]> u = mul(x = x, y = a);
        tensor<fp16, [1, 1, 1, 32]> y = add(x = u, y = tensor<fp16, [1, 1, 1, 32]>(
            BLOBFILE(path = string("@model_path/b.bin"), offset = uint64(64))));
    } -> (y); }"""
    return parse(text), paths


def test_weights_of_several_files(tmp_path: Path):
    program, paths = two_files(tmp_path)
    files = {name: BlobFile(path) for name, path in paths.items()}
    with engine("emulator").compile(program, files) as exe:
        assert (exe.call("main", {"x": np.full(ROW.dims, 2, np.float16)})["y"] == 11).all()
    assert [file.nbytes for file in files.values()] == [0, 0]  # closed with the executable


def test_a_missing_weight_file_is_refused_when_compiling(tmp_path: Path):
    program, paths = two_files(tmp_path)
    one = BlobFile(paths["@model_path/a.bin"])
    for given in (None, {}, one, {"@model_path/a.bin": one}):
        with pytest.raises(InputError, match=r"weight file '@model_path/[ab]\.bin', but it was not given"):
            engine("emulator").compile(program, given)
    assert one.nbytes  # after an error it is still the caller's


# --- what cannot fit ----------------------------------------------------------------


def huge() -> dict[str, Function]:
    """Programs that are sound and small as text."""
    found = {}
    n = 2**20
    for name in ("port", "result", "op", "state"):
        b = Builder(name)
        x = b.input("x", F16, (1, n) if name != "port" else (n, n))
        if name == "state":
            b.input_of("s", StateType(TensorType(F16, (n, n))))
        wide = b.op("tile", x=x, reps=[n, 1]) if name in ("result", "op") else b.op("relu", x=x)
        y = wide if name == "result" else b.op("reduce_max", x=wide, axes=[0, 1], keep_dims=True)
        found[name] = b.finish({"y": y})
    return found


@pytest.mark.parametrize("name", huge())
def test_what_cannot_fit_is_refused_when_compiling(name):
    with pytest.raises(ResourceError, match=r"GiB, \d+\.\d GiB of memory are free"):
        compiled(huge()[name])
    exe = compiled(doubled())
    with pytest.raises(ResourceError, match=f"function '{name}'"):
        exe.extend(Program({name: huge()[name]}))


def test_a_tensor_of_2_to_the_124_bytes_is_refused():
    sizes = "[2000000000, 2000000000, 2000000000, 2000000000]"
    text = (
        f"program(1.3) {{ func main<ios18>(tensor<fp16, [1, 1, 1, 1]> x) {{ tensor<fp16, {sizes}> y = "
        f"tile(x = x, reps = tensor<int32, [4]>({sizes})); }} -> (y); }}"
    )
    with pytest.raises(InputError, match=r"more than 2\*\*40 elements"):
        engine("emulator").compile(parse(text), None)


def test_memory_that_an_op_needs_in_between_is_refused_by_xla():
    """Scores of 2^40 numbers that no value of the program holds."""
    b = Builder("main")
    q = b.input("q", F16, (1, 1, 2**20, 1))
    exe = compiled(b.finish({"y": b.op("scaled_dot_product_attention", query=q, key=q, value=q)}))
    with pytest.raises(AnexError, match="memory"):
        exe.call("main", {"q": np.zeros((1, 1, 2**20, 1), np.float16)})


# --- what it says of itself -----------------------------------------------------------


def test_describe_lists_the_blocks_of_each_function():
    b = Builder("main")
    y = b.input_of("x", ROW)
    for i in range(6):
        for kind in ("abs", "sqrt", "square", "tanh", "sigmoid", "relu", "abs"):
            y = b.op(kind, x=y)
        y = b.op("add", x=y, y=np.full(ROW.dims, i, np.float16))
    exe = compiled(b.finish({"y": y}), doubled_as("other"))
    assert exe.describe()["blocks"] == {}
    exe.warm("main")
    (found,) = exe.describe()["blocks"].values()
    assert sum(ops * instances for ops, instances in found) == 48
    assert len(found) == 1 or max(instances for _, instances in found) >= 5


def doubled_as(name: str) -> Function:
    function = doubled()
    return Function(name, function.opset, function.inputs, function.ops, function.outputs)


def test_the_registry_says_whether_the_native_matmul_is_there():
    entry = engines()["emulator"]
    assert entry.missing() == ""
    native = compiled(doubled()).describe()["native_matmul"]
    assert entry.note().startswith("native matmul" if native else "no native matmul")
