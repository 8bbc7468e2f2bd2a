"""Generation: a model on an engine, its cache, the loop, and samplers."""

from anex.models import Progress
from anex.runtime import store
from anex.runtime.cache import KVCache
from anex.runtime.functions import Functions
from anex.runtime.generate import Completion, Stats, StopReason, StopStrings
from anex.runtime.model import DEFAULT_ENGINE, DEFAULT_NUMERICS, DEFAULT_TOKENS, Model, load
from anex.runtime.sampling import Sampler, Sampling, make_sampler
from anex.runtime.session import Session

__all__ = [
    "DEFAULT_ENGINE",
    "DEFAULT_NUMERICS",
    "DEFAULT_TOKENS",
    "Completion",
    "Functions",
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
