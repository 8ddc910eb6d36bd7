"""Operators over a batch of requests at different positions.

Operators that depend on positions, or keep tensors, run request by request; all others run on the
whole batch at once.

The numerics are those of training (`execute.numerics`): each part is one sample with its own
positions, and earlier keys and states come from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.attention.attention_operator import Attention
from shardwright.execute.numerics.base.operator_collectives import all_reduce
from shardwright.execute.numerics.base.operator_protocol import (
    Forward,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.losses.logit_scaling import scaled_logits
from shardwright.execute.numerics.positions.rotary_angles import largest_length_with_equal_rotation
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.numerics.state_space.state_space_mixers import (
    FIRST_CHANNEL,
    causal_convolution,
    scan_from_state,
)
from shardwright.execute.serve.device_kv_cache import CacheKey, DeviceCache
from shardwright.execute.serve.kv_cache_blocks import key_reach
from shardwright.execute.serve.padded_iteration_rows import IterationRows, RequestPart
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorKind


class LatentReads(StrEnum):
    """Tokens whose attention reads latents in absorbed form: none, decode tokens only, or all."""

    NEVER = "never"
    DECODE = "decode"
    ALWAYS = "always"


@dataclass(slots=True)
class ServedLayer:
    """One layer of a device in a serving iteration: its rows, cache and collected logits.

    Args:
        run, number: the model's run, and the layer's number in it.
        logits: receives the head's output: (first row, rows of the whole vocabulary).
        up: for latent attention, once known: the operator share that expands latents, and its
            weights.
    """

    run: int
    number: int
    rows: IterationRows
    cache: DeviceCache
    absorb: LatentReads
    logits: list[tuple[int, torch.Tensor]]
    up: tuple[OperatorShare, Weights] | None = None

    def cache_key(self, place: OperatorShare, number: int = 0) -> CacheKey:
        """The cache key under which an operator keeps its tensor `number`."""
        return CacheKey(
            run=self.run, layer=self.number, operator=place.operator.name, number=number
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPart:
    """A request's part of the batch whose rows a device has.

    `at`: its rows on the device; `share`: the operator's share of it as a sequence of its own.
    """

    part: RequestPart
    at: slice
    share: OperatorShare

    def sample_of(self, inputs: tuple[Values, ...]) -> tuple[Values, ...]:
        """Rows of one request in the batch, as inputs of one sample: (1, tokens, elements)."""
        return tuple(tuple(v[self.at].transpose(0, 1) for v in values) for values in inputs)


def local_parts(layer: ServedLayer, place: OperatorShare) -> Iterator[LocalPart]:
    """Iterate over the batch's requests on this device, each as a sequence of its own."""
    for low, high in place.samples:
        for row, part in layer.rows.parts:
            if low <= row < high:
                positions = ((part.past, part.end),)
                share = replace(place, samples=((0, 1),), positions=positions, length=part.end)
                yield LocalPart(
                    part=part, at=slice(row - low, row - low + part.tokens), share=share
                )


