"""Weights on their way from the file to the blob, and the cache of finished blobs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_llama
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import TINY, Tiny

from anex.errors import EvaluateError, InputError, ResourceError, UnsupportedError
from anex.mil import BlobFile, BlobRef, BlobWriter
from anex.models import Ledger, Prepared, families, load_gguf, plan, prepare, weights
from anex.models.roles import SHAPES

BY_NAME = {model.name: model for model in TINY}


def arrays_of(model: Prepared) -> dict[str, Any]:
    with BlobFile(model.blob_path) as blob:
        return {role: np.array(blob.array(literal)) for role, literal in model.weights.items()}


def opened(folder: Path, model: Tiny) -> Prepared:
    return prepare(tiny_llama.make(folder, model), folder / "cache")


def half_split(rows: Any, head_dim: int) -> Any:
    """Even channels of each head, then odd ones."""
    heads = [np.concatenate([h[0::2], h[1::2]]) for h in np.split(rows, len(rows) // head_dim)]
    return np.concatenate(heads)


def test_every_weight_is_the_tensor_of_the_file(tmp_path: Path) -> None:
    model = BY_NAME["biases"]
    tensors, found = tiny_llama.tensors(model), arrays_of(opened(tmp_path, model))
    layer = {
        # 1/sqrt(16) of the scores is in wq and bq, sqrt(64) of the mean in the norms.
        "wq": half_split(tensors["blk.1.attn_q.weight"], 16)[:, :, None, None] / 4,
        "wk": half_split(tensors["blk.1.attn_k.weight"], 16)[:, :, None, None],
        "wv": tensors["blk.1.attn_v.weight"][:, :, None, None],
        "wo": tensors["blk.1.attn_output.weight"][:, :, None, None],
        "w_gate": tensors["blk.1.ffn_gate.weight"][:, :, None, None],
        "w_up": tensors["blk.1.ffn_up.weight"][:, :, None, None],
        "w_down": tensors["blk.1.ffn_down.weight"][:, :, None, None],
        "attn_norm": tensors["blk.1.attn_norm.weight"][None, :, None, None] * 8,
        "ffn_norm": tensors["blk.1.ffn_norm.weight"][None, :, None, None] * 8,
        "bq": half_split(tensors["blk.1.attn_q.bias"], 16)[None, :, None, None] / 4,
        "bk": half_split(tensors["blk.1.attn_k.bias"], 16)[None, :, None, None],
        "bv": tensors["blk.1.attn_v.bias"][None, :, None, None],
        "bo": tensors["blk.1.attn_output.bias"][None, :, None, None],
        "b_gate": tensors["blk.1.ffn_gate.bias"][None, :, None, None],
        "b_up": tensors["blk.1.ffn_up.bias"][None, :, None, None],
        "b_down": tensors["blk.1.ffn_down.bias"][None, :, None, None],
    }
    for role, expected in layer.items():
        assert np.array_equal(found[f"l1_{role}"], expected), role
    assert np.array_equal(found["norm"], tensors["output_norm.weight"][None, :, None, None] * 8)
    assert np.array_equal(found["head0"], tensors["output.weight"][:, :, None, None])
    assert set(found) == {"embed0", "head0", "norm"} | {f"l{i}_{role}" for i in range(2) for role in layer}


def test_fused_rows_are_taken_apart(tmp_path: Path) -> None:
    model = BY_NAME["fused_qkv"]
    tensors, found = tiny_llama.tensors(model), arrays_of(opened(tmp_path, model))
    for suffix, roles in (("weight", ("wq", "wk", "wv")), ("bias", ("bq", "bk", "bv"))):
        q, k, v = np.split(tensors[f"blk.0.attn_qkv.{suffix}"], [64, 96])
        for role, expected in zip(roles, (half_split(q, 16) / 4, half_split(k, 16), v), strict=True):
            assert np.array_equal(found[f"l0_{role}"].reshape(expected.shape), expected), role


def test_a_tied_head_is_the_embedding_table_itself(tmp_path: Path) -> None:
    model = BY_NAME["mqa_tied_odd"]
    ready = opened(tmp_path, model)
    embed, head = ready.weights["embed0"], ready.weights["head0"]
    assert isinstance(embed.data, BlobRef)
    assert embed.data == head.data
    found = arrays_of(ready)["head0"]
    assert found.shape == (128, 64, 1, 1)
    assert np.array_equal(found[:101, :, 0, 0], tiny_llama.tensors(model)["token_embd.weight"])
    assert not found[101:].any()


class Arrays:
    """Tensors that lie in memory: what any file format has to offer."""

    files: tuple[Path, ...] = ()
    nbytes = 0

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays

    @property
    def tensors(self) -> Any:
        return {name: SimpleNamespace(shape=a.shape, storage="F32") for name, a in self.arrays.items()}

    def rows(self, tensor: str, start: int, stop: int, dtype: Any = np.float32) -> Any:
        return self.arrays[tensor][start:stop].astype(dtype)

    def array(self, tensor: str, dtype: Any = np.float32) -> Any:
        return self.arrays[tensor].astype(dtype)

    def fingerprint(self) -> bytes:
        return b""

    def close(self) -> None:
        pass


def test_a_recipe_says_where_weights_are_and_what_becomes_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other names, matrices as [in, out], q and k in one tensor, norms as their distance from 1."""
    model = BY_NAME["wide_heads"]
    tensors = tiny_llama.tensors(model)
    moved: dict[str, Any] = {}
    for name, array in tensors.items():
        if "norm" in name:
            moved["my." + name] = array - 1.0
        elif ".ffn_" in name:
            moved["my." + name] = np.ascontiguousarray(array.T)
        elif ".attn_q." not in name and ".attn_k." not in name:
            moved["my." + name] = array
    for i in range(model.n_layers):
        moved[f"qk.{i}"] = np.concatenate([tensors[f"blk.{i}.attn_{x}.weight"] for x in "qk"])
    plain = families.recipe("llama")
    plan = replace(
        plain,
        names={role: "my." + name for role, name in plain.names.items()},
        fused={"qk.{layer}": ("wq", "wk")},
        transforms={
            **plain.transforms,
            **dict.fromkeys(("w_gate", "w_up", "w_down"), ("transpose",)),
            **dict.fromkeys(("norm", "attn_norm", "ffn_norm"), ("plus_one",)),
        },
    )
    monkeypatch.setattr(weights, "CHUNK_BYTES", 8192)
    with opened(tmp_path, model) as ready:
        expected = arrays_of(ready)
        config = ready.config
    file, ledger = Arrays(moved), Ledger("memory")
    found, sources = weights.resolve(config, file.tensors, ledger, plan)
    assert found == config
    with BlobWriter(tmp_path / "other.bin") as writer:
        literals = weights.write_blob(file, config, sources, writer)
    with BlobFile(tmp_path / "other.bin") as blob:
        for name, literal in literals.items():
            # 1 + (gamma - 1) is rounded in float32, which may cost the last bit of fp16.
            np.testing.assert_allclose(
                blob.array(literal), expected[name], rtol=1e-3 if "norm" in name else 0
            )
    assert literals.keys() == expected.keys()


