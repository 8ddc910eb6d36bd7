"""RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467) and LayerNorm (Ba et al. 2016, arXiv
1607.06450), whole, by head, or split.
"""

from __future__ import annotations

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.group_calls import members, reduced
from shardwright.execute.numerics.base.local_tensors import fine, given, only, returned
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.norms.fused_norms import (
    fused,
    fused_input_grad,
    fused_weight_grad,
    is_fused,
)
from shardwright.execute.numerics.norms.norm_extent import NormPart
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """y = (x - mean) / sqrt(var + eps) x gain + bias; without a bias mean is 0, unless the settings
    centre norms of the stream.

    The first `reads` extents are normed, each over blocks as wide as its gain (without a gain: one
    head), or in so many equal parts as the operator has groups, and those that follow pass through.
    A value that the input lacks, normed or not, is the last extent that it has (shared keys and
    values). Where a block is cut over `groups["hidden"]`, its sums are reduced, forward and
    backward; a head that several devices hold counts once.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`."""
        (values,) = inputs
        outputs, own = [], []
        parts = _parts(place)
        for part in parts:
            whole = values[_source(part.index, values)]
            if is_fused(part, whole, weights):
                y, mean, scale = fused(part, _blocks(whole, part), weights, eps=place.settings.eps)
                outputs.append(y.reshape(whole.shape))
                own += [mean, scale, scale.new_ones(1)]
                continue
            x = _blocks(fine(whole), part)
            copies = yield from _copies(place, part, x)
            mean, scale = yield from _statistics(place, part, x, copies)
            y = _centred(x, mean, part) * scale
            outputs.append(_affine(y, part, weights).reshape(whole.shape).to(whole.dtype))
            own += [mean, scale, copies if copies is not None else x.new_ones(1)]
        passed = [values[_source(i, values)] for i in range(len(parts), len(place.operator.writes))]
        return (*outputs, *passed), SavedTensors(
            inputs=(only(values, *(_source(p.index, values) for p in parts)),), own=tuple(own)
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        (values,) = saved.inputs
        found: dict[int, torch.Tensor] = {}
        parts = _parts(place)
        for part in parts:
            source = _source(part.index, values)
            x = values[source]
            if is_fused(part, x, weights):
                _added(
                    found,
                    source,
                    fused_input_grad(
                        part,
                        _blocks(x, part),
                        given(grads[part.index]),
                        _kept(part, saved),
                        weights,
                    ),
                )
                continue
            y, scale, copies = _normed(part, saved)
            g = fine(given(grads[part.index])).reshape(y.shape)
            g = g * fine(weights[part.gain]) if part.gain else g
            both = (part.summed(g * y), part.summed(g)) if part.centred else (part.summed(g * y),)
            sums = torch.cat(both, dim=-1)
            if part.split:
                sums = yield from reduced(place, "hidden", sums, what=f"backward.{part.index}")
            mean = sums / part.size
            share = part.spread(mean[..., : part.groups])
            dx = torch.addcmul(g, y, share / copies if part.split else share, value=-1)
            if part.centred:
                dx -= part.spread(mean[..., part.groups :])
            _added(found, source, dx.mul_(scale).reshape(x.shape).to(x.dtype))
        for i in range(len(parts), len(place.operator.writes)):
            _added(found, _source(i, values), given(grads[i]))
        return (returned(values, found),)

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        found: dict[str, torch.Tensor] = {}
        for part in _parts(place):
            x = saved.inputs[0][_source(part.index, saved.inputs[0])]
            if is_fused(part, x, weights):
                found |= fused_weight_grad(
                    part, _blocks(x, part), given(grads[part.index]), _kept(part, saved), weights
                )
                continue
            y, _, _ = _normed(part, saved)
            g = fine(given(grads[part.index])).reshape(y.shape)
            if part.gain:
                found[part.gain] = y.mul_(g).sum((0, 1, 2))
            if part.bias:
                found[part.bias] = g.sum((0, 1, 2))
        return {p.name: found[p.name] for p in place.operator.parameters if p.trainable}


def _source(index: int, values: Values) -> int:
    """Which of the values an extent is read from."""
    return min(index, len(values) - 1)


def _added(found: dict[int, torch.Tensor], source: int, gradient: torch.Tensor) -> None:
    """Add a gradient to that of its source."""
    found[source] = found[source] + gradient if source in found else gradient


def _parts(place: OperatorShare) -> list[NormPart]:
    operator = place.operator
    biased = len(operator.parameters) == 2 and len(operator.reads) == 1
    parts = []
    for i, extent in enumerate(operator.reads):
        gain = operator.parameters[i] if i < len(operator.parameters) else None
        block = (
            gain.extents[0].size
            if gain is not None
            else extent.quantum
            if extent.quantum > 1
            else extent.size
        )
        low, high = place.reads[i]
        # A group may have a member with all of the block: it takes part like the others.
        split = block == extent.size and extent.runs > 1 and bool(members(place, "hidden"))
        if not split and (high - low) % block:
            raise StrategyError(
                f"{operator.name} norms {block} elements of which the device has {high - low}",
                hint="a norm over a cut width needs the devices of the other parts",
                rule="execute.norm",
            )
        bias = operator.parameters[1].name if biased else ""
        name = gain.name if gain is not None else ""
        local, groups = high - low if split else block, operator.groups
        parts.append(
            NormPart(
                index=i,
                block=local,
                size=block // groups,
                split=split,
                gain=name,
                bias=bias,
                centred=bool(bias)
                or (place.settings.norms_centred and operator.klass is not OperatorClass.ATTN),
                first=low if split else 0,
                groups=groups,
            )
        )
    return parts


def _copies(place: OperatorShare, part: NormPart, x: torch.Tensor) -> Task[torch.Tensor | None]:
    """How many devices of the group hold each local element; None where no run can have copies (or
    nothing is split).
    """
    extent = place.operator.reads[part.index]
    if not part.split or extent.quantum == 1:
        return None
    low, high = (end // extent.quantum for end in place.reads[part.index])
    held = x.new_zeros(extent.runs)
    held[low:high] = 1
    counts = yield from reduced(place, "hidden", held, what=f"copies.{part.index}")
    return counts[low:high].repeat_interleave(extent.quantum)


def _statistics(
    place: OperatorShare, part: NormPart, x: torch.Tensor, copies: torch.Tensor | None
) -> Task[tuple[torch.Tensor, torch.Tensor]]:
    """(mean, 1 / sqrt(var + eps)) of every block; mean 0 where it is not taken away."""
    eps = place.settings.eps
    if not part.split:
        mean = part.spread(part.summed(x)) / part.size if part.centred else x.new_zeros(1)
        return mean, part.spread(
            (part.summed(_centred(x, mean, part).square()) / part.size + eps).rsqrt()
        )
    counted = x if copies is None else x / copies
    sums = torch.cat(
        (part.summed(x * counted), part.summed(counted))
        if part.centred
        else (part.summed(x * counted),),
        dim=-1,
    )
    sums = yield from reduced(place, "hidden", sums, what=f"forward.{part.index}")
    mean = sums[..., part.groups :] / part.size if part.centred else x.new_zeros(1)
    scale = (sums[..., : part.groups] / part.size - mean.square() + eps).rsqrt()
    return part.spread(mean) if part.centred else mean, part.spread(scale)


def _affine(y: torch.Tensor, part: NormPart, weights: Weights) -> torch.Tensor:
    y = y * fine(weights[part.gain]) if part.gain else y
    return y + fine(weights[part.bias]) if part.bias else y


def _blocks(x: torch.Tensor, part: NormPart) -> torch.Tensor:
    """(samples, positions, blocks, elements of a block)."""
    return x.unsqueeze(-2) if part.split else x.unflatten(-1, (-1, part.block))


def _kept(part: NormPart, saved: SavedTensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(mean, scale, copies of each element) that forward kept."""
    mean, scale, copies = saved.own[3 * part.index : 3 * part.index + 3]
    return mean, scale, copies


def _normed(part: NormPart, saved: SavedTensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(normed input by blocks, its scale, copies of each element)."""
    mean, scale, copies = _kept(part, saved)
    x = _blocks(fine(saved.inputs[0][_source(part.index, saved.inputs[0])]), part)
    return _centred(x, mean, part) * scale, scale, copies


def _centred(x: torch.Tensor, mean: torch.Tensor, part: NormPart) -> torch.Tensor:
    """The input less its mean, where that is taken away."""
    return x - mean if part.centred else x
