"""State-space mixers: causal convolution and the recurrences of Mamba and the gated delta rule."""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.errors import StrategyError
from shardwright.execute.numerics.attention.key_value_exchange import local_key_positions
from shardwright.execute.numerics.base.operator_protocol import Values, Weights
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
    index_tensor,
    parameters_by_role,
)
from shardwright.model.ir.operator import ScanShape

FIRST_CHANNEL = {2: 0, 5: 1, 6: 0}
"""Number of the first extent of a fused projection that is convolved, by the count of extents that
it writes: x z (Mamba-1), z x B C dt (Mamba-2), q k v z b a (delta).
"""


LEAST_LENGTH = 1e-6
"""Added to the square of a query or key before it is normalised to length one."""


def causal_convolution(
    place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
) -> Values:
    """Depthwise causal convolution over the sequence, followed by silu.

    y_t = silu(sum over i of w_i x_(t - taps + 1 + i) + b), zeros before the sequence.

    Inputs begin with the sequence (`OperatorShare.key_positions`); outputs are those of the share's
    own positions.
    """
    count = len(place.operator.writes)
    start = FIRST_CHANNEL[len(inputs[0])]
    names = [p.name for p in place.operator.parameters]
    outputs = []
    for i in range(count):
        taps = weights[names[i]].unsqueeze(1)
        bias = weights[names[count + i]] if len(names) > count else None
        x = functional.pad(inputs[0][start + i].transpose(1, 2), (taps.shape[-1] - 1, 0))
        outputs.append(
            functional.silu(functional.conv1d(x, taps, bias, groups=taps.shape[0]).transpose(1, 2))
        )
    return tuple(_own_rows(place, y) for y in outputs)