def test_every_role_of_a_family_has_a_name_and_a_shape() -> None:
    for family in families.families():
        plan = families.recipe(family)
        roles = plan.required | plan.optional
        assert roles <= plan.names.keys() & SHAPES.keys()
        assert not plan.required & plan.optional
        steps = {step for names in plan.transforms.values() for step in names}
        assert steps <= {*weights.TRANSFORMS, weights.TRANSPOSE}


def test_a_role_that_a_family_does_not_have_is_refused(tmp_path: Path) -> None:
    """A bias in the file must not switch one on where the family has none."""
    plain = families.recipe("llama")
    plan = replace(plain, optional=plain.optional - {"bq", "bk", "bv"})
    with load_gguf(tiny_llama.make(tmp_path, BY_NAME["biases"])) as file:
        tensors, config = file.file.tensors, file.config
        with pytest.raises(UnsupportedError, match=r"'blk\.0\.attn_\w+\.bias'"):
            weights.resolve(config, tensors, Ledger("file"), plan)
        head = replace(plain, required=plain.required | {"head"}, optional=plain.optional - {"head"})
        untied = {name: info for name, info in tensors.items() if name != "output.weight"}
        with pytest.raises(InputError, match=r"'output\.weight'"):
            weights.resolve(config, untied, Ledger("file"), head)


def test_a_constant_that_leaves_fp16_is_refused(tmp_path: Path) -> None:
    """A gamma of 9,000 is fp16; times sqrt(64) it is not."""
    arrays = tiny_llama.tensors(BY_NAME["dense"])
    arrays["blk.1.ffn_norm.weight"][3] = 9000.0
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.metadata(BY_NAME["dense"]), arrays)
    with pytest.raises(InputError, match=r"blk\.1\.ffn_norm\.weight.*constants"):
        prepare(path, tmp_path / "cache")


