"""The memory table keeps its columns: one line a row at any usual width, for every model and for
devices of several kinds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from rich.cells import cell_len

from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.cli.terminal.output_and_progress import plain
from shardwright.errors import ShardwrightError
from shardwright.model.catalog.load_model_by_name import ENTRIES, load_model
from shardwright.report.screens.memory_by_pipeline_rank_table import memory_table
from shardwright.report.terminal_line_wrapping import Indented
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from tests.tiers import cases, in_proof

WIDTHS = (80, 100, 120)
MODELS = tuple(entry.names[0] for entry in ENTRIES)
GRIDS = ("pp4 dp2 zero1", "pp2 dp4 zero1", "dp8 zero1")
UNUSUAL = (
    "deepseek-v3",
    "minimax-m3",
    "qwen3-vl-235b-a22b",
    "t5-v1.1-xxl",
    "nemotron-4-340b",
    "llama-3.1-8b",
    "gemma-2-27b",
    "glm-5",
)
"""Models with the longest names of blocks, and with the largest numbers."""
MIXED = {
    "h100-sxm:4+a100-sxm-80gb:4": (
        "plan two devices 8\ngrid samples 64 tp2 pp4 dp1 mbs1 zero1 recompute=none"
    ),
    "a100-sxm-40gb:4+a100-sxm-80gb:4": (
        "plan two devices 8\ngrid samples 64 pp8 dp1 mbs1 zero1 recompute=none"
    ),
    "a100-sxm-40gb:8+v100-sxm-32gb:8+h100-sxm:8": (
        "plan three devices 24\ngrid samples 48 tp2 pp6 dp2 mbs1 zero1 recompute=none"
    ),
}


@cache
def simulated(model: str) -> Simulation:
    """A pipeline of the model on eight devices, as deep as it has layers for, whether it fits or
    not."""
    blocks = load_model(model).blocks
    needed = " ".join(f"{block.sequence} {block.memory}" for block in blocks)
    more = {"encoder_len": 512} if "encoder" in needed else {}
    more |= {"image_tokens": 576} if "image" in needed else {}
    for text in GRIDS:
        try:
            return simulation(
                Request(model=model, cluster="h100-sxm:8", seq_len=1024, global_batch=64, **more),
                strategy=text,
            )
        except ShardwrightError:
            continue
    raise AssertionError(f"{model}: no grid of these is legal")


def keeps_its_columns(found: Simulation, width: int) -> None:
    table = memory_table(found.prediction, all_stages=True, classes=found.classes)
    lines = plain(Indented(table), width=width).splitlines()
    notes = [
        number
        for number, line in enumerate(lines)
        if line.startswith(("  not shown:", "  shortened:"))
    ]
    rows = lines[1 : notes[0]] if notes else lines[1:]
    assert len(rows) == len(table.rows)
    assert max(map(cell_len, lines)) <= width
    title = lines[0].split()
    assert title[-2:] == ["reserved", "full"]
    for row, cells in zip(rows, table.rows, strict=True):
        assert row.endswith(cells[-1])
        assert cells[-2] in row
    shown = " ".join(lines)
    assert all(name in title or name in shown for name in table.header)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "model", [*dict.fromkeys([*UNUSUAL, *cases(MODELS, 3)])] if not in_proof() else cases(MODELS, 8)
)
def test_a_row_is_one_line(model: str, width: int) -> None:
    keeps_its_columns(simulated(model), width)


@cache
def mixed(cluster: str) -> Simulation:
    return simulation(
        Request(
            model="llama-2-7b",
            cluster=cluster,
            seq_len=1024,
            global_batch=48 if "h100-sxm:8" in cluster else 64,
        ),
        strategy=MIXED[cluster],
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("cluster", MIXED)
def test_a_row_of_a_mixed_cluster_is_one_line_and_kinds_stay_apart(
    cluster: str, width: int
) -> None:
    found = mixed(cluster)
    keeps_its_columns(found, width)
    table = memory_table(found.prediction, all_stages=True, classes=found.classes)
    column = table.header.index("kind")
    forms = {
        (row[column], *(short[-1:]))
        for row, short in zip(table.rows, table.shorter[column], strict=True)
    }
    names = {name for name, _ in forms}
    assert len(names) == len(cluster.split("+"))
    assert len({short for _, short in forms}) == len(names)


@pytest.mark.parametrize("count", ["9" * 5001, "9" * 12])
def test_a_count_of_any_length_is_shown(count: str) -> None:
    """The stage's text comes from a file: Python refuses to read a number of over 4,300 digits."""
    found = simulated("llama-3.1-8b")
    memory = replace(found.prediction.stages[0], layers=f"{count} layer + head")
    prediction = replace(found.prediction, stages=(memory,))
    table = memory_table(prediction, all_stages=True, classes=found.classes)
    assert plain(Indented(table), width=80)
