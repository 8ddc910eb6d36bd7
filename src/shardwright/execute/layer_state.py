"""What a device keeps of a layer between forward and backward, and what of it is made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import torch

from shardwright.execute.numerics.boxes import hollow
from shardwright.execute.numerics.protocol import Gradients, Saved, Values
from shardwright.execute.places import Site
from shardwright.model.block import Block
from shardwright.model.operator import Operator, OperatorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """A layer at work.

    Args:
        run, layer: of the model. data: the microbatch by sequence, and its labels. key: of its communication, the same on all devices.
        scale: factor of every token's loss. again: operators that run again before backward. dropped: those whose output nobody keeps.
    """

    site: Site
    run: int
    layer: int
    block: Block
    data: Mapping[str, torch.Tensor]
    key: tuple[int, ...]
    scale: float
    again: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()


@dataclass(slots=True)
class Ran:
    """An operator that ran.

    Args:
        saved: for backward. inputs: for running it again, empty where they are to be made again too. lacks: (input, extent) that `saved`
            is to get back. grads: of its outputs, once known.
    """

    saved: Saved
    inputs: tuple[Values, ...] = ()
    lacks: frozenset[tuple[int, int]] = frozenset()
    grads: Gradients = ()


@dataclass(slots=True)
class LayerState:
    """What a layer keeps of a microbatch: operators that ran; or only its inputs, if it is recomputed.

    Args:
        sources: whose outputs its stream and memory are. stream, memory: kept if `forgotten`. lacking: some operators are to run again.
    """

    ran: dict[str, Ran] = field(default_factory=dict)
    sources: tuple[int | None, int | None] = (None, None)
    stream: torch.Tensor | None = None
    memory: torch.Tensor | None = None
    forgotten: bool = False
    lacking: bool = False

    def forget(self, stream: torch.Tensor | None, memory: torch.Tensor | None) -> None:
        """Keep the inputs only."""
        self.ran.clear()
        self.stream, self.memory, self.forgotten = stream, memory, True


def kept(run: BlockRun, operator: Operator, given: tuple[Values, ...], saved: Saved) -> Ran:
    """What stays of an operator until backward, without what is made again."""
    names = () if operator.kind is OperatorKind.EMBEDDING else operator.inputs
    if operator.name in run.again:
        inputs = tuple(() if name in run.dropped else values for name, values in zip_longest(names, given))
        return Ran(saved=Saved(inputs=()), inputs=inputs)
    lacks = frozenset(
        (number, index)
        for number, name in enumerate(names)
        if name in run.dropped and name in operator.keeps
        for index, (own, came) in enumerate(zip(saved.inputs[number], given[number], strict=True))
        if own is came and own.is_floating_point()
    )
    return Ran(saved=changed(saved, {place: hollow(given[place[0]][place[1]]) for place in lacks}), lacks=lacks)


def changed(saved: Saved, tensors: Mapping[tuple[int, int], torch.Tensor]) -> Saved:
    """With other tensors at (input, extent)."""
    if not tensors:
        return saved
    inputs = (tuple(tensors.get((n, i), own) for i, own in enumerate(values)) for n, values in enumerate(saved.inputs))
    return replace(saved, inputs=tuple(inputs))
