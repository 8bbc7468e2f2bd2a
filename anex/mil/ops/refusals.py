"""Refusals that go beyond coremltools and are found while a type is computed.

coremltools 9.0 builds each of the calls below without a word: it clamps, wraps
round or writes a type that no tensor has.  The Neural Engine's compiler takes
such a program too and then computes something else, so the type rules refuse
it.  Every such refusal is a row of `REFUSALS`; the row's reason is the hint of
the error (`Call.refusal`).  Those that look at a call as a whole, before its
type rule, are in `anex.mil.ops.strict`.
"""

from __future__ import annotations

REFUSALS: dict[str, str] = {
    # axes and permutations
    "axis-range": "such an axis names no dimension; coremltools checks it for some ops only",
    "axis-twice": "naming an axis twice changes the shape in a way that the op does not define",
    "axes-empty": "no axis named may mean none or all",
    "perm-twice": "coremltools indexes the shape with perm, so a repeated entry repeats a dimension",
    # sizes
    "reshape-negative": "only -1 has a meaning; two negative sizes give a positive count and pass",
    "reshape-undetermined": "with no elements a size of -1 can be anything; coremltools divides by zero",
    "size-positive": "a dimension of this size does not exist",
    "size-divides": "coremltools rounds the quotient down and drops the rest of the data",
    "split-count": "coremltools leaves the surplus outputs with the whole shape of x",
    "split-sum": "coremltools does not add the sizes up",
    "vector-length": "entries beyond the rank are ignored, missing ones are an exception",
    "rank": "coremltools does not check this rank",
    "scalar": "coremltools takes a vector of one element where its arithmetic happens to allow it",
    # slices
    "slice-past-end": "coremltools clamps to the dimension, and for a dimension of 1 does not look",
    "slice-empty": "an end before the begin is clamped to an empty tensor",
    "slice-of-one": "coremltools gives the one element whatever the limits, the definition gives nothing",
    "slice-stride": "a stride of 0 never reaches the end",
    "slice-size": "only sizes of at least 1, and -1 for the rest, are defined",
    "slice-rest": "coremltools subtracts a negative begin, which gives more elements than there are",
    "window-size": "no window of this size fits",
    # padding
    "pad-reflect": "documented limit: at most one less than the dimension on each side",
    "pad-replicate": "documented limit: at most the dimension on each side",
    # indices and modes
    "index-range": "what an index outside the dimension reads or writes is undefined",
    "batch-dims": "batch dimensions have to agree and lie before the axis",
    "scatter-mode": "coremltools passes an unknown mode on to the compiler",
    "lengths": "one length for each entry of the batch axis, which is not the sequence axis",
    "step": "a step of 0, or one that leads away from the end, gives no sequence",
    "k-range": "the number of elements to keep is at least 1",
    # values
    "dtype": "coremltools does not check the element type of a tuple's members",
    "scale-zero": "dividing by a scale of zero gives infinity",
    "half-pixel": "aligned corners and half-pixel centres contradict each other",
    "constexpr-empty": "a compressed tensor has at least one element",
}
"""What the type rules refuse although coremltools builds it, and why."""
