"""Mixture of experts in a program that cannot branch: every expert runs, and the router's weights select.

A static engine has every expert in its program anyway, and cannot skip one.
Routing on the host would cut each layer in two, with a round trip and a program
per set of experts between; and a prefill chunk of 32 tokens visits nearly all
experts as it is.  So the weight of an expert that was not chosen is 0, and its
output, times 0, is added like the others.  A token costs what all experts cost:
that is right, and slow, and said in `docs/models.md`.
"""

from __future__ import annotations

from anex.mil import Value
from anex.models.config import Experts, Mlp
from anex.models.emit import ACTIVATIONS, Scope, conv, part
from anex.models.layout import expert_groups

UNCHOSEN = -1e4
"""Router logit of an expert that was not chosen: its softmax is 0 at every precision."""


def routed(emit: Scope, mlp: Mlp, experts: Experts, x: Value) -> Value:
    """The weighted sum of the chosen experts and the shared one, `[1, D, 1, T]` (Shazeer et al. 2017).

    Experts are computed in groups whose channels fit one convolution: the last
    one adds up over all inner channels of a group, so it is also the sum over experts.
    """
    columns = x.tensor.dims[3]
    weights = routing(emit, experts, conv(emit, x, "router", "router"))
    activation, out = ACTIVATIONS[mlp.activation], None
    for group in expert_groups(experts.count, mlp.dim):
        n = emit.within(f"e{group.number}_")
        inner = activation(n, conv(n, x, "w_gate", "gate"))
        inner = n("mul", "gated", x=inner, y=conv(n, x, "w_up", "up"))
        inner = n("reshape", "each", x=inner, shape=[1, group.count, mlp.dim, columns])
        share = part(n, weights, "share", 1, group.first, group.count)
        share = n("reshape", "share_each", x=share, shape=[1, group.count, 1, columns])
        weighted = n("mul", "weighted", x=inner, y=share)
        joined = n("reshape", "joined", x=weighted, shape=[1, group.count * mlp.dim, 1, columns])
        down = conv(n, joined, "w_down", "down")
        out = down if out is None else n("add", "sum", x=out, y=down)
    assert out is not None
    if experts.shared_dim:
        n = emit.within("shared_")
        inner = n("mul", "gated", x=activation(n, conv(n, x, "w_gate", "gate")), y=conv(n, x, "w_up", "up"))
        out = n("add", "sum", x=out, y=conv(n, inner, "w_down", "down"))
    return out


def routing(emit: Scope, experts: Experts, logits: Value) -> Value:
    """Weight of each expert for each token, 0 for those not chosen: `[1, E, 1, T]` → the same.

    The largest logit is struck out `used - 1` times; what is at least the largest
    one left is chosen.  (Experts that tie for the last place, to the bit, are all chosen.)
    A softmax over the chosen ones is the softmax over all, divided by their sum.
    """
    n = emit.within("router_")
    if experts.used >= experts.count:
        return n("softmax", "weights", x=logits, axis=1)
    left = logits
    for i in range(experts.used - 1):
        top = n("greater_equal", f"top{i}", x=left, y=_largest(n, left, f"max{i}"))
        left = n("select", f"left{i}", cond=top, a=UNCHOSEN, b=left)
    chosen = n("greater_equal", "chosen", x=logits, y=_largest(n, left, "least"))
    if experts.normalised:
        kept = n("select", "kept", cond=chosen, a=logits, b=UNCHOSEN)
        return n("softmax", "weights", x=kept, axis=1)
    return n("select", "weights", cond=chosen, a=n("softmax", "all", x=logits, axis=1), b=0.0)


def _largest(n: Scope, x: Value, name: str) -> Value:
    return n("reduce_max", name, x=x, axes=[1], keep_dims=True)
