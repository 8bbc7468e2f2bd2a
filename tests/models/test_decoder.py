"""The decoder program against llama.cpp's stored logits and against the papers in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_llama
from interpreter import Session
from reference import Reference, nmse
from tiny_llama import TINY, Tiny

from anex.errors import InputError
from anex.mil.blob import BlobFile
from anex.mil.verify import problems
from anex.models import (
    BLOB_FILE,
    ModelFile,
    Prepared,
    Role,
    Rungs,
    build_program,
    layout,
    load_gguf,
    prepare,
)
from anex.models.config import Multipliers
from anex.models.layout import LANE
from anex.models.program import build_function

GOLDENS = Path(__file__).parents[1] / "data" / "llama"
BY_NAME = {model.name: model for model in TINY}
every_model = pytest.mark.parametrize("model", TINY, ids=[model.name for model in TINY])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


def opened(folder: Path, model: Tiny) -> Prepared:
    path = folder / f"{model.name}.gguf"
    return prepare(path if path.exists() else tiny_llama.make(folder, model), folder / "cache")


def whole_run(session: Session, ids: Any, prompt: int) -> Any:
    """Logits of every token: a prompt by prefill, the others by decode."""
    return np.concatenate([session.feed(ids[:prompt]), *(session.step(int(i))[None] for i in ids[prompt:])])


def reference(model: Tiny, *, window: int | None = None, rope_dims: int | None = None) -> Reference:
    dims = rope_dims or model.head_dim
    frequencies = model.keys.get("rope.freq_base", 10000.0) ** (-np.arange(0, dims, 2) / dims)
    return Reference(
        tiny_llama.tensors(model),
        n_layers=model.n_layers,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        norm_eps=model.norm_eps,
        frequencies=frequencies,
        window=window,
    )


# --- llama.cpp ----------------------------------------------------------------

PEAKED = {"head_80": 1e-9, "head_128": 1e-8}
"""Scores of ±50 enlarge float32's error: so far are llama.cpp's logits themselves from float64."""


@every_model
def test_program_equals_llama_cpp(folder: Path, model: Tiny) -> None:
    expected = np.load(GOLDENS / f"{model.name}.npz")["logits"]
    found = whole_run(Session(opened(folder, model), exact=True), model.ids, tiny_llama.PROMPT)
    assert nmse(found[list(tiny_llama.POSITIONS)], expected) < PEAKED.get(model.name, 1e-10)


@pytest.mark.parametrize("name", ["gqa_tied", "biases", "llama3"])
def test_program_survives_fp16(folder: Path, name: str) -> None:
    """Every result rounded to fp16: errors stay those of rounding (2**-11 squared is 2e-7)."""
    model = BY_NAME[name]
    expected = np.load(GOLDENS / f"{name}.npz")["logits"]
    session = Session(opened(folder, model), half=True)
    found = whole_run(session, model.ids, tiny_llama.PROMPT)
    assert nmse(found[list(tiny_llama.POSITIONS)], expected) < 1e-4
    assert session.engine.largest < 11000  # the mask, nothing near the engine's cliff at 2**15


CONSTANTS = 1e-14
"""What the epsilon of the norms, a constant in fp16, may cost beside float64."""

PEAKED_CONSTANTS = 1e-12
"""The same where sharp attention enlarges it."""

# --- float64 ------------------------------------------------------------------


def converted(file: ModelFile, folder: Path) -> Prepared:
    """A model with another config than its file says."""
    (folder / "weights").mkdir(parents=True)
    return Prepared(file, folder, file.write(folder / BLOB_FILE))


def test_sliding_window_is_the_mistral_paper(folder: Path) -> None:
    model = replace(BY_NAME["dense"], name="window", keys={"attention.sliding_window": 24})
    ids = model.ids[:90]
    found = whole_run(Session(opened(folder, model), exact=True), ids, 70)
    assert nmse(found, reference(model, window=24).logits(ids)) < CONSTANTS
    assert nmse(found, reference(model).logits(ids)) > 1e-2


def test_partial_rotary_turns_the_leading_channels(folder: Path) -> None:
    model = replace(BY_NAME["dense"], name="partial", n_kv_heads=2)
    with load_gguf(tiny_llama.make(folder, model)) as file:
        file.config = replace(file.config, rope=replace(file.config.rope, dims=8))
        ready = converted(file, folder / "partial")
        ids = model.ids[:40]
        found = whole_run(Session(ready, exact=True), ids, 33)
    assert nmse(found, reference(model, rope_dims=8).logits(ids)) < CONSTANTS


def test_multipliers(folder: Path) -> None:
    """Granite's: rows of the embedding, what blocks add, and logits times a constant (powers of 2: exact)."""
    model = replace(BY_NAME["dense"], name="multipliers")
    with load_gguf(tiny_llama.make(folder, model)) as file:
        file.config = replace(file.config, multipliers=Multipliers(4.0, 0.5, 0.25))
        ready = converted(file, folder / "multipliers")
        ids = model.ids[:40]
        batch = ready.feed("prefill_t32_c0")(ids[:3], [0, 1, 2], [])
        assert np.array_equal(batch["i00_x"][0, :, 0, :3].T, 4.0 * ready.embedding(ids[:3]))
        outputs = {"o00_logits0": np.arange(128.0).reshape(1, 4, 1, 32)}
        assert np.array_equal(ready.logits(outputs, 1), [0.25 * np.arange(97)])
    expected = reference(model)
    factors = {"token_embd": 4.0, "attn_output": 0.5, "ffn_down": 0.5, "output.": 0.25}
    for name, array in expected.arrays.items():
        array *= next((factor for part, factor in factors.items() if part in name), 1.0)
    assert nmse(whole_run(Session(ready, exact=True), ids, 33), expected.logits(ids)) < CONSTANTS


