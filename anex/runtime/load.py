"""A model ready to run, whatever it is."""

from __future__ import annotations

from anex.files import StrPath
from anex.models import Progress
from anex.models.encoder import is_encoder
from anex.runtime.embed import Encoder, load_encoder
from anex.runtime.model import DEFAULT_ENGINE, DEFAULT_NUMERICS, Model, load_decoder


def load(
    path: StrPath,
    *,
    engine: str = DEFAULT_ENGINE,
    numerics: str = DEFAULT_NUMERICS,
    context: int | None = None,
    cache_dir: StrPath | None = None,
    threads: int | None = None,
    text: bool = True,
    progress: Progress | None = None,
) -> Model | Encoder:
    """Make a model ready to run: one that writes text, or a sentence encoder.

    What it is the file says; `load_decoder` and `load_encoder` return one kind and refuse the
    other.  Arguments and errors are those of `load_decoder`.
    """
    make = load_encoder if is_encoder(path) else load_decoder
    return make(
        path,
        engine=engine,
        numerics=numerics,
        context=context,
        cache_dir=cache_dir,
        threads=threads,
        text=text,
        progress=progress,
    )
