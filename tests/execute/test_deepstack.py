"""Features of inner tower layers reach the first language layers under any cut of either, round the
stages between."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.proof.prove_plan import prove_plan
from shardwright.model.blocks.deepstack import with_deepstack
from shardwright.model.blocks.vision_tower_and_projector import ProjectorShape, projector_operators
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.block import INPUT
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.text.parse_plan import parse_plan
from tests.strategy.zoo_plans import zoo_plan
from tests.tiers import cases

ZOO = zoo_plan("59-vision")
TOWER = "vision_embed+vision.0:1+vision.1:2+vision.3:1+deep.0+deep.1+projector"
TEXT = "embed+layers.0+layers.1+layers.2:4+head"


@cache
def deep() -> Model:
    """A small LLaVA of four and six layers whose first two take features of tower layers 0 and 2
    in."""
    width = next(block.output_width for block in ZOO.model.blocks if block.name == "vision")
    shape = ProjectorShape(inner=width, norm=width)
    merger = projector_operators(shape, width=width, hidden=ZOO.model.hidden, source=INPUT)
    return with_deepstack(ZOO.model, merger=merger, after=(0, 2))


def assert_alike(model: Model, text: str) -> None:
    proof = prove_plan(model, ZOO.job, parse_plan(text))
    assert proof.equal, f"loss {proof.loss_difference:+.1e}, {proof.worst[0]} {proof.worst[1]:.1e}"


CUTS = (
    ("all = b2", "all = t2\n    stream = s2"),
    ("all = t2\n    stream = s2", "all = s2\n    core = s2 via ring"),
    ("all = s2\n    core = s2 via gather", "all = t2\n    stream = d2"),
    ("all = s3\n    core = s3 via gather", "all = b2 s2z\n    core = b2 s2z via gather"),
    (
        "all = b2 s2\n    core = b2 s2 via ring",
        "all = t2 s2\n    stream = s4\n    core = t2 s2 via ring",
    ),
)


@pytest.mark.parametrize(("tower", "text"), cases(CUTS, 2))
def test_features_come_from_any_cut_to_any_cut(tower: str, text: str) -> None:
    plan = f"  stages {TOWER} on 0\n    {tower}\n  stages {TEXT} on 4\n    {text}\n"
    assert_alike(deep(), f"plan deep devices 8\nlane main samples 8 in 2\n{plan}order 1f1b(main)\n")


def test_features_go_round_the_stages_between() -> None:
    """The first merger's input, the mergers and the two layers that add lie in five stages, of two
    ranks in turns."""
    cuts = (
        "vision_embed+vision.0:1",
        "vision.1:2",
        "vision.3:1+deep.0+deep.1+projector",
        "embed+layers.0",
        "layers.1+layers.2:2",
        "2+head",
    )
    plan = f"  stages {', '.join(cuts)} on 0, 2, 0, 2, 0, 2\n    all = t2\n    stream = s2\n"
    assert_alike(
        deep(),
        f"plan round devices 4\nlane main samples 8 in 4\n{plan}order interleaved-1f1b(main)\n",
    )


@pytest.mark.parametrize(
    "asked",
    cases(
        [
            "",
            "frozen:vision_embed,vision,deep,projector",
            "frozen:vision_embed,vision",
            "lora:r4:attn,mlp",
        ],
        2,
    ),
)
def test_what_is_recomputed_or_frozen_is_alike(asked: str) -> None:
    text = f"  stages {TOWER}+{TEXT} on 0\n    all = t2\n    recompute 0-: full\n"
    assert_alike(
        trained(deep(), asked),
        f"plan one devices 2\nzero all: all/1/1\nlane main samples 8 in 2\n{text}order"
        " gpipe(main)\n",
    )
