"""RMSNorm and LayerNorm over a full width, by head, or over a width that is cut.

Sources: Zhang and Sennrich 2019 (arXiv 1910.07467); Ba et al. 2016 (arXiv 1607.06450).
"""

from __future__ import annotations

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.operator_collectives import all_reduce, group_members
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
    input_gradients,
    keep_extents,
    require_gradient,
)
from shardwright.execute.numerics.norms.fused_norms import (
    fused_norm,
    fused_norm_input_grad,
    fused_norm_weight_grad,
    is_fused_norm,
)
from shardwright.execute.numerics.norms.norm_groups_gain_and_bias_of_one_extent import ExtentNorm
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """RMSNorm or LayerNorm y = (x - mean) / sqrt(var + eps) x gain + bias, by blocks.

    Without a bias the mean is 0, unless the settings centre norms of the stream.

    The first `reads` extents are normed, each over blocks as wide as its gain (without a gain: one
    head), or in as many equal parts as the operator has groups. Extents after them pass through. An
    extent that the input lacks, normed or not, is read from the last extent that it has (shared
    keys and values). Where a block is cut over `groups["hidden"]`, its sums are reduced, forward
    and backward; a head that several devices hold counts once.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Normalise the extents, with sums reduced over devices where blocks are cut.

        See `Numerics`.
        """
        (values,) = inputs
        outputs, statistics = [], []
        parts = _parts(place)
        for part in parts:
            extent = values[_source(part.index, values)]
            if is_fused_norm(part, extent, weights):
                y, mean, scale = fused_norm(
                    part, _blocks(extent, part), weights, eps=place.settings.eps
                )
                outputs.append(y.reshape(extent.shape))
                statistics += [mean, scale, scale.new_ones(1)]
                continue
            x = _blocks(at_least_float32(extent), part)
            copies = yield from _copies(place, part, x)
            mean, scale = yield from _statistics(place, part, x, copies)
            y = _centred(x, mean, part) * scale
            outputs.append(
                _apply_gain_and_bias(y, part, weights).reshape(extent.shape).to(extent.dtype)
            )
            statistics += [mean, scale, copies if copies is not None else x.new_ones(1)]
        passed_through = [
            values[_source(i, values)] for i in range(len(parts), len(place.operator.writes))
        ]
        return (*outputs, *passed_through), SavedTensors(
            inputs=(keep_extents(values, *(_source(norm.index, values) for norm in parts)),),
            own=tuple(statistics),
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradients of the inputs, with sums reduced over devices where blocks are cut.

        See `Numerics`.
        """
        (values,) = saved.inputs
        extent_grads: dict[int, torch.Tensor] = {}
        parts = _parts(place)
        for part in parts:
            source = _source(part.index, values)
            x = values[source]
            if is_fused_norm(part, x, weights):
                _add_extent_gradient(
                    extent_grads,
                    source,
                    fused_norm_input_grad(
                        part,
                        _blocks(x, part),
                        require_gradient(grads[part.index]),
                        _saved_statistics(part, saved),
                        weights,
                    ),
                )
                continue
            y, scale, copies = _normed(part, saved)
            g = at_least_float32(require_gradient(grads[part.index])).reshape(y.shape)
            g = g * at_least_float32(weights[part.gain]) if part.gain else g
            both = (
                (part.group_sums(g * y), part.group_sums(g))
                if part.centred
                else (part.group_sums(g * y),)
            )
            sums = torch.cat(both, dim=-1)
            if part.split:
                sums = yield from all_reduce(
                    place, "hidden", sums, purpose=f"backward.{part.index}"
                )
            mean = sums / part.size
            share = part.spread(mean[..., : part.groups])
            dx = torch.addcmul(g, y, share / copies if part.split else share, value=-1)
            if part.centred:
                dx -= part.spread(mean[..., part.groups :])
            _add_extent_gradient(extent_grads, source, dx.mul_(scale).reshape(x.shape).to(x.dtype))
        for i in range(len(parts), len(place.operator.writes)):
            _add_extent_gradient(extent_grads, _source(i, values), require_gradient(grads[i]))
        return (input_gradients(values, extent_grads),)

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """Gradients of gains and biases.

        See `Numerics`.
        """
        yield from ()
        weight_grads: dict[str, torch.Tensor] = {}
        for part in _parts(place):
            x = saved.inputs[0][_source(part.index, saved.inputs[0])]
            if is_fused_norm(part, x, weights):
                weight_grads |= fused_norm_weight_grad(
                    part,
                    _blocks(x, part),
                    require_gradient(grads[part.index]),
                    _saved_statistics(part, saved),
                    weights,
                )
                continue
            y, _, _ = _normed(part, saved)
            g = at_least_float32(require_gradient(grads[part.index])).reshape(y.shape)
            if part.gain:
                weight_grads[part.gain] = y.mul_(g).sum((0, 1, 2))
            if part.bias:
                weight_grads[part.bias] = g.sum((0, 1, 2))
        return {p.name: weight_grads[p.name] for p in place.operator.parameters if p.trainable}


def _source(index: int, values: Values) -> int:
    """Index of the value that extent `index` reads: its own, or the last where there are fewer."""
    return min(index, len(values) - 1)


def _add_extent_gradient(
    extent_grads: dict[int, torch.Tensor], source: int, gradient: torch.Tensor
) -> None:
    """Accumulate a gradient under the number of the input extent that it belongs to."""
    extent_grads[source] = extent_grads[source] + gradient if source in extent_grads else gradient


def _parts(place: OperatorShare) -> list[ExtentNorm]:
    """Norm of each input extent on this device; StrategyError if a cut block has no group."""
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
        # A member of the group may hold the whole block; it takes part in the reduction like the
        # others.
        split = block == extent.size and extent.runs > 1 and bool(group_members(place, "hidden"))
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
            ExtentNorm(
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


def _copies(place: OperatorShare, part: ExtentNorm, x: torch.Tensor) -> Task[torch.Tensor | None]:
    """(local elements,) number of norm-group devices that hold each; None if each has one."""
    extent = place.operator.reads[part.index]
    if not part.split or extent.quantum == 1:
        return None
    low, high = (end // extent.quantum for end in place.reads[part.index])
    is_held = x.new_zeros(extent.runs)
    is_held[low:high] = 1
    counts = yield from all_reduce(place, "hidden", is_held, purpose=f"copies.{part.index}")
    return counts[low:high].repeat_interleave(extent.quantum)


def _statistics(
    place: OperatorShare, part: ExtentNorm, x: torch.Tensor, copies: torch.Tensor | None
) -> Task[tuple[torch.Tensor, torch.Tensor]]:
    """(mean, 1 / sqrt(var + eps)) of every block; mean 0 where it is not subtracted."""
    eps = place.settings.eps
    if not part.split:
        mean = part.spread(part.group_sums(x)) / part.size if part.centred else x.new_zeros(1)
        return mean, part.spread(
            (part.group_sums(_centred(x, mean, part).square()) / part.size + eps).rsqrt()
        )
    counted = x if copies is None else x / copies
    sums = torch.cat(
        (part.group_sums(x * counted), part.group_sums(counted))
        if part.centred
        else (part.group_sums(x * counted),),
        dim=-1,
    )
    sums = yield from all_reduce(place, "hidden", sums, purpose=f"forward.{part.index}")
    mean = sums[..., part.groups :] / part.size if part.centred else x.new_zeros(1)
    scale = (sums[..., : part.groups] / part.size - mean.square() + eps).rsqrt()
    return part.spread(mean) if part.centred else mean, part.spread(scale)


def _apply_gain_and_bias(y: torch.Tensor, part: ExtentNorm, weights: Weights) -> torch.Tensor:
    """Multiply by the gain and add the bias, if the norm has them."""
    y = y * at_least_float32(weights[part.gain]) if part.gain else y
    return y + at_least_float32(weights[part.bias]) if part.bias else y


def _blocks(x: torch.Tensor, part: ExtentNorm) -> torch.Tensor:
    """Reshape to (samples, positions, blocks, elements that are normed together)."""
    return x.unsqueeze(-2) if part.split else x.unflatten(-1, (-1, part.block))


def _saved_statistics(
    part: ExtentNorm, saved: SavedTensors
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(mean, 1 / std, number of devices that hold each element) that forward saved."""
    mean, scale, copies = saved.own[3 * part.index : 3 * part.index + 3]
    return mean, scale, copies


def _normed(
    part: ExtentNorm, saved: SavedTensors
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(input normed before gain and bias, its 1 / std, number of devices with each element)."""
    mean, scale, copies = _saved_statistics(part, saved)
    x = _blocks(at_least_float32(saved.inputs[0][_source(part.index, saved.inputs[0])]), part)
    return _centred(x, mean, part) * scale, scale, copies


def _centred(x: torch.Tensor, mean: torch.Tensor, part: ExtentNorm) -> torch.Tensor:
    """The input minus its mean, where the norm subtracts it."""
    return x - mean if part.centred else x
