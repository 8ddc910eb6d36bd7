"""Checks of images and of their cuts over devices, before any device begins."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import DataError, StrategyError
from shardwright.execute.numerics.images.operators_over_merged_tokens import (
    neighbour_count,
    splits_tokens,
)
from shardwright.execute.numerics.images.patch_grid_and_position_interpolation import image_grid
from shardwright.execute.training.open_image_arrays_and_cut_patches import has_grid
from shardwright.job.training_job import TrainingJob
from shardwright.model.blocks.vision_tower_and_projector import IMAGE
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator
from shardwright.program.layout.device_cuts_in_placement_tree import StageCells
from shardwright.program.layout.device_parts_of_dims import token_box
from shardwright.program.layout.tensor_layout import Indices
from shardwright.program.stages.stage_segments import StageParts


def require_images(
    model: Model, job: TrainingJob, stages: tuple[tuple[StageParts, ...], ...]
) -> None:
    """Raise if an image tower lacks a patch grid that it needs, or a cut divides a merged token.

    Raises:
        StrategyError: rule ``execute.grid`` or ``execute.neighbours``.
    """
    length = job.tokens(IMAGE)
    if not length or model.settings.image is None or not has_grid(model):
        return
    try:
        image_grid(model.settings.image, patches=length)
    except DataError as error:
        raise StrategyError(error.message, hint=error.hint, rule="execute.grid") from None
    for cells, operator in _merging_operators(stages):
        count = neighbour_count(operator)
        for cell in cells.cells.get(operator.klass, {}).values():
            _, positions = token_box(cell, samples=cells.samples, length=length)
            if splits_tokens(positions, count):
                raise StrategyError(
                    f"{operator.name} makes one token of {count} patches, of which a device has"
                    f" only some: {_range_text(positions)} of {length}",
                    hint=(
                        f"cut images into parts of a multiple of {count} patches, or give"
                        f" {operator.klass.value} whole ones (x, not s)"
                    ),
                    rule="execute.neighbours",
                )


def _merging_operators(
    stages: tuple[tuple[StageParts, ...], ...],
) -> Iterator[tuple[StageCells, Operator]]:
    """Iterate over operators that merge several patches to a token, with their stage's cells."""
    for segment in (segment for lane in stages for stage in lane for segment in stage.segments):
        for operator in segment.block.operators:
            if neighbour_count(operator) > 1 and not operator.merges:
                yield segment.cells, operator


def _range_text(positions: Indices) -> str:
    """Ranges (low, end) as text with last positions: "0 to 3 and 8 to 11"; the first three only."""
    return " and ".join(f"{low} to {high - 1}" for low, high in positions[:3])
