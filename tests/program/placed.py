"""Stages of general plans from a few lines of the notation."""

from __future__ import annotations

from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator
from shardwright.program.block.operator_cuts_on_one_device_of_plan import CellStructure
from shardwright.program.stages.stage_segments import Segment, StageParts, plan_stages
from shardwright.strategy.text.parse_plan import parse_plan

SAMPLES, LENGTH, ELEMENT = 8, 64, 2


def lane_of(text: str, *, model: Model, devices: int) -> tuple[StageParts, ...]:
    """The stages of a lane of one microbatch; `text`: its stage lines."""
    head = f"plan placed devices {devices}\nlane main samples {SAMPLES} in 1\n"
    return plan_stages(parse_plan(head + text + "order gpipe(main)\n"), model=model)[0]


def layer_of(model: Model, *lines: str, devices: int, layers: int, block: str = "layer") -> Segment:
    """The segment of equal blocks `block` of a single stage under these placements."""
    text = f"  stages embed+{layers}+head on 0\n" + "".join(f"    {line}\n" for line in lines)
    return next(
        s for s in lane_of(text, model=model, devices=devices)[0].segments if s.block.name == block
    )


def on_device(segment: Segment, device: int) -> CellStructure:
    """The segment's operators as `device` runs them."""
    return CellStructure(stage=segment.cells, device=device, length=LENGTH)


def operator_of(segment: Segment, name: str) -> Operator:
    """An operator of the segment's block."""
    return next(o for o in segment.block.operators if o.name == name)
