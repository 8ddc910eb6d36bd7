"""A plan's picture."""

from __future__ import annotations

from shardwright.files.plan_source import read_plan
from shardwright.report.plan_picture import Picture, picture_of
from shardwright.strategy.plan.lane import Role
from shardwright.strategy.verify.check import require_valid


def draw(source: str, *, model: str = "", devices: int = 0, global_batch: int = 0) -> Picture:
    """The picture of a plan: `report.plan_text` and `report.plan_svg` give it a form.

    Args:
        source: path of a plan file or of a text in the general notation, or a grid's text.
        model, devices, global_batch: see `files.plan_source.read_plan`.

    Raises:
        DataError, StrategyError, ModelError, UsageError: by what is wrong with it; a plan that breaks a rule is not drawn.
    """
    found = read_plan(source, model=model, devices=devices, global_batch=global_batch)
    samples = sum(lane.samples for lane in found.plan.lanes if lane.role is Role.TRAIN)
    require_valid(found.plan, model=found.model, global_batch=samples)
    return picture_of(found.plan, model=found.model, name=found.name)
