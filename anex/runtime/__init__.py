"""Generation: a model on an engine, its cache, the loop, and samplers."""

from anex.models import Progress
from anex.runtime import store
from anex.runtime.cache import KVCache
from anex.runtime.conversation import CONTEXT_FULL, ContextFull, Conversation, Options
from anex.runtime.embed import Embeddings, Encoder, load_encoder
from anex.runtime.evaluate import DEFAULT_WINDOW, Divergence, Evaluation, Perplexity, evaluate
from anex.runtime.functions import Compiled, Functions
from anex.runtime.generate import Completion, Stats, StopReason, StopStrings
from anex.runtime.load import load
from anex.runtime.model import DEFAULT_ENGINE, DEFAULT_NUMERICS, DEFAULT_TOKENS, Model, load_decoder
from anex.runtime.sampling import Sampler, Sampling, make_sampler
from anex.runtime.session import Session

__all__ = [
    "CONTEXT_FULL",
    "DEFAULT_ENGINE",
    "DEFAULT_NUMERICS",
    "DEFAULT_TOKENS",
    "DEFAULT_WINDOW",
    "Compiled",
    "Completion",
    "ContextFull",
    "Conversation",
    "Divergence",
    "Embeddings",
    "Encoder",
    "Evaluation",
    "Functions",
    "KVCache",
    "Model",
    "Options",
    "Perplexity",
    "Progress",
    "Sampler",
    "Sampling",
    "Session",
    "Stats",
    "StopReason",
    "StopStrings",
    "evaluate",
    "load",
    "load_decoder",
    "load_encoder",
    "make_sampler",
    "store",
]
