"""Encoders: against float64 numpy, against transformers' golden states, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import encoder_reference
import numpy as np
import pytest
import tiny_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_encoder import CONFIGS, DIM, IDS, LONG, MUTATIONS, PADDED, SHORTER

import anex
from anex.emulator import Emulated, Level
from anex.errors import AnexError, EvaluateError, InputError, UnsupportedError
from anex.formats.gguf import GGUFWriter
from anex.mil import Builder, DType, Literal, Program
from anex.models.emit import Scope
from anex.models.encoder import POOLINGS, encode_name, is_encoder, load_encoder_file, rungs
from anex.models.encoder.graph import layer_norm
from anex.models.encoder.signature import signature
from anex.models.encoder.tables import table

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "encoder" / "transformers.npz")


def nmse(found: Any, expected: Any) -> float:
    wide = np.asarray(expected, np.float64)
    return float(((found - wide) ** 2).sum() / (wide**2).sum())


def cosine(a: Any, b: Any) -> float:
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def sentence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder.write_sentence(tmp_path_factory.mktemp("models") / "sentence")


@pytest.fixture(scope="module")
def encoder(sentence: Path, cache: Path) -> Iterator[anex.Encoder]:
    with anex.load_encoder(sentence, cache_dir=cache, numerics="fp32") as model:
        yield model


# --- the numbers ---------------------------------------------------------------


@pytest.mark.parametrize("case", [*CONFIGS, *MUTATIONS])
def test_hidden_states_are_transformers(case: str, tmp_path: Path, cache: Path) -> None:
    """Every family, and every key of a config that changes transformers' result."""
    folder = tiny_encoder.write(tmp_path / "model", case)
    with anex.load_encoder(folder, cache_dir=cache, numerics="fp32") as model:
        assert nmse(model.hidden_states(IDS), GOLDEN[f"{case}/IDS"]) <= 1e-6
        texts = {"PADDED": PADDED, "SHORTER": SHORTER, **({"LONG": LONG} if case in CONFIGS else {})}
        pooled = model.embed(list(texts.values()), pooling="mean", normalize=False)
        for vector, name in zip(pooled, texts, strict=True):
            assert nmse(vector, GOLDEN[f"{case}/{name}"]) <= 1e-6


@pytest.mark.parametrize("family", CONFIGS)
def test_fp16_keeps_the_direction(family: str, tmp_path: Path, cache: Path) -> None:
    folder = tiny_encoder.write(tmp_path / "model", family)
    with anex.load_encoder(folder, cache_dir=cache, numerics="fp16") as model:
        (pooled,) = model.embed([SHORTER], pooling="mean")
    assert cosine(pooled, GOLDEN[f"{family}/SHORTER"]) >= 0.9999
    assert abs(float(np.linalg.norm(pooled.astype(np.float64))) - 1) <= 1e-6


def test_bert_is_the_paper(encoder: anex.Encoder) -> None:
    """At the edges of a rung too: one token, 31, 32, 33."""
    config, tensors = tiny_encoder.config("bert"), tiny_encoder.tensors("bert")
    for count in (1, 31, 32, 33, 40):
        ids = LONG[:count]
        states = encoder_reference.bert(config, tensors, ids)
        assert nmse(encoder.hidden_states(ids), states) <= 1e-6
        for mode, expected in {
            "mean": states.mean(0),
            "cls": states[0],
            "last": states[-1],
            "mean_sqrt_len": states.sum(0) / np.sqrt(count),
        }.items():
            (pooled,) = encoder.embed([ids], pooling=mode, normalize=False)
            assert nmse(pooled, expected) <= 1e-6
            (unit,) = encoder.embed([ids], pooling=mode)
            assert nmse(unit, expected / np.linalg.norm(expected)) <= 1e-6


def test_a_gguf_is_the_same_model(sentence: Path, encoder: anex.Encoder, tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "bert.gguf")
    with anex.load(path, cache_dir=cache, numerics="fp32") as model:
        assert isinstance(model, anex.Encoder)
        texts = ["The rain in Spain stays mainly in the plain!", "a dog"]
        assert nmse(model.embed(texts), encoder.embed(texts)) <= 1e-10
        assert model.tokens("the dogs") == encoder.tokens("the dogs") == [2, 5, 15, 13, 3]


