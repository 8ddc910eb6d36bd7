"""Messages between stages: volumes by hand, and which stages feed which where memories and cut
blocks cross."""

from __future__ import annotations

import pytest

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.hardware.device_partition_by_network_level import equal_units
from shardwright.program.stages.stage_messages import (
    Messages,
    StageEdge,
    edge_extents,
    edge_messages,
    edge_segments,
    stage_edges,
)
from tests.program.placed import LENGTH, SAMPLES, lane_of
from tests.strategy.zoo_models import dense, encoder_decoder, sparse

X = SAMPLES * LENGTH * 128
"""Elements of a microbatch's stream."""


def messages(
    one: str, other: str, *, minimal: bool = True, apart: int = 8
) -> tuple[Messages, Messages]:
    """Of the only edge between four layers on devices from 0 and four on devices from `apart`."""
    model = dense()
    text = (
        f"  stages embed+4 on 0\n    all = {one}\n  stages 4+head on {apart}\n    all = {other}\n"
    )
    stages = lane_of(text, model=model, devices=16)
    (edge,) = stage_edges(stages, model=model)
    return edge_messages(
        stages[0],
        stages[1],
        segments=edge_segments(edge, *stages, model=model),
        extents=edge_extents(edge, model=model),
        length=LENGTH,
        islands=equal_units((8,))[0],
        minimal=minimal,
    )


EIGHT = sorted([a, b, X // 8] for a in range(4) for b in (8, 9))


@pytest.mark.parametrize("minimal", [True, False])
def test_tensor_to_data_parallel_is_eight_messages_of_an_eighth(minimal: bool) -> None:
    """Copies on four devices, halves of the batch on two: each source sends X/4; back quarters come
    home and are gathered (zoo 5)."""
    forward, backward = messages("t4", "b2", minimal=minimal)
    assert sorted(forward.sends.tolist()) == EIGHT
    assert forward.collectives == ()
    assert sorted((to, n) for _, to, n in backward.sends.tolist()) == [
        (d, X // 4) for d in range(4)
    ]
    assert backward.collectives == ((Collective.ALL_GATHER, (0, 1, 2, 3), X),)


def test_positions_to_samples_is_eight_messages_each_way() -> None:
    forward, backward = messages("s4 via gather", "b2")
    assert (
        sorted(forward.sends.tolist())
        == sorted([b, a, n] for a, b, n in backward.sends.tolist())
        == EIGHT
    )
    assert forward.collectives == backward.collectives == ()


def test_copies_share_out_what_replicas_want() -> None:
    """Eight copies to eight replicas: X in all, X/8 of each sender and to each receiver."""
    forward, _ = messages("t8", "b8")
    assert [forward.sends[forward.sends[:, 0] == d, 2].sum() for d in range(8)] == [X // 8] * 8
    assert [forward.sends[forward.sends[:, 1] == d, 2].sum() for d in range(8, 16)] == [X // 8] * 8


def test_four_copies_cross_once_and_are_gathered() -> None:
    for way in messages("x4", "x4"):
        assert way.sends[:, 2].tolist() == [X // 4] * 4
        assert [(kind, size) for kind, _, size in way.collectives] == [(Collective.ALL_GATHER, X)]


def test_four_copies_cross_four_times_where_the_runtime_sends_all() -> None:
    for way in messages("x4", "x4", minimal=False):
        assert way.sends[:, 2].tolist() == [X] * 4
        assert way.collectives == ()


def test_equal_layouts_send_device_to_device() -> None:
    forward, backward = messages("b4", "b4")
    assert forward.sends.tolist() == [[i, 8 + i, X // 4] for i in range(4)]
    assert backward.sends.tolist() == [[8 + i, i, X // 4] for i in range(4)]


def test_the_same_devices_in_the_same_layout_send_nothing() -> None:
    for way in messages("b4", "b4", apart=0):
        assert len(way.sends) == 0
        assert way.collectives == ()


def test_weighted_replicas_send_their_samples() -> None:
    forward, _ = messages("b[3:1]{., .+1}", "b[1:3]{., .+1}")
    assert forward.sends.tolist() == [[0, 8, X // 4], [0, 9, X // 2], [1, 9, X // 4]]


def test_replicas_of_weighted_parts_gather_their_own_samples() -> None:
    """Back to three quarters and a quarter of the batch on two devices each: halves of either part
    come, and each pair gathers its own."""
    _, backward = messages("b[3:1]{x2, x2+2}", "x4")
    received = {d: int(backward.sends[backward.sends[:, 1] == d, 2].sum()) for d in range(4)}
    assert received == {0: 3 * X // 8, 1: 3 * X // 8, 2: X // 8, 3: X // 8}
    assert backward.collectives == (
        (Collective.ALL_GATHER, (0, 1), 3 * X // 4),
        (Collective.ALL_GATHER, (2, 3), X // 4),
    )


def test_every_decoder_stage_reads_the_encoder() -> None:
    model = encoder_decoder(layers=2)
    names = [run.name for run in model.runs]
    text = (
        "  stages encoder_embed+encoder:2+encoder_norm, embed+decoder:1, decoder:1+head on 0, 1,"
        " 2\n    all = .\n"
    )
    memory, inputs = names.index("encoder_norm"), names.index("decoder")
    assert set(stage_edges(lane_of(text, model=model, devices=3), model=model)) == {
        StageEdge(source=0, target=1, run=memory),
        StageEdge(source=0, target=2, run=memory),
        StageEdge(source=1, target=2, run=inputs),
    }


def test_all_tensors_of_a_cut_block_cross() -> None:
    """Behind the router: its logits, the normed stream that experts and shared experts read, the
    residual; and the layers' output."""
    model = sparse(dense_layers=1, layers=2, predictors=1)
    names = [o.name for o in next(b for b in model.blocks if b.name == "sparse").operators]
    place = names.index("router") + 1
    first, rest = ("+".join(f"mtp.{n}" for n in part) for part in (names[:place], names[place:]))
    text = f"  stages embed+3+{first}, {rest}+mtp_head+head on 0, 1\n    all = .\n"
    edges = stage_edges(lane_of(text, model=model, devices=2), model=model)
    runs = [run.name for run in model.runs]
    assert {(runs[e.run], e.operator) for e in edges} == {
        ("layers.1", ""),
        ("mtp", "router"),
        ("mtp", "norm2"),
        ("mtp", "residual1"),
    }
    width = {e.operator: sum(x.size for x in edge_extents(e, model=model)) for e in edges}
    assert width == {"": 128, "router": 16, "norm2": 128, "residual1": 128}
