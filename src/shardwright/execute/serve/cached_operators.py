"""Operators over a batch of unlike positions: what looks at positions or keeps something runs part
by part, everything else at once.

The numerics are those of training (`execute.numerics`): a part is one sample of the positions that
it has, and what it looks back on comes from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.attention.attention_operator import Attention
from shardwright.execute.numerics.base.group_calls import all_reduce
from shardwright.execute.numerics.base.operator_protocol import (
    Forward,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.losses.logit_scaling import scaled_logits
from shardwright.execute.numerics.positions.rotary_angles import lengths_differ_above
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.numerics.state_space.state_space_mixers import (
    FIRST_CHANNEL,
    causal_convolution,
    scan_from_state,
)
from shardwright.execute.serve.cache_blocks import reach_of
from shardwright.execute.serve.device_cache import DeviceCache, Spot
from shardwright.execute.serve.iteration_batch import Part, Rows
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorKind


class Absorb(StrEnum):
    """The tokens whose attention reads latents directly instead of keys and values expanded from
    them: none, those of one-token parts, or all.
    """

    NEVER = "never"
    DECODE = "decode"
    ALWAYS = "always"


@dataclass(slots=True)
class ServedLayer:
    """A layer of a device in an iteration.

    Args:
        run, number: of the model.
        logits: gets what a head makes: (first row, rows of all the vocabulary).
        up: of latent attention, once known: what makes keys and values of latents, and with which
            weights.
    """

    run: int
    number: int
    rows: Rows
    cache: DeviceCache
    absorb: Absorb
    logits: list[tuple[int, torch.Tensor]]
    up: tuple[OperatorShare, Weights] | None = None

    def spot(self, place: OperatorShare, number: int = 0) -> Spot:
        """The cache key under which an operator keeps its tensor `number`."""
        return Spot(run=self.run, layer=self.number, operator=place.operator.name, number=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A part of the batch that a device has: `at` of its rows, and the operator's share of it as a
    sequence of its own.
    """

    part: Part
    at: slice
    share: OperatorShare

    def of(self, inputs: tuple[Values, ...]) -> tuple[Values, ...]:
        """Its rows as one sample, (1, tokens, elements)."""
        return tuple(tuple(v[self.at].transpose(0, 1) for v in values) for values in inputs)


def parts_here(layer: ServedLayer, place: OperatorShare) -> Iterator[Here]:
    """The parts whose rows a device has."""
    for low, high in place.samples:
        for row, part in layer.rows.parts:
            if low <= row < high:
                positions = ((part.past, part.end),)
                share = replace(place, samples=((0, 1),), positions=positions, length=part.end)
                yield Here(part=part, at=slice(row - low, row - low + part.tokens), share=share)