def require_stable_rotary(part: LocalPart) -> None:
    """Raise StrategyError if a request outgrows the length up to which rotary angles stay equal.

    Raises:
        StrategyError: a request has more positions than those up to which rotary positions do not
        differ with length.
    """
    longest = largest_length_with_equal_rotation(part.share.settings)
    if (
        part.share.operator.kind is OperatorKind.ROTARY
        and longest is not None
        and part.part.end > longest
    ):
        raise StrategyError(
            f"a request of {part.part.end} tokens: beyond {longest:g} this model's rotary positions"
            " differ with the length of the sequence",
            hint="serve requests up to that length",
            rule="serve.rotary",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPart:
    """Run a function on each request's part, and write its outputs to the part's rows.

    Rows without a part are zero.
    """

    layer: ServedLayer
    run_part: Callable[[LocalPart, tuple[Values, ...], Weights], Task[Values]]

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Run the function on each request's rows alone, and write its outputs to these rows.

        See `Forward`.
        """
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
        for part in local_parts(self.layer, place):
            part_outputs = yield from self.run_part(part, part.sample_of(inputs), weights)
            for output, values in zip(outputs, part_outputs, strict=True):
                output[part.at] = values.transpose(0, 1)
        return outputs, SavedTensors(inputs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class AtPositions:
    """An operator that depends on the tokens' positions only: rotary or learned positions."""

    inner: Forward

    def run_part(
        self, part: LocalPart, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[Values]:
        """Run the operator on one request's new tokens, at their positions in its sequence."""
        require_stable_rotary(part)
        outputs, _ = yield from self.inner.forward(part.share, inputs, weights)
        return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAttention:
    """Attention of a request's new tokens to their own keys and to those in its cache blocks."""

    layer: ServedLayer

    def run_part(
        self, part: LocalPart, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[Values]:
        """Store one request's new keys and values, and attend to all its cached ones."""
        query, *keys_and_values = [v for values in inputs for v in values][:3]
        assert part.share.operator.attention is not None
        reach, cache = key_reach(part.share.operator.attention), self.layer.cache
        cached = []
        for index, values in enumerate(keys_and_values):
            cache_key = self.layer.cache_key(part.share, index)
            cache.put(
                reach, cache_key, request=part.part.request, start=part.part.past, values=values[0]
            )
            cached.append(cache.get(reach, cache_key, request=part.part.request, end=part.part.end))
        keys = ((cache.first(reach, part.part.request), part.part.end),)
        outputs, _ = yield from Attention().forward(
            replace(part.share, key_positions=keys), ((query, *cached),), weights
        )
        return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedConv:
    """Causal convolution of a request's new tokens, continued from its last cached inputs.

    The cache keeps one input fewer than the convolution has taps.
    """

    layer: ServedLayer

    def run_part(
        self, part: LocalPart, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[Values]:
        """Convolve one request's new tokens, after its cached last inputs, which are replaced."""
        yield from ()
        operator, request = part.share.operator, part.part.request
        start = FIRST_CHANNEL[len(inputs[0])]
        taps = weights[operator.parameters[0].name].shape[-1]
        cached_count = min(part.part.past, taps - 1)
        values = list(inputs[0])
        for index in range(len(operator.writes)):
            place = request, self.layer.cache_key(part.share, index)
            if cached_count:
                values[start + index] = torch.cat(
                    [self.layer.cache.states[place], values[start + index]], dim=1
                )
            self.layer.cache.states[place] = values[start + index][
                :, -min(part.part.end, taps - 1) :
            ].clone()
        new_positions, all_positions = (
            ((cached_count, cached_count + part.part.tokens),),
            ((0, cached_count + part.part.tokens),),
        )
        return causal_convolution(
            replace(part.share, positions=new_positions, key_positions=all_positions),
            (tuple(values),),
            weights,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedScan:
    """State-space recurrence of a request's new tokens, continued from its cached state."""

    layer: ServedLayer

    def run_part(
        self, part: LocalPart, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[Values]:
        """Continue one request's recurrence from its cached state, and store the new state."""
        yield from ()
        place = part.part.request, self.layer.cache_key(part.share)
        state = self.layer.cache.states[place] if part.part.past else None
        output, self.layer.cache.states[place] = scan_from_state(
            part.share, inputs, weights, state=state
        )
        return (output,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsOfRows:
    """Replacement of the loss: collect the logits of all rows, with the whole vocabulary.

    Every device of the head has them.
    """

    layer: ServedLayer

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Append the batch's logits, all-gathered over the vocabulary, to the layer's list.

        See `Forward`.
        """
        local_logits, (low, high) = scaled_logits(inputs[0][0], place.settings), place.reads[0]
        all_logits = local_logits.new_zeros((*local_logits.shape[:2], place.operator.reads[0].size))
        all_logits[..., low:high] = local_logits
        all_logits = yield from all_reduce(place, "vocab", all_logits, purpose="logits")
        self.layer.logits.append((place.samples[0][0], all_logits[:, 0]))
        return (all_logits.new_zeros((*all_logits.shape[:2], 1)),), SavedTensors(inputs=())


def cached_operator(layer: ServedLayer, operator: Operator) -> Forward:
    """An operator's forward over a batch of requests, with cache, positions or logits as needed."""
    if operator.kind is OperatorKind.LOSS:
        return LogitsOfRows(layer=layer)
    if operator.kind is OperatorKind.ATTENTION:
        return ByPart(layer=layer, run_part=CachedAttention(layer=layer).run_part)
    if operator.kind is OperatorKind.CONV:
        return ByPart(layer=layer, run_part=CachedConv(layer=layer).run_part)
    if operator.kind is OperatorKind.SCAN:
        return ByPart(layer=layer, run_part=CachedScan(layer=layer).run_part)
    by_position = operator.kind is OperatorKind.ROTARY or (
        operator.kind is OperatorKind.EMBEDDING and len(operator.parameters) > 1
    )
    inner = numerics_of(operator)
    return ByPart(layer=layer, run_part=AtPositions(inner=inner).run_part) if by_position else inner