def write_gguf(path: Path, **changes: Any) -> Path:
    """The tiny BERT as llama.cpp's converter writes it: words with ▁ before them, pieces without ##."""
    metadata: dict[str, Any] = {
        "bert.embedding_length": DIM,
        "bert.block_count": tiny_encoder.LAYERS,
        "bert.attention.head_count": tiny_encoder.HEADS,
        "bert.feed_forward_length": tiny_encoder.FFN,
        "bert.context_length": tiny_encoder.POSITIONS,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "jina-v2-en",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": [
            token[2:] if token.startswith("##") else token if token[0] == "[" else f"▁{token}"
            for token in tiny_encoder.VOCAB
        ],
        "tokenizer.ggml.token_type": [3 if token[0] == "[" else 1 for token in tiny_encoder.VOCAB],
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
    }
    names = {name: table("hf", "bert").names[role] for role, name in table("gguf", "bert").names.items()}
    held = tiny_encoder.tensors("bert")
    with GGUFWriter(path, "bert") as writer:
        for key, value in {**metadata, **changes}.items():
            if value is not None:
                writer.add_metadata(key, value)
        for pattern, other in names.items():
            for layer in range(tiny_encoder.LAYERS if "{layer}" in pattern else 1):
                writer.add_tensor(pattern.format(layer=layer), held[other.format(layer=layer)])
        writer.write()
    return path


# --- the norm --------------------------------------------------------------------


COLUMNS = {
    "plain": np.linspace(-2, 3, DIM),
    "large": np.linspace(-30000, 20000, DIM),
    "small": np.linspace(-1e-3, 2e-3, DIM),
    "one outlier": np.where(np.arange(DIM) == 5, 3000.0, np.linspace(-1, 1, DIM)),
    "far from zero": 100.0 + np.linspace(-2, 2, DIM),
    "zeros": np.zeros(DIM),
    "constant": np.full(DIM, 7.0),
    "largest": np.where(np.arange(DIM) % 2 == 0, 65504.0, -65504.0),
}


@pytest.mark.parametrize("eps", [1e-12, 1e-5])
@pytest.mark.parametrize("level", [Level.FP32, Level.FP16])
def test_the_norm_survives_fp16(level: Level, eps: float) -> None:
    """gamma 1 and beta 0.5 on columns of every size, against the formula in float64."""
    x = np.stack([COLUMNS[name] for name in COLUMNS], axis=1).astype(np.float16)
    b = Builder("main")
    value = b.input("x", DType.FP16, (1, DIM, 1, len(COLUMNS)))
    ones = np.ones((1, DIM, 1, 1), np.float16)
    weights = {"n": Literal.of(ones * np.float16(np.sqrt(DIM))), "n_b": Literal.of(ones * np.float16(0.5))}
    function = b.finish({"y": layer_norm(Scope(b, weights), value, "n", eps)})
    emulated = Emulated(Program({"main": function}), None, level)
    dtype = emulated.inputs("main")[0][1]
    y = np.asarray(emulated.run("main", {"x": x[None, :, None].astype(dtype)}, {})["y"])[0, :, 0]
    wide = x.astype(np.float64)
    expected = encoder_reference.norm(wide.T, np.ones(DIM), np.full(DIM, 0.5), eps).T
    assert np.isfinite(y).all()
    # Of a column around a large mean its rounding is divided by its deviation.
    close = {Level.FP32: (2e-5, 1e-2), Level.FP16: (4e-3, 4e-2)}[level]
    for name, found, wanted in zip(COLUMNS, y.T, expected.T, strict=True):
        limit = close[name in ("far from zero", "constant")]
        np.testing.assert_allclose(found, wanted, atol=limit, err_msg=name)


# --- texts -----------------------------------------------------------------------


def test_texts_become_ids_and_vectors(encoder: anex.Encoder) -> None:
    assert encoder.tokens("The RAIN mainly stays.") == [2, 5, 6, 10, 11, 9, 18, 3]
    vectors = encoder.embed(["the dog", "the  dog ", "a cat"])
    assert vectors.shape == (3, DIM)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors[0], vectors[1])
    assert np.array_equal(encoder.embed("the dog"), vectors[:1])
    assert encoder.embed([]).shape == (0, DIM)
    assert encoder.embed([""]).shape == (1, DIM)  # nothing but the special tokens


