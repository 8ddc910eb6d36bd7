"""Operators as a textbook writes them, whole and for torch.autograd: what the numerics are held
against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log

import torch
from torch.nn import functional

from shardwright.model.ir.operator import Mask, Operator, OperatorClass, OperatorKind

Values = tuple[torch.Tensor, ...]
Weights = Mapping[str, torch.Tensor]
EPS, BASE = 1e-5, 10000.0


def linear(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    x = torch.cat([v[0] for v in inputs], -1)
    n = len(o.writes)
    named = [w[p.name] for p in o.parameters]
    biases = (
        named[n : 2 * n] if len(named) >= 2 * n and ".bias" in o.parameters[n].name else [None] * n
    )
    return tuple(functional.linear(x, named[i].T, biases[i]) for i in range(n))


def norm(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    (values,) = inputs
    result = []
    for i, extent in enumerate(o.reads):
        x = values[i]
        if len(o.parameters) == 2 and len(o.reads) == 1:
            result.append(
                functional.layer_norm(
                    x, x.shape[-1:], w[o.parameters[0].name], w[o.parameters[1].name], EPS
                )
            )
            continue
        gain = (
            w[o.parameters[i].name] if o.parameters else torch.ones(extent.quantum, dtype=x.dtype)
        )
        gain = gain.reshape(o.groups, -1) if o.groups > 1 else gain
        heads = x.reshape(*x.shape[:-1], -1, gain.shape[-1])
        if o.groups > 1:
            result.append(
                (functional.rms_norm(heads, gain.shape[-1:], None, EPS) * gain).reshape(x.shape)
            )
            continue
        result.append(functional.rms_norm(heads, gain.shape, gain, EPS).reshape(x.shape))
    while len(result) < len(o.writes):
        result.append(values[min(len(result), len(values) - 1)])
    return tuple(result)


def _rotate(x: torch.Tensor, width: int) -> torch.Tensor:
    """By complex numbers: the pair (i, i + half) is one."""
    half = width // 2
    heads = x.reshape(*x.shape[:-1], -1, width)
    z = torch.complex(heads[..., :half], heads[..., half:])
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * BASE ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    z = z * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([z.real, z.imag], -1).reshape(x.shape)


def rotary(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    width = o.reads[0].quantum
    if len(inputs) == 1:
        q, k = inputs[0][:2]
        return _rotate(q, width), _rotate(k, width), inputs[0][2] if len(inputs[0]) > 2 else k
    (q,), (plain, v), (_, rope) = inputs
    r = rope.shape[-1]
    queries = [
        torch.cat([h[..., : width - r], _rotate(h[..., width - r :], r)], -1)
        for h in q.split(width, -1)
    ]
    turned = _rotate(rope, r)
    keys = [torch.cat([h, turned], -1) for h in plain.split(width - r, -1)]
    return torch.cat(queries, -1), torch.cat(keys, -1), v


def attention(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    """One head, one query at a time."""
    a = o.attention
    q, k, v = [x for values in inputs for x in values][:3]
    slope = [2.0 ** (-8.0 * (h + 1) / a.heads) for h in range(a.heads)]
    outputs = []
    for h in range(a.heads):
        g = h // (a.heads // a.kv_heads)
        qh = q[..., h * a.head_dim : (h + 1) * a.head_dim]
        kh = k[..., g * a.head_dim : (g + 1) * a.head_dim]
        vh = v[..., g * a.value_dim : (g + 1) * a.value_dim]
        rows = []
        for t in range(q.shape[1]):
            seen = [u for u in range(k.shape[1]) if _sees(a, t, u)]
            scores = (qh[:, t : t + 1] * kh[:, seen]).sum(-1) / a.head_dim**0.5
            if a.soft_cap:
                scores = a.soft_cap * torch.tanh(scores / a.soft_cap)
            if a.alibi:
                scores = scores - slope[h] * torch.tensor(
                    [abs(t - u) for u in seen], dtype=scores.dtype
                )
            if o.biased:
                table = w[o.parameters[-1].name]
                scores = (
                    scores
                    + table[
                        [_row(t - u, len(table), causal=a.mask is Mask.CAUSAL) for u in seen], h
                    ]
                )
            if a.sinks:
                sink = w[o.parameters[0].name][h].expand(len(scores), 1)
                p = torch.softmax(torch.cat([scores, sink], -1), -1)[:, :-1]
            else:
                p = torch.softmax(scores, -1)
            rows.append((p[..., None] * vh[:, seen]).sum(1))
        outputs.append(torch.stack(rows, 1))
    return (torch.cat(outputs, -1),)


def _row(distance: int, rows: int, *, causal: bool, reach: float = 128.0) -> int:
    """Of a table of biases, as Raffel et al. 2020 (arXiv 1910.10683) say it: later keys have the
    second half of the rows."""
    if not causal:
        return _row(abs(distance), rows // 2, causal=True) + (rows // 2 if distance < 0 else 0)
    near = rows // 2
    if distance < near:
        return distance
    return min(near + int(log(distance / near) / log(reach / near) * (rows - near)), rows - 1)


def _sees(a: object, t: int, u: int) -> bool:
    if a.mask is Mask.CAUSAL and u > t:
        return False
    if a.window and a.chunked:
        return t // a.window == u // a.window
    return not a.window or abs(t - u) < a.window


def activation(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    if len(inputs) == 1:
        x = inputs[0]
        if o.clamped:
            gate, up = x[0].minimum(torch.tensor(7.0)), x[1].clamp(-7.0, 7.0)
            return (gate / (1 + (-1.702 * gate).exp()) * (1 + up),)
        return (
            functional.silu(x[0]) * x[1] if o.gated else functional.gelu(x[0], approximate="tanh"),
        )
    x, other = inputs[0][0], inputs[1]
    gate = {
        1: other[0],
        2: other[-1],
        4: other[-1],
        5: other[0],
        6: other[3] if len(other) == 6 else None,
    }[len(other)]
    act = functional.silu(gate) if o.klass is OperatorClass.SSM else torch.sigmoid(gate)
    return (x * act.repeat_interleave(x.shape[-1] // act.shape[-1], -1),)


def residual(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    return (sum(v[0] for v in inputs),)


def embedding(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    ids = inputs[0][0][..., 0]
    y = functional.embedding(ids, w[o.parameters[0].name])
    for p in o.parameters[1:]:
        if p.name.endswith("positions"):
            y = y + w[p.name][: ids.shape[1]]
        if p.name.endswith("types"):
            y = y + w[p.name][0]
    return (y,)


def loss(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    logits, labels = inputs[0][0], inputs[-1][0][..., 0]
    each = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=-1
    )
    return (each.reshape(*labels.shape, 1),)


def route(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    """Dense: (samples, positions, experts) with zeros where an expert is not chosen."""
    logits = inputs[0][0]
    named = {p.name.rpartition(".")[2]: w[p.name] for p in o.parameters}
    scores = torch.sigmoid(logits) if "correction" in named else torch.softmax(logits, -1)
    ranked = scores + named.get("correction", 0.0)
    if o.experts.groups:
        parts = ranked.chunk(o.experts.of_groups, -1)
        worth = torch.stack(
            [p.sort(-1).values[..., -2 if "correction" in named else -1 :].sum(-1) for p in parts],
            -1,
        )
        least = worth.sort(-1).values[..., -o.experts.groups]
        ranked = torch.cat(
            [
                torch.where((worth[..., i] >= least).unsqueeze(-1), p, -9.0)
                for i, p in enumerate(parts)
            ],
            -1,
        )
    chosen = ranked.topk(o.experts.topk, -1).indices
    mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
    dense = scores * mask / (scores * mask).sum(-1, keepdim=True)
    return (dense * named.get("expert_scale", 1.0),)


def permute(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    """Every token to every expert: (samples, positions, experts, elements); weighed at the end."""
    if o.name.endswith("unpermute"):
        return ((inputs[0][0] * inputs[1][0].unsqueeze(-1)).sum(-2),)
    return (inputs[0][0].unsqueeze(-2).expand(*inputs[0][0].shape[:-1], o.experts.experts, -1),)


def grouped_linear(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    n = len(o.writes)
    named = [w[p.name] for p in o.parameters]
    outputs = [torch.einsum("stei,eio->steo", inputs[0][0], m) for m in named[:n]]
    return (
        tuple(y + b for y, b in zip(outputs, named[n:], strict=True))
        if len(named) > n
        else tuple(outputs)
    )


def conv(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    n = len(o.writes)
    start = {2: 0, 5: 1, 6: 0}[len(inputs[0])]
    named = [w[p.name] for p in o.parameters]
    result = []
    for i in range(n):
        x, taps = inputs[0][start + i], named[i]
        rows = []
        for t in range(x.shape[1]):
            y = named[n + i] if len(named) > n else torch.zeros(x.shape[-1], dtype=x.dtype)
            for j in range(taps.shape[1]):
                if t - j >= 0:
                    y = y + taps[:, taps.shape[1] - 1 - j] * x[:, t - j]
            rows.append(functional.silu(y.expand(x.shape[0], -1)))
        result.append(torch.stack(rows, 1))
    return tuple(result)


def scan(o: Operator, inputs: tuple[Values, ...], w: Weights) -> Values:
    """Head by head, token after token."""
    s = o.scan
    named = {p.name.rpartition(".")[2]: w[p.name] for p in o.parameters}
    if s.delta:
        return (_delta(s, inputs, named),)
    outputs = []
    for h in range(s.heads):
        x = inputs[0][0][..., h * s.head_dim : (h + 1) * s.head_dim]
        if len(inputs) == 3:
            b, c, dt = inputs[2][1], inputs[2][2], functional.softplus(inputs[1][0][..., h])
        else:
            g = h // (s.heads // s.groups)
            b, c = (v[..., g * s.state : (g + 1) * s.state] for v in inputs[0][1:])
            dt = functional.softplus(inputs[1][4][..., h] + named["dt_bias"][h])
        state, rows = torch.zeros(x.shape[0], s.head_dim, s.state, dtype=x.dtype), []
        for t in range(x.shape[1]):
            keep = torch.exp(-dt[:, t, None] * named["a_log"][h].exp())
            state = (
                keep.reshape(keep.shape[0], 1, -1) * state
                + dt[:, t, None, None] * x[:, t, :, None] * b[:, t, None, :]
            )
            rows.append((state @ c[:, t, :, None])[..., 0] + named["d"][h] * x[:, t])
        outputs.append(torch.stack(rows, 1))
    return (torch.cat(outputs, -1),)


def _delta(s: object, inputs: tuple[Values, ...], named: Weights) -> torch.Tensor:
    """S_t = S (a (I - b k k^T)) + b v k^T with the state as value x key."""
    outputs = []
    for h in range(s.heads):
        g = h // (s.heads // s.groups)
        q, k = (v[..., g * s.state : (g + 1) * s.state] for v in inputs[0][:2])
        q, k = (v / (v.square().sum(-1, keepdim=True) + 1e-6).sqrt() for v in (q, k))
        v = inputs[0][2][..., h * s.head_dim : (h + 1) * s.head_dim]
        b = torch.sigmoid(inputs[1][4][..., h])
        a = torch.exp(
            -named["a_log"][h].exp()
            * functional.softplus(inputs[1][5][..., h] + named["dt_bias"][h])
        )
        state, rows = torch.zeros(v.shape[0], s.head_dim, s.state, dtype=v.dtype), []
        for t in range(v.shape[1]):
            kk = k[:, t, :, None] @ k[:, t, None, :]
            state = state @ (
                a[:, t, None, None] * (torch.eye(s.state, dtype=v.dtype) - b[:, t, None, None] * kk)
            )
            state = state + b[:, t, None, None] * v[:, t, :, None] @ k[:, t, None, :]
            rows.append((state @ q[:, t, :, None])[..., 0] / s.state**0.5)
        outputs.append(torch.stack(rows, 1))
    return torch.cat(outputs, -1)


REFERENCE: dict[OperatorKind, Callable[[Operator, tuple[Values, ...], Weights], Values]] = {
    OperatorKind.LINEAR: linear,
    OperatorKind.NORM: norm,
    OperatorKind.ROTARY: rotary,
    OperatorKind.ATTENTION: attention,
    OperatorKind.ACTIVATION: activation,
    OperatorKind.RESIDUAL: residual,
    OperatorKind.EMBEDDING: embedding,
    OperatorKind.LOSS: loss,
    OperatorKind.ROUTE: route,
    OperatorKind.PERMUTE: permute,
    OperatorKind.GROUPED_LINEAR: grouped_linear,
    OperatorKind.CONV: conv,
    OperatorKind.SCAN: scan,
}
