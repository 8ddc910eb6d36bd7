"""State-space mixers: the causal convolution, and the recurrences of Mamba-2, Mamba-1 and the gated
delta rule.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.errors import StrategyError
from shardwright.execute.numerics.attention.key_exchange import own_positions
from shardwright.execute.numerics.base.local_tensors import fine, numbers
from shardwright.execute.numerics.base.operator_protocol import Values, Weights
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.ir.operator import ScanShape

FIRST_CHANNEL = {2: 0, 5: 1, 6: 0}
"""First extent of a fused projection that is convolved, by how many it writes: x z (Mamba-1), z x B
C dt (Mamba-2), q k v z b a (delta)."""


LEAST_LENGTH = 1e-6
"""Of a query's or key's square, added before it is made of length one."""


def conv(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """silu of a depthwise causal convolution: y_t = silu(sum over i of w_i x_(t - taps + 1 + i) +
    b), zeros before the sequence.

    Inputs begin with the sequence (`Place.key_positions`); outputs are those of the place's own
    positions.
    """
    count = len(place.operator.writes)
    start = FIRST_CHANNEL[len(inputs[0])]
    listed = [p.name for p in place.operator.parameters]
    outputs = []
    for i in range(count):
        taps = weights[listed[i]].unsqueeze(1)
        bias = weights[listed[count + i]] if len(listed) > count else None
        x = functional.pad(inputs[0][start + i].transpose(1, 2), (taps.shape[-1] - 1, 0))
        outputs.append(
            functional.silu(functional.conv1d(x, taps, bias, groups=taps.shape[0]).transpose(1, 2))
        )
    return tuple(_own(place, y) for y in outputs)


def scan(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """The recurrence of the operator's family, from the start of the sequence; outputs are those of
    the place's own positions.
    """
    return (_own(place, scanned(place, inputs, weights, state=None)[0]),)


def scanned(
    place: OperatorShare,
    inputs: tuple[Values, ...],
    weights: Weights,
    *,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(outputs at all positions of the inputs, the state behind them).

    Args:
        state: before the first position, (samples, local heads or channels, ...) in the format of
            statistics; None = the sequence begins.
    """
    own = {p.name.rpartition(".")[2]: fine(weights[p.name]) for p in place.operator.parameters}
    found, last = _recurrence(
        place, tuple(tuple(fine(v) for v in values) for values in inputs), own, state
    )
    return found.to(inputs[0][0].dtype), last


_Scanned = tuple[torch.Tensor, torch.Tensor]
"""(outputs, last state)."""


def _recurrence(
    place: OperatorShare, inputs: tuple[Values, ...], own: Weights, state: torch.Tensor | None
) -> _Scanned:
    shape = place.operator.scan
    assert shape is not None
    if len(inputs) == 3:
        return _selective(inputs[0][0], inputs[1][0], inputs[2][1], inputs[2][2], own, state)
    heads = torch.arange(*place.heads, device=inputs[0][0].device)
    if shape.delta:
        first = place.reads[0][0] // shape.state
        return _delta(
            shape,
            heads * shape.groups // shape.heads - first,
            inputs[0],
            (inputs[1][4], inputs[1][5]),
            own,
            state,
        )
    first = place.reads[1][0] // shape.state
    return _mamba2(
        shape,
        heads * shape.groups // shape.heads - first,
        inputs[0],
        inputs[1][4],
        own,
        state,
        limits=place.settings.step_limits,
    )