@pytest.mark.parametrize("name", ["gqa_tied", "wide_heads", "head_80", "head_128"])
def test_the_program_has_no_error_of_its_own(folder: Path, name: str) -> None:
    """1/96, 1/sqrt(24), 1/sqrt(80) … are no fp16 numbers; as constants of a program they would cost 1e-7."""
    model = BY_NAME[name]
    found = whole_run(Session(opened(folder, model), exact=True), model.ids, tiny_llama.PROMPT)
    assert nmse(found, reference(model).logits(model.ids)) < PEAKED_CONSTANTS


def test_weights_are_rounded_once(folder: Path) -> None:
    """Weights that are no fp16 numbers count as what `fp16(w · constant) / constant` is."""
    model = replace(BY_NAME["head_80"], name="rounded", exact=False, peak=2.0)
    ids = model.ids[:60]
    found = whole_run(Session(opened(folder, model), exact=True), ids, 50)
    expected = reference(model)
    for name, array in expected.arrays.items():
        scale = 80**-0.5 if "attn_q" in name else 160**0.5 if "norm" in name else 1.0
        array[...] = (array * scale).astype(np.float16) / np.float64(scale)
    assert nmse(found, expected.logits(ids)) < PEAKED_CONSTANTS
    assert nmse(found, reference(model).logits(ids)) > 1e-9


def test_decode_from_an_empty_cache(folder: Path) -> None:
    model = BY_NAME["dense"]
    found = whole_run(Session(opened(folder, model), exact=True), model.ids[:3], 1)
    alone = Session(opened(folder, model), exact=True).step(int(model.ids[0]))
    assert nmse(found, reference(model).logits(model.ids[:3])) < CONSTANTS
    assert nmse(alone, found[0]) < CONSTANTS


def test_large_activations_do_not_overflow(folder: Path) -> None:
    """A residual stream as SmolLM2 has it: one channel at 2·10⁴, whose square is far beyond fp16."""
    model = replace(BY_NAME["dense"], name="outlier")
    arrays = tiny_llama.tensors(model)
    arrays["token_embd.weight"][:, 5] = 20000.0
    # The outlier's own direction must not swamp the logits that are compared.
    for name, array in arrays.items():
        if array.ndim == 2 and array.shape[1] == model.dim and name != "token_embd.weight":
            array[:, 5] /= 4096.0
    path = tiny_llama.write_gguf(folder / "outlier.gguf", tiny_llama.metadata(model), arrays)
    ids = model.ids[:40]
    expected = whole_run(Session(prepare(path, folder / "cache"), exact=True), ids, 33)
    session = Session(prepare(path, folder / "cache"), half=True)
    found = whole_run(session, ids, 33)
    assert np.isfinite(found).all()
    assert session.engine.largest >= 20000.0
    assert nmse(found, expected) < 1e-2