def test_embedding_rows(tmp_path: Path) -> None:
    ready = opened(tmp_path, BY_NAME["dense"])
    table = tiny_llama.tensors(BY_NAME["dense"])["token_embd.weight"]
    assert np.array_equal(ready.embedding([96, 0, 3, 3]), table[[96, 0, 3, 3]])
    assert ready.embedding([]).shape == (0, 64)
    for ids in ([97], [-1]):
        with pytest.raises(InputError, match="0 … 96"):
            ready.embedding(ids)


def test_chunks_do_not_change_the_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = BY_NAME["fused_qkv"]
    with load_gguf(tiny_llama.make(tmp_path, model)) as file:
        whole = file.write(tmp_path / "whole")
        monkeypatch.setattr(weights, "CHUNK_BYTES", 4096)
        steps: list[tuple[int, int]] = []
        assert file.write(tmp_path / "pieces", lambda _, done, total: steps.append((done, total))) == whole
    blobs = [(tmp_path / name).read_bytes() for name in ("whole", "pieces")]
    assert blobs[0] == blobs[1]
    assert steps[-1][0] == steps[-1][1]
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})


def test_a_number_beyond_fp16_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    arrays = tiny_llama.tensors(BY_NAME["dense"])
    arrays["blk.1.ffn_up.weight"][3, 4] = 1e5
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.metadata(BY_NAME["dense"]), arrays)
    with pytest.raises(InputError, match=r"blk\.1\.ffn_up\.weight"):
        prepare(path, tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


@pytest.mark.parametrize("tensor", ["blk.0.attn_q.weight", "blk.1.ffn_norm.weight", "token_embd.weight"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_is_refused(tmp_path: Path, tensor: str, bad: float) -> None:
    for dtype in (np.float32, np.float16):
        arrays = tiny_llama.tensors(BY_NAME["dense"])
        arrays[tensor] = arrays[tensor].astype(dtype)
        arrays[tensor].flat[-3] = bad
        path = tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.metadata(BY_NAME["dense"]), arrays)
        with pytest.raises(InputError, match=rf"{re.escape(tensor)}.*not finite"):
            prepare(path, tmp_path / "cache")


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integers_are_no_weight(tmp_path: Path, dtype: Any) -> None:
    arrays = tiny_llama.tensors(BY_NAME["dense"])
    arrays["blk.1.ffn_up.weight"] = np.ones(arrays["blk.1.ffn_up.weight"].shape, dtype)
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.metadata(BY_NAME["dense"]), arrays)
    with pytest.raises(InputError, match=r"blk\.1\.ffn_up\.weight.*integers \(I\d+\)"):
        load_gguf(path)


def test_frequency_factors(tmp_path: Path) -> None:
    with load_gguf(tiny_llama.make(tmp_path, BY_NAME["llama3"])) as file:
        assert file.config.rope.freq_factors == tiny_llama.LLAMA3
    for bad in (0.0, np.nan, np.inf):
        arrays = tiny_llama.tensors(BY_NAME["llama3"])
        arrays["rope_freqs.weight"][2] = bad
        path = tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.metadata(BY_NAME["llama3"]), arrays)
        with pytest.raises(InputError, match=r"rope_freqs\.weight"):
            load_gguf(path)


# --- cache --------------------------------------------------------------------


def test_a_second_start_converts_nothing(tmp_path: Path) -> None:
    path = tiny_llama.make(tmp_path, BY_NAME["gqa_tied"])
    first = prepare(path, tmp_path / "cache")
    calls: list[int] = []
    second = prepare(path, tmp_path / "cache", lambda stage, done, total: calls.append(done))
    assert not calls
    assert second.blob_path == first.blob_path
    assert dict(second.weights) == dict(first.weights)


def test_another_file_of_the_same_name_has_its_own_entry(tmp_path: Path) -> None:
    path = tiny_llama.make(tmp_path, BY_NAME["dense"])
    first = prepare(path, tmp_path / "cache").blob_path
    tiny_llama.write_gguf(path, tiny_llama.metadata(BY_NAME["biases"]), tiny_llama.tensors(BY_NAME["biases"]))
    assert prepare(path, tmp_path / "cache").blob_path != first