def test_a_text_that_is_too_long(encoder: anex.Encoder) -> None:
    """The folder says 40 tokens, two of them special."""
    text = "dog " * 39
    with pytest.raises(InputError, match=r"text 2 has 41 tokens, the model takes 40"):
        encoder.embed(["a", text])
    cut = encoder.tokens(text, truncate=True)
    assert cut == [2, *[15] * 38, 3]
    assert np.array_equal(encoder.embed([text], truncate=True), encoder.embed([cut]))


def test_the_vector_of_a_text_does_not_depend_on_its_neighbours(encoder: anex.Encoder) -> None:
    alone = encoder.embed(["the plain"])
    assert np.array_equal(encoder.embed(["a " * 35, "the plain", "cat"])[1:2], alone)


def test_bad_calls(encoder: anex.Encoder) -> None:
    with pytest.raises(InputError, match="no pooling 'max'"):
        encoder.embed(["a"], pooling="max")
    with pytest.raises(InputError, match="token ids must lie in 0 … 95"):
        encoder.embed([[2, 96, 3]])
    with pytest.raises(InputError, match="text 1 has no tokens"):
        encoder.embed([[]])
    with pytest.raises(InputError, match="no function is called 'encode_t33'"):
        signature(encoder.config, "encode_t33")


def test_a_closed_encoder(sentence: Path, cache: Path) -> None:
    with anex.load_encoder(sentence, cache_dir=cache) as model:
        pass
    for use in (model.embed, model.hidden_states):
        with pytest.raises(EvaluateError, match="closed"):
            use("one")


def test_a_model_that_does_not_say_how_to_pool(tmp_path: Path, cache: Path) -> None:
    folder = tiny_encoder.write(tmp_path / "m")
    message = "does not say how the vectors of its tokens become one"
    with anex.load_encoder(folder, cache_dir=cache) as model, pytest.raises(InputError, match=message):
        model.embed(["a"])


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_every_length_has_a_function(longest: int, tokens: int) -> None:
    sizes = rungs(longest)
    assert all(size % 32 == 0 for size in sizes)
    assert sorted(set(sizes)) == list(sizes)
    assert sizes[-1] - 32 < longest <= sizes[-1]
    assert all(small >= 32 for small in sizes)
    assert tokens > longest or any(tokens <= size for size in sizes)


@given(st.sampled_from(sorted(POOLINGS)), st.integers(1, 600))
def test_pooling_weights(mode: str, count: int) -> None:
    weights = POOLINGS[mode](count)
    assert weights.shape == (count,)
    total = {"mean_sqrt_len": np.sqrt(count)}.get(mode, 1.0)
    assert weights.sum() == pytest.approx(total)
    assert (weights > 0).sum() == (1 if mode in ("cls", "last") else count)


# --- what is understood, and what is refused ---------------------------------------


def test_everything_has_an_account(sentence: Path) -> None:
    with load_encoder_file(sentence) as file:
        names = {(a.what, a.name): a.status for a in file.ledger.accounts}
        assert all(("key", key) in names for key in file.file.config)
        assert all(("tensor", name) in names for name in file.file.tensors)
        assert names["key", "hidden_dropout_prob"] == "neutral"
        assert names["key", "1_Pooling/pooling_mode_mean_tokens"] == "used"
        assert file.config.max_tokens == 40
        assert file.config.pooling.mode == "mean"
        assert file.config.pooling.normalize
        assert encode_name(file.config, 33) == "encode_t64"