# --- shapes and structure -----------------------------------------------------


@pytest.fixture
def gqa(folder: Path) -> Iterator[Prepared]:
    with opened(folder, BY_NAME["gqa_tied"]) as model:
        yield model


FUNCTIONS = ("prefill_t32_c0", "prefill_t128_c256", "decode_c0", "decode_c512", "head_t32")


def test_programs_are_sound_for_an_engine(gqa: Prepared) -> None:
    with BlobFile(gqa.blob_path) as blob:
        assert problems(gqa.program(FUNCTIONS), blob, engine=True) == []


def test_ports_are_what_the_contract_says(gqa: Prepared) -> None:
    functions = gqa.program(FUNCTIONS).functions
    config = gqa.config
    channels = 2 * config.n_layers * config.attention.kv_dim

    def ports(name: str) -> dict[str, tuple[int, ...]]:
        return {v.name: v.tensor.dims for v in (*functions[name].inputs, *functions[name].outputs)}

    half = config.attention.head_dim // 2
    assert ports("prefill_t128_c256") == {
        "i00_x": (1, 96, 1, 128),
        "i01_cos": (1, 1, half, 128),
        "i02_sin": (1, 1, half, 128),
        "i03_mask": (1, 1, 128, 384),
        "i04_cache": (1, channels, 1, 256),
        "o00_hidden": (1, 96, 1, 128),
        "o01_kv": (1, channels, 1, 128),
    }
    assert "i04_cache" not in ports("prefill_t32_c0")
    assert ports("decode_c512") == {
        "i00_x": (1, 96, 1, 32),
        "i01_cos": (1, 1, half, 32),
        "i02_sin": (1, 1, half, 32),
        "i03_mask": (1, 1, 1, 544),
        "i04_cache": (1, channels, 1, 512),
        "o00_logits0": (1, 3, 1, 32),
        "o01_kv": (1, channels // 32, 1, 32),
    }
    assert ports("head_t32") == {"i00_hidden": (1, 96, 1, 32), "o00_logits0": (1, 96, 1, 32)}
    for name, function in functions.items():
        assert all(dims[-1] % LANE == 0 for dims in ports(name).values())
        signature = gqa.signature(name)
        assert [(p.name, p.shape) for p in signature.inputs] == [
            (v.name, v.tensor.dims) for v in function.inputs
        ]
        assert [(p.name, p.shape) for p in signature.outputs] == [
            (v.name, v.tensor.dims) for v in function.outputs
        ]


@pytest.mark.parametrize("name", ["prefill_t32_c256", "decode_c256"])
def test_layers_are_the_same_ops(gqa: Prepared, name: str) -> None:
    ops = [op for op in gqa.program([name]).functions[name].ops if op.kind != "const"]

    def layer(i: int) -> list[Any]:
        own = [op for op in ops if op.name.startswith(f"l{i}_")]
        return [(op.kind, op.name.partition("_")[2], op.output.type) for op in own]

    assert len(layer(0)) > 40
    assert layer(0) == layer(1) == layer(2)


def test_functions_share_their_constants(gqa: Prepared) -> None:
    functions = gqa.program(["prefill_t32_c0", "decode_c256", "head_t32"]).functions

    def blobs(name: str) -> dict[str, Any]:
        return {k: v for k, v in functions[name].constants.items() if v.is_blob}

    assert blobs("decode_c256") == blobs("prefill_t32_c0") | blobs("head_t32")


def test_a_cache_beyond_one_surface_is_split(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = BY_NAME["gqa_tied"]
    ids = model.ids[:40]
    expected = whole_run(Session(opened(folder, model), exact=True), ids, 33)
    monkeypatch.setattr(layout, "MAX_CHANNELS", 2 * 2 * model.kv_dim)
    ready = opened(folder, model)
    assert [(s.first, s.layers, s.input, s.output) for s in ready.caches] == [
        (0, 2, "i04_cache", "o01_kv"),
        (2, 1, "i05_cache", "o02_kv"),
    ]
    assert np.array_equal(whole_run(Session(ready, exact=True), ids, 33), expected)


def test_the_vocabulary_is_cut_into_tiles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of the table is stored once, and the logits are those of one tile."""
    for name in ("mqa_tied_odd", "dense"):
        model = BY_NAME[name]
        ids = model.ids[:40]
        with opened(folder, model) as whole:
            expected = whole_run(Session(whole, exact=True), ids, 33)
            size = whole.blob_path.stat().st_size
        with monkeypatch.context() as patch:
            patch.setattr(layout, "MAX_TILE", 32)
            with opened(folder, model) as ready:
                shapes = [(p.name, p.shape) for p in ready.signature("decode_c256").outputs[:4]]
                assert shapes == [(f"o00_logits{i}", (1, 1, 1, 32)) for i in range(4)]
                assert [p.shape for p in ready.signature("head_t64").outputs] == [(1, 32, 1, 64)] * 4
                assert np.array_equal(whole_run(Session(ready, exact=True), ids, 33), expected)
                # Only the descriptions of the records are more: 64 bytes, and up to 64 to the next multiple.
                assert ready.blob_path.stat().st_size < size + 3 * 2 * 128


def test_ports_sort_in_the_order_of_the_vocabulary(gqa: Prepared) -> None:
    """Eleven tiles and more are numbered with two digits: engines bind ports by the order of their names."""
    wide = replace(gqa.config, vocab_size=11 * layout.MAX_TILE + 1)
    tiles = layout.vocab_tiles(wide)
    assert [tile.port for tile in tiles] == sorted(tile.port for tile in tiles)
    assert (tiles[0].port, tiles[-1].port, tiles[-1].rows) == ("o00_logits00", "o00_logits11", 32)
    assert sum(tile.count for tile in tiles) == wide.vocab_size


def test_roles(gqa: Prepared) -> None:
    roles = {
        p.name: p.role for p in (*gqa.signature("decode_c256").inputs, *gqa.signature("head_t32").outputs)
    }
    assert roles == {
        **dict.fromkeys(("i00_x", "i01_cos", "i02_sin", "i03_mask"), Role.HOST),
        "i04_cache": Role.CACHE,
        "o00_logits0": Role.LOGITS,
    }
    assert gqa.signature("prefill_t32_c0").port(Role.HIDDEN).name == "o00_hidden"


def test_what_does_not_fit_a_function_is_not_fed(gqa: Prepared) -> None:
    feed = gqa.feed("prefill_t32_c256")
    held = np.full(256, -1)
    assert set(feed([1], [0], held)) == {"i00_x", "i01_cos", "i02_sin", "i03_mask"}
    for ids, positions, cached in (([1] * 33, range(33), held), ([1], [0, 1], held), ([1], [0], held[1:])):
        with pytest.raises(InputError, match="up to 32 after 256"):
            feed(ids, list(positions), cached)
    with pytest.raises(InputError, match="0 … 95"):
        feed([96], [0], held)


@pytest.mark.parametrize("name", ["", "decode", "decode_c20", "prefill_t0_c0", "prefill_t32", "head_t0", "x"])
def test_other_functions_are_refused(gqa: Prepared, name: str) -> None:
    with pytest.raises(InputError, match="function"):
        build_function(gqa.config, gqa.weights, name)


def test_a_program_holds_what_was_asked_for(gqa: Prepared) -> None:
    program = build_program(gqa.config, gqa.weights, reversed(FUNCTIONS))
    assert list(program.functions) == list(reversed(FUNCTIONS))


def test_rungs() -> None:
    assert Rungs(2048).sizes == (0, 256, 512, 1024, 2048)
    assert Rungs(300).sizes == (0, 256, 320)
    assert [Rungs(2048).holding(n) for n in (0, 1, 256, 257, 2048)] == [0, 256, 256, 512, 2048]
    with pytest.raises(InputError, match="2049"):
        Rungs(2048).holding(2049)
