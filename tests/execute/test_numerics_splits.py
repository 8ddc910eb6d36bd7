"""Operators cut over devices equal the operator on one device: outputs and gradients, parts
added."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwright.model.blocks.dense_blocks import embedding_block, head_block
from shardwright.model.blocks.dense_transformer_operators import (
    QkNorm,
    attention_operators,
    core_operator,
    distance_table,
    hidden_extent,
    linear,
    mlp_operators,
    norm,
    residual,
)
from shardwright.model.blocks.gated_delta_net_and_gated_attention import (
    DeltaShape,
    delta_operators,
    gated_attention_operators,
)
from shardwright.model.blocks.latent_attention import LatentShape, mla_operators
from shardwright.model.blocks.mamba import (
    MambaShape,
    SelectiveShape,
    mamba1_operators,
    mamba2_operators,
)
from shardwright.model.families.decoders.bert_and_t5 import cross_attention_operators
from shardwright.model.ir.operator import AttentionShape, Mask, Operator, OperatorClass, ScanShape
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter
from shardwright.program.block.operator_cuts_on_one_device_of_plan import CellStructure
from shardwright.program.layout.device_cuts_in_placement_tree import class_trees, stage_cells
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.splits import check_split

SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=4, value_dim=4)
HIDDEN = hidden_extent(12)
ZIGZAG = (((0, 2), (6, 8)), ((2, 6),))
THREE = (((0, 3),), ((3, 4),), ((4, 8),))
RUNS = torch.tensor([[-1, 0, 0, 0, 0, -1, 1, 1], [0, 0, 0, 0, 0, 0, -1, -1]])
"""Of image tokens in two texts."""


def parts(dim: Dim, *ends: int) -> list[dict[Dim, tuple[int, int]]]:
    """Devices with the parts between `ends`."""
    return [{dim: (a, b)} for a, b in zip((0, *ends), ends, strict=False)]


def named(operators: tuple[Operator, ...]) -> dict[str, Operator]:
    return {o.name: o for o in operators}


def test_columns_of_a_fused_projection_with_copied_key_heads() -> None:
    qkv = attention_operators(source="input", hidden=12, shape=SHAPE, bias=True)[0]
    check_split(qkv, [[HIDDEN]], parts(Dim.HEADS, 1, 2, 3, 4))


def test_rows_with_a_bias_once() -> None:
    down = mlp_operators(source="input", hidden=12, ffn=10, gated=True, bias=True)[-1]
    check_split(down, [[Extent(dim=Dim.FFN, size=10)]], parts(Dim.FFN, 3, 4, 10))


def test_columns_of_the_logits() -> None:
    check_split(
        head_block(hidden=12, vocab=11, tied=False, bias=True).operators[1],
        [[HIDDEN]],
        parts(Dim.VOCAB, 5, 11),
    )


def test_contraction_over_hidden() -> None:
    up = linear(
        "up",
        source="input",
        reads=(HIDDEN,),
        writes=(Extent(dim=Dim.FFN, size=6),) * 2,
        klass=OperatorClass.MLP,
        bias=True,
    )
    check_split(up, [[HIDDEN]], parts(Dim.HIDDEN, 5, 12))


@pytest.mark.parametrize("bias", [False, True])
def test_norm_of_a_cut_width(bias: bool) -> None:
    check_split(
        norm("norm", source="input", hidden=12, bias=bias),
        [[HIDDEN]],
        parts(Dim.HIDDEN, 5, 6, 12),
        groups=["hidden"],
    )


@pytest.mark.parametrize("kind", [QkNorm.HEAD, QkNorm.WIDTH, QkNorm.PLAIN])
@pytest.mark.parametrize("ends", [(2, 4), (1, 2, 3, 4), (3, 4)])
def test_norms_of_queries_and_keys(kind: QkNorm, ends: tuple[int, ...]) -> None:
    made = named(attention_operators(source="input", hidden=12, shape=SHAPE, qk_norm=kind))
    groups = ["hidden"] if kind is QkNorm.WIDTH else []
    check_split(made["qk_norm"], [made["qkv"].writes], parts(Dim.HEADS, *ends), groups=groups)


@pytest.mark.parametrize("ends", [(2, 4), (1, 2, 3, 4), (3, 4)])
@pytest.mark.parametrize("shared", [False, True])
def test_norms_of_values_too(shared: bool, ends: tuple[int, ...]) -> None:
    made = named(
        attention_operators(source="input", hidden=12, shape=SHAPE, qk_norm=True, value_norm=True)
    )
    check_split(
        made["qk_norm"], [made["qkv"].writes[: 2 if shared else 3]], parts(Dim.HEADS, *ends)
    )


def test_norm_behind_a_gated_projection() -> None:
    made = named(gated_attention_operators(hidden=12, shape=SHAPE))
    check_split(made["qk_norm"], [made["qkv"].writes], parts(Dim.HEADS, 1, 4))
    check_split(made["gate"], [made["core"].writes, made["qkv"].writes], parts(Dim.HEADS, 1, 4))


@pytest.mark.parametrize("positions", [ZIGZAG, THREE])
def test_rotary_by_position(positions: Any) -> None:
    made = named(attention_operators(source="input", hidden=12, shape=SHAPE))
    check_split(made["rotary"], [made["qkv"].writes], [{}] * len(positions), positions=positions)


def test_rotary_by_heads() -> None:
    made = named(attention_operators(source="input", hidden=12, shape=SHAPE))
    check_split(made["rotary"], [made["qkv"].writes], parts(Dim.HEADS, 1, 2, 4))


def test_rotary_of_latent_attention() -> None:
    shape = LatentShape(heads=3, q_lora=6, kv_lora=5, nope=4, rope=2, value=3)
    made = named(mla_operators(hidden=12, shape=shape))
    producers = [made[n].writes for n in made["rotary"].inputs]
    check_split(made["rotary"], producers, parts(Dim.HEADS, 1, 3))
    check_split(made["rotary"], producers, [{}, {}], positions=ZIGZAG)
    check_split(made["kv_norm"], [made["kv_down"].writes], [{}, {}], positions=ZIGZAG)
    check_split(made["kv_up"], [made["kv_norm"].writes], parts(Dim.HEADS, 2, 3))


VARIANTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "full": {"mask": Mask.FULL},
    "window": {"window": 3},
    "window both ways": {"window": 3, "mask": Mask.FULL},
    "chunked": {"window": 3, "chunked": True},
    "cap": {"soft_cap": 2.0},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True},
    "values of another width": {"value_dim": 3},
    "many queries a key": {"kv_heads": 1},
    "distances": {},
    "distances both ways": {"mask": Mask.FULL},
}


def core_of(variant: str) -> Operator:
    """A core; of few distances each has a bias of its own."""
    table = (
        distance_table("core.distances", buckets=6, heads=SHAPE.heads)
        if "distances" in variant
        else None
    )
    return core_operator(
        "core", source="rotary", shape=replace(SHAPE, **VARIANTS[variant]), distances=table
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("positions", [ZIGZAG, THREE])
@pytest.mark.parametrize("group", ["ring", "gather"])
def test_core_over_positions(variant: str, positions: Any, group: str) -> None:
    core = core_of(variant)
    check_split(core, [core.reads], [{}] * len(positions), positions=positions, groups=[group])


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("positions", [ZIGZAG, THREE])
@pytest.mark.parametrize("group", ["ring", "gather"])
def test_core_that_sees_images_over_positions(window: int, positions: Any, group: str) -> None:
    core = replace(
        core_operator("core", source="rotary", shape=replace(SHAPE, window=window)),
        sees_images=True,
    )
    more: dict[str, Any] = {"integers": {1: RUNS}, "everywhere": (1,)}
    check_split(
        core, [core.reads, ()], [{}] * len(positions), positions=positions, groups=[group], **more
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_core_by_heads(variant: str) -> None:
    core = core_of(variant)
    check_split(core, [core.reads], parts(Dim.HEADS, 1, 2, 4))


def test_core_of_another_sequence() -> None:
    made = named(cross_attention_operators(hidden=12, shape=SHAPE))
    producers = [made[n].writes for n in made["cross.core"].inputs]
    check_split(made["cross.core"], producers, parts(Dim.HEADS, 3, 4), memory=[((0, 8),)] * 2)
    check_split(
        made["cross.core"],
        producers,
        [{}, {}],
        positions=ZIGZAG,
        memory=(((0, 5),), ((5, 8),)),
        groups=["ring"],
    )


@pytest.mark.parametrize("gated", [False, True])
def test_activation(gated: bool) -> None:
    up, act, _ = mlp_operators(source="input", hidden=12, ffn=10, gated=gated)
    check_split(act, [up.writes], parts(Dim.FFN, 3, 10))


def test_residual_with_a_factor_of_its_own() -> None:
    number = Parameter(
        name="sum.weight", extents=(hidden_extent(1),), trainable=False, counted=False
    )
    scaled = replace(residual("sum", source="a", skip="b", hidden=12), parameters=(number,))
    check_split(scaled, [[HIDDEN], [HIDDEN]], [{}, {}], positions=ZIGZAG)


def test_residual() -> None:
    check_split(
        residual("sum", source="a", skip="b", hidden=12),
        [[HIDDEN], [HIDDEN]],
        parts(Dim.HIDDEN, 5, 12),
    )


def test_embedding_by_rows_and_width_and_position() -> None:
    lookup = embedding_block(hidden=12, vocab=11, positions=9).operators[0]
    ids = {0: torch.randint(0, 11, (2, 8, 1), generator=torch.Generator().manual_seed(5))}
    check_split(lookup, [[]], parts(Dim.VOCAB, 4, 5, 11), integers=ids)
    check_split(lookup, [[]], parts(Dim.HIDDEN, 5, 12), integers=ids)
    check_split(lookup, [[]], [{}, {}], positions=ZIGZAG, integers=ids)


def test_loss_by_rows_and_position() -> None:
    loss = head_block(hidden=12, vocab=11, tied=False).operators[-1]
    labels = torch.randint(0, 11, (2, 8, 1), generator=torch.Generator().manual_seed(5))
    labels[1, 2] = -1
    check_split(
        loss, [loss.reads, []], parts(Dim.VOCAB, 4, 5, 11), integers={1: labels}, groups=["vocab"]
    )
    check_split(loss, [loss.reads, []], [{}, {}], positions=ZIGZAG, integers={1: labels})


def test_mixers_by_heads() -> None:
    mamba2 = MambaShape(scan=ScanShape(heads=4, head_dim=3, state=2, groups=2, chunk=3), kernel=4)
    mamba1 = SelectiveShape(inner=6, state=3, rank=2, kernel=4, inner_norms=True)
    delta = DeltaShape(key_heads=2, value_heads=4, key_dim=3, value_dim=2, kernel=4)
    for made in (
        named(mamba2_operators(source="input", hidden=12, shape=mamba2)),
        named(mamba1_operators(source="input", hidden=12, shape=mamba1)),
        named(delta_operators(hidden=12, shape=delta)),
    ):
        for name, operator in made.items():
            producers = [made[n].writes if n in made else (HIDDEN,) for n in operator.inputs]
            groups = ["hidden"] if name == "gate_norm" else []
            ends = (1, 4) if operator.scan is None or operator.scan.heads == 4 else (1, 6)
            if name == "x_norm":
                continue
            heads = max(
                (e.runs for e in (*operator.reads, *operator.writes) if e.dim is Dim.HEADS),
                default=4,
            )
            check_split(operator, producers, parts(Dim.HEADS, ends[0], heads), groups=groups)


def test_groups_are_the_same_for_all_members_where_parts_have_copies() -> None:
    for text in ("s2 x2", "x2 s2", "s3 x2", "x2 s2 x2"):
        plan = parse_plan(
            "plan p devices 12\nlane main samples 4 in 1\n  stages embed+2+head on 0\n    all ="
            f" {text}\norder 1f1b(main)\n"
        )
        cells = stage_cells(class_trees(plan.lanes[0].stages[0].placements, 0), samples=4)
        core = core_operator("core", source="rotary", shape=SHAPE)
        groups = {
            d: CellStructure(stage=cells, device=d, length=12).members(core, Dim.SEQUENCE)
            for d in cells.devices
        }
        assert all(groups[member] == groups[d] for d in groups for member in groups[d])
        assert all(
            d in group and len(group) == int(text[text.index("s") + 1])
            for d, group in groups.items()
        )