REFUSED: dict[str, tuple[dict[str, Any], type[AnexError], str]] = {
    "unknown key": ({"new_feature": 1}, UnsupportedError, "metadata key 'new_feature'"),
    "decoder": ({"is_decoder": True}, UnsupportedError, "'is_decoder' True"),
    "relative positions": (
        {"position_embedding_type": "relative_key"},
        UnsupportedError,
        "'position_embedding_type' 'relative_key'",
    ),
    "quantised": ({"quantization_config": {}}, UnsupportedError, "quantization_config"),
    "activation": ({"hidden_act": "mish"}, UnsupportedError, "activation 'mish'"),
    "model type": ({"model_type": "deberta-v2"}, UnsupportedError, "model_type 'deberta-v2'"),
    "heads": ({"num_attention_heads": 5}, InputError, "64 channels cannot be split into 5 heads"),
    "missing": ({"hidden_size": None}, InputError, "the key 'hidden_size' is missing"),
    "text": ({"hidden_size": "64"}, InputError, "'hidden_size' is '64', no int"),
    "bool": ({"num_hidden_layers": True}, InputError, "'num_hidden_layers' is True, no int"),
    "range": ({"num_hidden_layers": 0}, InputError, "'num_hidden_layers' 0 is not between"),
    "shape": ({"intermediate_size": 95}, InputError, "has shape [96, 64], expected [95, 64]"),
    "layers": ({"num_hidden_layers": 4}, InputError, "encoder.layer.3"),
    "fewer layers": ({"num_hidden_layers": 2}, UnsupportedError, "encoder.layer.2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_configs(case: str, tmp_path: Path) -> None:
    changes, kind, message = REFUSED[case]
    folder = tiny_encoder.write(tmp_path / "m", **changes)
    with pytest.raises(kind) as caught:
        load_encoder_file(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


POOLINGS_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "max": ({"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}, "pooling 'max'"),
    "two": ({"pooling_mode_cls_token": True}, "pooling 'cls and mean'"),
    "none": ({"pooling_mode_mean_tokens": False}, "of no kind"),
    "unknown": ({"pooling_mode_attention": True}, "key 'pooling_mode_attention'"),
    "width": ({"word_embedding_dimension": 32}, "pools 32 channels, the model has 64"),
}


@pytest.mark.parametrize("case", POOLINGS_REFUSED)
def test_refused_poolings(case: str, tmp_path: Path) -> None:
    changes, message = POOLINGS_REFUSED[case]
    with pytest.raises(AnexError) as caught:
        load_encoder_file(tiny_encoder.write_sentence(tmp_path / "m", **changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "sentence_transformers.models.Dense", "path": "3_Dense"}, "module 'Dense'"),
        ({"type": "custom.Module", "path": ""}, "which is code of its own"),
        ({"type": "sentence_transformers.models.Pooling", "path": "../../etc"}, "leads out of the folder"),
        ("Pooling", "a module has no type"),
    ],
)
def test_refused_modules(sentence: Path, entry: Any, message: str, tmp_path: Path) -> None:
    folder = tiny_encoder.write_sentence(tmp_path / "m")
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*modules, entry]))
    with pytest.raises(AnexError) as caught:
        load_encoder_file(folder)
    assert message in str(caught.value)


def test_a_prompt_before_every_text_is_refused(tmp_path: Path) -> None:
    folder = tiny_encoder.write_sentence(tmp_path / "m")
    said = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    with pytest.raises(UnsupportedError, match="a prompt that is put before every text"):
        load_encoder_file(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bert.attention.causal": True}, "'bert.attention.causal' True"),
        ({"bert.pooling_type": 4}, "'bert.pooling_type' 4"),
        ({"bert.rope.freq_base": 1e4}, "bert.rope.freq_base"),
        ({"bert.block_count": None}, "the key 'bert.block_count' is missing"),
    ],
)
def test_refused_ggufs(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(AnexError) as caught:
        load_encoder_file(write_gguf(tmp_path / "m.gguf", **changes))
    assert message in str(caught.value)


def test_a_number_beyond_fp16_is_refused(tmp_path: Path, cache: Path) -> None:
    from safetensors.numpy import save_file

    folder = tiny_encoder.write(tmp_path / "m")
    held = tiny_encoder.tensors("bert")
    held["encoder.layer.0.output.dense.weight"][0, 0] = 70000
    save_file(held, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"output\.dense\.weight' has a number that is not finite"):
        anex.load_encoder(folder, cache_dir=cache)


def test_what_is_an_encoder(sentence: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    assert is_encoder(sentence)
    assert is_encoder(write_gguf(tmp_path / "m.gguf"))
    assert not is_encoder(tiny_gguf)
    assert not is_encoder(tmp_path)
    assert not is_encoder(tmp_path / "nothing.gguf")
    for strange in ([], {}, 1, None, "llama"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": strange}))
        assert not is_encoder(tmp_path)
    with pytest.raises(UnsupportedError, match=r"llama.* as an encoder"):
        load_encoder_file(tiny_gguf)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*CONFIGS["bert"], "is_decoder", "pruned_heads", "x"]),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
        | st.lists(st.integers(), max_size=2) | st.dictionaries(st.text(max_size=2), st.none(), max_size=2),
        max_size=4,
    )
)  # fmt: skip
def test_hostile_configs_only_raise_our_errors(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "hostile"
    if not folder.exists():
        tiny_encoder.write(folder)
    values = {**tiny_encoder.config("bert"), **changes}
    (folder / "config.json").write_text(json.dumps(values))
    with suppress(AnexError):
        load_encoder_file(folder).close()