def require_lasting_turns(here: Here) -> None:
    """Raise where keys in the cache would have to be turned again because their sequence has grown.

    Raises:
        StrategyError: a request has more positions than those up to which rotary positions do not
        differ with length.
    """
    most = lengths_differ_above(here.share.settings)
    if (
        here.share.operator.kind is OperatorKind.ROTARY
        and most is not None
        and here.part.end > most
    ):
        raise StrategyError(
            f"a request of {here.part.end} tokens: beyond {most:g} this model's rotary positions"
            " differ with the length of the sequence",
            hint="serve requests up to that length",
            rule="serve.rotary",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPart:
    """Runs something for each part, and puts what it makes at the part's rows; zeros at rows of no
    part.
    """

    layer: ServedLayer
    one: Callable[[Here, tuple[Values, ...], Weights], Task[Values]]

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Forward`."""
        like, rows = (
            next(v for values in inputs for v in values),
            sum(high - low for low, high in place.samples),
        )
        dtype = (
            next((w.dtype for w in weights.values()), torch.get_default_dtype())
            if not like.is_floating_point()
            else like.dtype
        )
        outputs = tuple(
            torch.zeros((rows, 1, high - low), dtype=dtype, device=like.device)
            for low, high in place.writes
        )
        for here in parts_here(self.layer, place):
            made = yield from self.one(here, here.of(inputs), weights)
            for whole, values in zip(outputs, made, strict=True):
                whole[here.at] = values.transpose(0, 1)
        return outputs, SavedTensors(inputs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An operator that depends on the tokens' positions alone: rotary positions, and a learned
    table of positions.
    """

    inner: Forward

    def one(self, here: Here, inputs: tuple[Values, ...], weights: Weights) -> Task[Values]:
        """Of a part."""
        require_lasting_turns(here)
        made, _ = yield from self.inner.forward(here.share, inputs, weights)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedCore:
    """Attention of a part to its own keys and to those in the request's blocks."""

    layer: ServedLayer

    def one(self, here: Here, inputs: tuple[Values, ...], weights: Weights) -> Task[Values]:
        """Of a part."""
        query, *own = [v for values in inputs for v in values][:3]
        assert here.share.operator.attention is not None
        reach, cache = reach_of(here.share.operator.attention), self.layer.cache
        found = []
        for index, values in enumerate(own):
            spot = self.layer.spot(here.share, index)
            cache.put(
                reach, spot, request=here.part.request, start=here.part.past, values=values[0]
            )
            found.append(cache.get(reach, spot, request=here.part.request, end=here.part.end))
        keys = ((cache.first(reach, here.part.request), here.part.end),)
        made, _ = yield from Attention().forward(
            replace(here.share, key_positions=keys), ((query, *found),), weights
        )
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedConv:
    """A convolution of a part behind the last inputs of the request, one fewer than it has taps."""

    layer: ServedLayer

    def one(self, here: Here, inputs: tuple[Values, ...], weights: Weights) -> Task[Values]:
        """Of a part."""
        yield from ()
        operator, request = here.share.operator, here.part.request
        start = FIRST_CHANNEL[len(inputs[0])]
        taps = weights[operator.parameters[0].name].shape[-1]
        known = min(here.part.past, taps - 1)
        values = list(inputs[0])
        for index in range(len(operator.writes)):
            place = request, self.layer.spot(here.share, index)
            if known:
                values[start + index] = torch.cat(
                    [self.layer.cache.states[place], values[start + index]], dim=1
                )
            self.layer.cache.states[place] = values[start + index][
                :, -min(here.part.end, taps - 1) :
            ].clone()
        own, seen = ((known, known + here.part.tokens),), ((0, known + here.part.tokens),)
        return causal_convolution(
            replace(here.share, positions=own, key_positions=seen), (tuple(values),), weights
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedScan:
    """A recurrence of a part from the request's state on."""

    layer: ServedLayer

    def one(self, here: Here, inputs: tuple[Values, ...], weights: Weights) -> Task[Values]:
        """Of a part."""
        yield from ()
        place = here.part.request, self.layer.spot(here.share)
        state = self.layer.cache.states[place] if here.part.past else None
        made, self.layer.cache.states[place] = scan_from_state(
            here.share, inputs, weights, state=state
        )
        return (made,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """In the place of a loss: the logits of all rows, whole, on every device of the head."""

    layer: ServedLayer

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Forward`. What it writes is nothing."""
        own, (low, high) = scaled_logits(inputs[0][0], place.settings), place.reads[0]
        whole = own.new_zeros((*own.shape[:2], place.operator.reads[0].size))
        whole[..., low:high] = own
        whole = yield from all_reduce(place, "vocab", whole, purpose="logits")
        self.layer.logits.append((place.samples[0][0], whole[:, 0]))
        return (whole.new_zeros((*whole.shape[:2], 1)),), SavedTensors(inputs=())


def cached(layer: ServedLayer, operator: Operator) -> Forward:
    """The forward pass over a batch of an operator that is not part of latent attention."""
    if operator.kind is OperatorKind.LOSS:
        return Logits(layer=layer)
    if operator.kind is OperatorKind.ATTENTION:
        return ByPart(layer=layer, one=CachedCore(layer=layer).one)
    if operator.kind is OperatorKind.CONV:
        return ByPart(layer=layer, one=CachedConv(layer=layer).one)
    if operator.kind is OperatorKind.SCAN:
        return ByPart(layer=layer, one=CachedScan(layer=layer).one)
    by_position = operator.kind is OperatorKind.ROTARY or (
        operator.kind is OperatorKind.EMBEDDING and len(operator.parameters) > 1
    )
    inner = numerics_of(operator)
    return ByPart(layer=layer, one=Placed(inner=inner).one) if by_position else inner
