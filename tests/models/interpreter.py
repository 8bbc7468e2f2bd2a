"""Runs decoder programs in numpy, without any engine.

The ops are written from their definition, the cache from its contract.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anex.mil.blob import BlobFile
from anex.mil.ir import Function, Literal, Op, Operand
from anex.models import EMPTY, Prepared, Rungs, decode_name, head_name, plan
from anex.models.layout import LANE

Array = np.ndarray[Any, np.dtype[Any]]


def _conv(a: Mapping[str, Any]) -> Array:
    assert a["weight"].shape[2:] == (1, 1)
    assert a["x"].shape[0] == 1
    assert a["groups"] == 1
    return np.einsum("oi,iw->ow", a["weight"][:, :, 0, 0], a["x"][0, :, 0])[None, :, None, :]


def _softmax(a: Mapping[str, Any]) -> Array:
    powers = np.exp(a["x"] - a["x"].max(axis=a["axis"], keepdims=True))
    return powers / powers.sum(axis=a["axis"], keepdims=True)


def _slice(a: Mapping[str, Any]) -> Array:
    return a["x"][tuple(slice(b, b + s) for b, s in zip(a["begin"], a["size"], strict=True))]


def _matmul(a: Mapping[str, Any]) -> Array:
    assert not a["transpose_x"]
    return a["x"] @ (a["y"].swapaxes(-1, -2) if a["transpose_y"] else a["y"])


OPS: dict[str, Callable[[Mapping[str, Any]], Array]] = {
    "abs": lambda a: np.abs(a["x"]),
    "add": lambda a: a["x"] + a["y"],
    "sub": lambda a: a["x"] - a["y"],
    "mul": lambda a: a["x"] * a["y"],
    "real_div": lambda a: a["x"] / a["y"],
    "pow": lambda a: a["x"] ** a["y"],
    "maximum": lambda a: np.maximum(a["x"], a["y"]),
    "sigmoid": lambda a: 1.0 / (1.0 + np.exp(-a["x"])),
    "tanh": lambda a: np.tanh(a["x"]),
    "erf": lambda a: np.vectorize(math.erf, otypes=[np.float64])(a["x"]),
    "relu": lambda a: np.maximum(a["x"], 0.0),
    "clip": lambda a: np.clip(a["x"], a["alpha"], a["beta"]),
    "greater_equal": lambda a: a["x"] >= a["y"],
    "select": lambda a: np.where(a["cond"], a["a"], a["b"]),
    "softmax": _softmax,
    "reduce_max": lambda a: a["x"].max(axis=tuple(a["axes"]), keepdims=bool(a["keep_dims"])),
    "reduce_sum": lambda a: a["x"].sum(axis=tuple(a["axes"]), keepdims=bool(a["keep_dims"])),
    "conv": _conv,
    "matmul": _matmul,
    "reshape": lambda a: a["x"].reshape(a["shape"]),
    "transpose": lambda a: a["x"].transpose(a["perm"]),
    "concat": lambda a: np.concatenate(a["values"], axis=int(a["axis"])),
    "slice_by_size": _slice,
    "pad": lambda a: np.pad(a["x"], np.reshape(a["pad"], (-1, 2))),
}


class Interpreter:
    """Evaluates functions of a program in float64, or with every result rounded to fp16."""

    def __init__(self, blob: BlobFile, *, half: bool = False) -> None:
        self.blob = blob
        self.half = half
        self.largest = 0.0

    def run(self, function: Function, inputs: Mapping[str, Array]) -> dict[str, Array]:
        values: dict[str, Any] = {}
        for port in function.inputs:
            assert inputs[port.name].shape == port.tensor.dims, port
            values[port.name] = np.asarray(inputs[port.name], np.float64)

        def get(operand: Operand) -> Any:
            return self.literal(operand) if isinstance(operand, Literal) else values[operand.name]

        for op in function.ops:
            values[op.output.name] = self.literal(op.literal) if op.literal else self.compute(op, get)
        return {out.name: values[out.name] for out in function.outputs}

    def compute(self, op: Op, get: Callable[[Operand], Any]) -> Array:
        args = {
            name: tuple(map(get, bound)) if isinstance(bound, tuple) else get(bound)
            for name, bound in op.inputs.items()
        }
        out = OPS[op.kind](args)
        assert out.shape == op.output.tensor.dims, op
        if self.half and out.dtype != bool:
            with np.errstate(under="ignore"):
                out = out.astype(np.float16).astype(np.float64)
        self.largest = max(self.largest, float(np.abs(out).max()))
        return out

    def literal(self, literal: Literal) -> Any:
        array = self.blob.array(literal) if literal.is_blob else literal.array
        return np.asarray(array, np.float64) if array.dtype.kind == "f" else array


class Session:
    """One conversation: what the runtime does between calls, in its plainest form.

    Args:
        half: Round every result to fp16.
        exact: Pass what the host computes in float64 instead of the fp16 of the
            ports, to see the program's own error.
    """

    def __init__(self, model: Prepared, *, half: bool = False, exact: bool = False) -> None:
        self.model, self.config, self.exact = model, model.config, exact
        self.engine = Interpreter(BlobFile(model.blob_path), half=half)
        self.rungs = Rungs(self.config.context_length)
        self.functions: dict[str, Function] = {}
        self.past = 0
        self.columns = {s.input: np.zeros((1, s.channels, 1, 0)) for s in model.caches}

    def feed(self, ids: Array, chunks: tuple[int, ...] = (32, 128, 512)) -> Array:
        """Takes tokens in by prefill calls; returns logits `[len(ids), vocabulary]`."""
        start, out = 0, []
        calls = plan(len(ids), past=self.past, limit=self.config.context_length, chunks=chunks)
        for call in calls:
            outputs = self._call(call.function, ids[start : start + call.count], call.cached)
            out.append(self._head(outputs["o00_hidden"])[: call.count])
            for surface in self.model.caches:
                self._append(surface.input, outputs[surface.output][..., : call.count])
            start, self.past = start + call.count, self.past + call.count
        return np.concatenate(out)

    def step(self, token: int) -> Array:
        """Takes one token in by a decode call; returns its logits."""
        cached = self.rungs.holding(self.past)
        outputs = self._call(decode_name(cached), np.array([token]), cached)
        for surface in self.model.caches:
            row = outputs[surface.output].reshape(-1)[: surface.channels]
            self._append(surface.input, row[None, :, None, None])
        self.past += 1
        tiles = [outputs[name].reshape(-1) for name in sorted(outputs) if name.startswith("o00_logits")]
        return self._scaled(np.concatenate(tiles)[: self.config.vocab_size])

    def _call(self, name: str, ids: Array, cached: int) -> dict[str, Array]:
        held = np.full(cached, EMPTY)
        held[: self.past] = np.arange(self.past)
        fed = self.model.feed(name)(ids, self.past + np.arange(len(ids)), held)
        inputs = {}
        for port in self._function(name).inputs:
            if port.name in fed:
                # What follows the values in a wider port must not matter either.
                inputs[port.name] = np.full(port.tensor.dims, 7.0)
                values = fed[port.name] if self.exact else fed[port.name].astype(np.float16)
                inputs[port.name][..., : values.shape[3]] = values
        for port, columns in self.columns.items() if cached else ():
            # What a free cache column holds must not matter.
            inputs[port] = np.full((*columns.shape[:3], cached), 7.0)
            inputs[port][..., : self.past] = columns
        return self.engine.run(self._function(name), inputs)

    def _head(self, hidden: Array) -> Array:
        out = []
        for start in range(0, hidden.shape[3], LANE):
            inputs = {"i00_hidden": hidden[..., start : start + LANE]}
            tiles = self.engine.run(self._function(head_name()), inputs)
            out.append(np.concatenate([tiles[name][0, :, 0] for name in sorted(tiles)]).T)
        return self._scaled(np.concatenate(out)[:, : self.config.vocab_size])

    def _scaled(self, logits: Array) -> Array:
        """What the host does to logits, in float64."""
        logits = logits * self.config.multipliers.logits
        cap = self.config.multipliers.logit_cap
        return np.tanh(logits / cap) * cap if cap else logits

    def _function(self, name: str) -> Function:
        if name not in self.functions:
            self.functions |= self.model.program([name]).functions
        return self.functions[name]

    def _append(self, port: str, columns: Array) -> None:
        if self.engine.half:
            columns = columns.astype(np.float16).astype(np.float64)
        self.columns[port] = np.concatenate([self.columns[port], columns], axis=3)