def _mamba2(
    shape: ScanShape,
    groups: torch.Tensor,
    streams: Values,
    steps: torch.Tensor,
    own: Weights,
    state: torch.Tensor | None,
    *,
    limits: tuple[float, float],
) -> _Scanned:
    """S_t = exp(dt_t A) S_(t-1) + dt_t x_t B_t, y_t = S_t C_t + D x_t, in chunks (Dao and Gu 2024,
    arXiv 2405.21060, section 6).

    Args:
        groups: local group of B and C that each local head reads.
        streams: x, B, C.
        steps: dt before its bias and softplus.
        limits: between which dt then is.
    """
    x = streams[0].unflatten(-1, (-1, shape.head_dim))
    b, c = (s.unflatten(-1, (-1, shape.state))[:, :, groups] for s in streams[1:3])
    dt = functional.softplus(steps + own["dt_bias"]).clamp(*limits)
    decay = -own["a_log"].exp() * dt
    state = (
        x.new_zeros((x.shape[0], x.shape[2], shape.head_dim, shape.state))
        if state is None
        else state
    )
    outputs = []
    for start in range(0, x.shape[1], shape.chunk):
        part = slice(start, start + shape.chunk)
        xs, bs, cs, dts, total = (
            x[:, part],
            b[:, part],
            c[:, part],
            dt[:, part],
            decay[:, part].cumsum(1),
        )
        size = xs.shape[1]
        later = torch.ones((size, size), dtype=torch.bool, device=x.device).triu(1).unsqueeze(-1)
        # (samples, t, s, heads): what is left at t of what came at s.
        left = (total.unsqueeze(2) - total.unsqueeze(1)).masked_fill(later, -torch.inf).exp()
        products = torch.einsum("nthk,nshk->ntsh", cs, bs) * left * dts.unsqueeze(1)
        inside = torch.einsum("ntsh,nshp->nthp", products, xs)
        outputs.append(
            inside + torch.einsum("nthk,nhpk->nthp", cs * total.exp().unsqueeze(-1), state)
        )
        rest = ((total[:, -1:] - total).exp() * dts).unsqueeze(-1)
        state = state * total[:, -1].exp()[..., None, None] + torch.einsum(
            "nshp,nshk->nhpk", xs * rest, bs
        )
    y = torch.cat(outputs, dim=1) if outputs else x
    return (y + own["d"].unsqueeze(-1) * x).flatten(-2), state


def _selective(
    x: torch.Tensor,
    steps: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    own: Weights,
    state: torch.Tensor | None,
) -> _Scanned:
    """Mamba-1 (Gu and Dao 2023, arXiv 2312.00752, section 3.2): a state for each channel, token
    after token.
    """
    rates, dt = -own["a_log"].exp(), functional.softplus(steps)
    state = x.new_zeros((x.shape[0], x.shape[2], b.shape[-1])) if state is None else state
    outputs = []
    for t in range(x.shape[1]):
        state = (dt[:, t].unsqueeze(-1) * rates).exp() * state + (dt[:, t] * x[:, t]).unsqueeze(
            -1
        ) * b[:, t].unsqueeze(1)
        outputs.append((state * c[:, t].unsqueeze(1)).sum(-1))
    return (torch.stack(outputs, dim=1) if outputs else x) + own["d"] * x, state


def _delta(
    shape: ScanShape,
    groups: torch.Tensor,
    streams: Values,
    gates: tuple[torch.Tensor, torch.Tensor],
    own: Weights,
    state: torch.Tensor | None,
) -> _Scanned:
    """S_t = a_t S_(t-1) + k_t (b_t (v_t - a_t S_(t-1) k_t)), y_t = S_t q_t (Yang et al. 2024, arXiv
    2412.06464, equation 10).

    a = exp(-exp(a_log) softplus(decay + dt_bias)), b = sigmoid(strength); queries and keys have
    length one, queries over sqrt(width).

    Args:
        gates: strengths b and decays before their functions.
    """
    strengths, decays = gates
    heads = (s.unflatten(-1, (-1, shape.state))[:, :, groups] for s in streams[:2])
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LEAST_LENGTH) for x in heads)
    v = streams[2].unflatten(-1, (-1, shape.head_dim))
    keep = (-own["a_log"].exp() * functional.softplus(decays + own["dt_bias"])).exp()
    write = torch.sigmoid(strengths)
    state = (
        v.new_zeros((v.shape[0], v.shape[2], shape.state, shape.head_dim))
        if state is None
        else state
    )
    outputs = []
    for t in range(v.shape[1]):
        state = state * keep[:, t, :, None, None]
        error = v[:, t] - torch.einsum("nhkp,nhk->nhp", state, k[:, t])
        state = state + torch.einsum("nhk,nhp->nhkp", k[:, t], write[:, t].unsqueeze(-1) * error)
        outputs.append(torch.einsum("nhkp,nhk->nhp", state, q[:, t]) * shape.state**-0.5)
    return (torch.stack(outputs, dim=1) if outputs else v).flatten(-2), state


def _own(place: OperatorShare, y: torch.Tensor) -> torch.Tensor:
    """Rows of the place's own positions.

    Raises:
        StrategyError: positions before them are missing (rule ``execute.scan``).
    """
    known = own_positions(place)
    if known == place.positions == ((0, y.shape[1]),):
        return y
    if known != ((0, y.shape[1]),):
        raise StrategyError(
            f"{place.operator.name} does not see its sequence from the start",
            hint="bring it all positions before its own",
            rule="execute.scan",
        )
    return y.index_select(1, numbers(place.positions, like=y))