@pytest.mark.parametrize("what", ["a key", "a number"])
def test_the_same_name_size_and_time_is_not_the_same_model(tmp_path: Path, what: str) -> None:
    path = tiny_llama.make(tmp_path, BY_NAME["dense"])
    first, status = prepare(path, tmp_path / "cache").blob_path, path.stat()
    data = bytearray(path.read_bytes())
    key = b"llama.attention.layer_norm_rms_epsilon"
    data[data.index(key) + len(key) + 4 if what == "a key" else len(data) - 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert prepare(path, tmp_path / "cache").blob_path != first


@pytest.mark.parametrize(
    "damage", ["index gone", "index cut", "index lies", "index lacks a weight", "blob gone", "blob cut"]
)
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: str) -> None:
    path = tiny_llama.make(tmp_path, BY_NAME["dense"])
    before = prepare(path, tmp_path / "cache")
    expected = arrays_of(before)
    index = before.blob_path.parents[1] / "weights.json"
    blob = before.blob_path
    before.close()
    if damage == "index gone":
        index.unlink()
    elif damage == "index cut":
        index.write_bytes(index.read_bytes()[:50])
    elif damage == "index lies":
        index.write_text(index.read_text().replace('"embed0": 64', '"embed0": 128'))
    elif damage == "index lacks a weight":
        index.write_text('{"embed0": 64}')
    elif damage == "blob gone":
        blob.unlink()
    else:
        blob.write_bytes(blob.read_bytes()[:5000])
    after = arrays_of(prepare(path, tmp_path / "cache"))
    assert after.keys() == expected.keys()
    assert all(np.array_equal(after[role], expected[role]) for role in expected)


def _swapped(index: Path) -> None:
    """Two weights of one type, each where the other lies."""
    said = json.loads(index.read_text())
    at = said["offsets"]
    at["l0_wk"], at["l0_wv"] = at["l0_wv"], at["l0_wk"]
    index.write_text(json.dumps(said))


def _instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


HARM: dict[str, Callable[[Path, Path], object]] = {
    "weights exchanged": lambda index, blob: _swapped(index),
    "index nested": lambda index, blob: index.write_text("[" * 200_000),
    "index a list": lambda index, blob: index.write_text("[]"),
    "index no text": lambda index, blob: index.write_bytes(b"\xff\xfe\x00"),
    "index a pipe": lambda index, blob: _instead(index, os.mkfifo),
    "index a folder": lambda index, blob: _instead(index, Path.mkdir),
    "blob a pipe": lambda index, blob: _instead(blob, os.mkfifo),
    "blob a folder": lambda index, blob: _instead(blob, Path.mkdir),
    "blob of another time": lambda index, blob: os.utime(blob, ns=(0, 1)),
    "blob longer": lambda index, blob: blob.write_bytes(blob.read_bytes() + bytes(64)),
}


@pytest.mark.parametrize("harm", HARM)
def test_an_entry_that_is_not_what_was_written_is_made_again(tmp_path: Path, harm: str) -> None:
    path = tiny_llama.make(tmp_path, BY_NAME["dense"])
    with prepare(path, tmp_path / "cache") as before:
        expected = arrays_of(before)
    HARM[harm](before.folder / "weights.json", before.blob_path)
    calls: list[int] = []
    with prepare(path, tmp_path / "cache", lambda stage, done, total: calls.append(done)) as again:
        after = arrays_of(again)
    assert calls
    assert all(np.array_equal(after[role], expected[role]) for role in expected)
    prepare(path, tmp_path / "cache", lambda stage, done, total: pytest.fail("converted twice")).close()


def test_a_closed_model(tmp_path: Path) -> None:
    ready = opened(tmp_path, BY_NAME["dense"])
    ready.close()
    ready.close()
    for use in (lambda: ready.embedding([1]), lambda: ready.program(["decode_256"])):
        with pytest.raises(EvaluateError, match="closed"):
            use()


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(ResourceError):
        opened(tmp_path, BY_NAME["dense"])


# --- plan ---------------------------------------------------------------------


@given(st.integers(0, 3000), st.integers(0, 2000))
def test_plan_takes_every_token_once(tokens: int, past: int) -> None:
    calls = plan(tokens, past=past, limit=8192)
    at = past
    for call in calls:
        assert call.start == at
        assert 0 < call.count <= call.chunk
        assert call.chunk in (32, 128, 512)
        assert call.cached >= at
        assert call.cached in (0, 256, 512, 1024, 2048, 4096, 8192)
        assert call.cached == 0 or call.cached < 2 * max(at, 129)
        at += call.count
    assert at == past + tokens
    assert all(call.count == call.chunk for call in calls[:-1])


def test_plan_beyond_the_context() -> None:
    with pytest.raises(InputError, match="513 tokens do not fit a context of 512"):
        plan(13, past=500, limit=512)