def state_space_scan(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """Outputs of the Mamba or delta-rule recurrence over the sequence, at the share's positions."""
    return (_own_rows(place, scan_from_state(place, inputs, weights, state=None)[0]),)


def scan_from_state(
    place: OperatorShare,
    inputs: tuple[Values, ...],
    weights: Weights,
    *,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the recurrence from a state: (outputs at all input positions, the state after them).

    Args:
        state: state before the first position, (samples, local heads or channels, ...) in the
            format of statistics; None = the sequence begins.
    """
    parameters = parameters_by_role(place.operator, weights)
    outputs, last_state = _recurrence(
        place,
        tuple(tuple(at_least_float32(value) for value in values) for values in inputs),
        parameters,
        state,
    )
    return outputs.to(inputs[0][0].dtype), last_state


_Scanned = tuple[torch.Tensor, torch.Tensor]
"""(outputs, last state)."""


def _recurrence(
    place: OperatorShare,
    inputs: tuple[Values, ...],
    parameters: Weights,
    state: torch.Tensor | None,
) -> _Scanned:
    """Run Mamba-1, Mamba-2 or gated delta rule, as the inputs select: (outputs, last state)."""
    shape = place.operator.scan
    assert shape is not None
    if len(inputs) == 3:
        return _mamba1(inputs[0][0], inputs[1][0], inputs[2][1], inputs[2][2], parameters, state)
    heads = torch.arange(*place.heads, device=inputs[0][0].device)
    if shape.delta:
        first_group = place.reads[0][0] // shape.state
        return _gated_delta_rule(
            shape,
            heads * shape.groups // shape.heads - first_group,
            inputs[0],
            (inputs[1][4], inputs[1][5]),
            parameters,
            state,
        )
    first_group = place.reads[1][0] // shape.state
    return _mamba2(
        shape,
        heads * shape.groups // shape.heads - first_group,
        inputs[0],
        inputs[1][4],
        parameters,
        state,
        limits=place.settings.step_limits,
    )


def _mamba2(
    shape: ScanShape,
    groups: torch.Tensor,
    streams: Values,
    steps: torch.Tensor,
    parameters: Weights,
    state: torch.Tensor | None,
    *,
    limits: tuple[float, float],
) -> _Scanned:
    """Mamba-2 recurrence in chunks: (outputs, last state).

    S_t = exp(dt_t A) S_(t-1) + dt_t x_t B_t, y_t = S_t C_t + D x_t (Dao and Gu 2024, arXiv
    2405.21060, section 6).

    Args:
        groups: local group of B and C that each local head reads.
        streams: x, B, C.
        steps: dt before its bias and softplus.
        limits: minimum and maximum dt.
    """
    x = streams[0].unflatten(-1, (-1, shape.head_dim))
    b, c = (stream.unflatten(-1, (-1, shape.state))[:, :, groups] for stream in streams[1:3])
    dt = functional.softplus(steps + parameters["dt_bias"]).clamp(*limits)
    decay = -parameters["a_log"].exp() * dt
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
        is_later = torch.ones((size, size), dtype=torch.bool, device=x.device).triu(1).unsqueeze(-1)
        # (samples, t, s, heads): the share of the input at s that remains at t.
        decay_between = (
            (total.unsqueeze(2) - total.unsqueeze(1)).masked_fill(is_later, -torch.inf).exp()
        )
        products = torch.einsum("nthk,nshk->ntsh", cs, bs) * decay_between * dts.unsqueeze(1)
        inside = torch.einsum("ntsh,nshp->nthp", products, xs)
        outputs.append(
            inside + torch.einsum("nthk,nhpk->nthp", cs * total.exp().unsqueeze(-1), state)
        )
        decay_to_end = ((total[:, -1:] - total).exp() * dts).unsqueeze(-1)
        state = state * total[:, -1].exp()[..., None, None] + torch.einsum(
            "nshp,nshk->nhpk", xs * decay_to_end, bs
        )
    y = torch.cat(outputs, dim=1) if outputs else x
    return (y + parameters["d"].unsqueeze(-1) * x).flatten(-2), state


def _mamba1(
    x: torch.Tensor,
    steps: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    parameters: Weights,
    state: torch.Tensor | None,
) -> _Scanned:
    """Mamba-1 recurrence, token by token with a state for each channel: (outputs, last state).

    Gu and Dao 2023 (arXiv 2312.00752), section 3.2.
    """
    rates, dt = -parameters["a_log"].exp(), functional.softplus(steps)
    state = x.new_zeros((x.shape[0], x.shape[2], b.shape[-1])) if state is None else state
    outputs = []
    for t in range(x.shape[1]):
        state = (dt[:, t].unsqueeze(-1) * rates).exp() * state + (dt[:, t] * x[:, t]).unsqueeze(
            -1
        ) * b[:, t].unsqueeze(1)
        outputs.append((state * c[:, t].unsqueeze(1)).sum(-1))
    return (torch.stack(outputs, dim=1) if outputs else x) + parameters["d"] * x, state


def _gated_delta_rule(
    shape: ScanShape,
    groups: torch.Tensor,
    streams: Values,
    gates: tuple[torch.Tensor, torch.Tensor],
    parameters: Weights,
    state: torch.Tensor | None,
) -> _Scanned:
    """Gated delta rule, token by token: (outputs, last state).

    S_t = a_t S_(t-1) + k_t (b_t (v_t - a_t S_(t-1) k_t)), y_t = S_t q_t (Yang et al. 2024, arXiv
    2412.06464, equation 10).

    a = exp(-exp(a_log) softplus(decay + dt_bias)), b = sigmoid(strength); queries and keys have
    length one, queries over sqrt(width).

    Args:
        gates: strengths b and decays, before sigmoid and softplus.
    """
    strengths, decays = gates
    heads = (stream.unflatten(-1, (-1, shape.state))[:, :, groups] for stream in streams[:2])
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LEAST_LENGTH) for x in heads)
    v = streams[2].unflatten(-1, (-1, shape.head_dim))
    keep = (-parameters["a_log"].exp() * functional.softplus(decays + parameters["dt_bias"])).exp()
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


def _own_rows(place: OperatorShare, y: torch.Tensor) -> torch.Tensor:
    """Outputs at the share's own positions; StrategyError if earlier positions are missing.

    Raises:
        StrategyError: positions before them are missing (rule ``execute.scan``).
    """
    input_positions = local_key_positions(place)
    if input_positions == place.positions == ((0, y.shape[1]),):
        return y
    if input_positions != ((0, y.shape[1]),):
        raise StrategyError(
            f"{place.operator.name} does not see its sequence from the start",
            hint="give the operator all positions before its own",
            rule="execute.scan",
        )
    return y.index_select(1, index_tensor(place.positions, like=y))
