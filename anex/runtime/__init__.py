"""Generation: a model on an engine, its cache, the loop, and samplers."""

from anex.runtime import store
from anex.runtime.cache import KVCache
from anex.runtime.generate import Completion, Stats, StopReason, StopStrings
from anex.runtime.model import DEFAULT_TOKENS, Model, load
from anex.runtime.sampling import Sampler, Sampling, make_sampler
from anex.runtime.session import Progress, Session

__all__ = [
    "DEFAULT_TOKENS",
    "Completion",
    "KVCache",
    "Model",
    "Progress",
    "Sampler",
    "Sampling",
    "Session",
    "Stats",
    "StopReason",
    "StopStrings",
    "load",
    "make_sampler",
    "store",
]
