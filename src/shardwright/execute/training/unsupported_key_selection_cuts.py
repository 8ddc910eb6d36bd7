"""Checks of cuts of layers whose indexer selects keys, before any device begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwright.errors import StrategyError
from shardwright.execute.numerics.attention.indexer_key_block_selection import RULE
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.layout.device_cuts_in_placement_tree import StageCells
from shardwright.program.layout.device_parts_of_dims import token_box
from shardwright.program.stages.stage_segments import StageParts


def require_selections(
    stages: tuple[tuple[StageParts, ...], ...], *, slices: Sequence[int], length: int
) -> None:
    """Raise if selected-key attention selects single keys, or a device lacks its indexer or keys.

    Selection of single keys is rejected too.

    Args:
        slices: number of slices of each lane's samples.
        length: number of positions of the text.

    Raises:
        StrategyError: rule ``execute.selected``.
    """
    for lane, count in zip(stages, slices, strict=True):
        for cells, core, index in _selecting_attention(lane):
            if core.choice is None:
                raise StrategyError(
                    f"{core.name} attends to single keys that an indexer selects: that cannot be"
                    " executed yet",
                    hint="choose a model without such layers, or simulate the plan instead",
                    rule=RULE,
                )
            if index is None:
                raise StrategyError(
                    f"{core.name} attends to keys that an indexer of another stage selects",
                    hint="give a layer that selects keys to one stage as a whole",
                    rule=RULE,
                )
            boxes = [
                {
                    device: token_box(cell, samples=cells.samples, length=length)
                    for device, cell in cells.cells.get(operator.klass, {}).items()
                }
                for operator in (core, index)
            ]
            cut = count > 1 or any(
                positions != ((0, length),) for _, positions in boxes[1].values()
            )
            if cut or any(boxes[1].get(device) != box for device, box in boxes[0].items()):
                raise StrategyError(
                    f"{index.name} scores all keys of a text for {core.name}, and a device has a"
                    " part of them, or of other samples",
                    hint=(
                        "give attn and core of layers that select keys one cut, of heads or"
                        " samples, not of positions: t or b, not s"
                    ),
                    rule=RULE,
                )


def _selecting_attention(
    lane: tuple[StageParts, ...],
) -> Iterator[tuple[StageCells, Operator, Operator | None]]:
    """Iterate over (cells, attention, its block's indexer or None) where keys are selected."""
    for segment in (segment for stage in lane for segment in stage.segments):
        index = next((o for o in segment.block.operators if o.kind is OperatorKind.INDEX), None)
        for operator in segment.block.operators:
            if operator.attention is not None and operator.attention.selected:
                yield segment.cells, operator, index
