"""Grids train on PyTorch's own engine with the losses of a single process under the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch.distributed has no gloo here", allow_module_level=True)

from shardwright.execute.launch.run_report import NATIVE, OWN
from shardwright.model.ir.operator import OperatorKind
from tests.execute.native_ranks import CASES, KEPT, LAST, RANKS, STEPS, TRAINED, start
from tests.execute.small_plans import Small, run_here
from tests.tiers import in_both

LONGEST_S = 480
SPARSE_MODEL = CASES["experts on ep4"].small.model
CLOSE = 1e-10
HALF = 0.03
"""Of losses and norms that were computed in bfloat16, whose numbers have 8 bits."""


@lru_cache(maxsize=8)
def _alone(small: Small) -> tuple[tuple[float, float], ...]:
    return tuple((r.loss, r.norm) for r in run_here(small, small.alone(), steps=STEPS)[0])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """What each rank found. The single process runs while they do."""
    folder = tmp_path_factory.mktemp("native")
    processes = start(folder)
    try:
        for case in TRAINED.values():
            _alone(case.small)
        for process in processes:
            process.join(LONGEST_S)
        assert [p.exitcode for p in processes] == [0] * RANKS
        yield [torch.load(folder / f"rank{rank}", weights_only=False) for rank in range(RANKS)]
    finally:
        for process in processes:
            process.kill()


@in_both
@pytest.mark.parametrize("name", TRAINED)
def test_losses_and_norms_are_those_of_a_single_process(ranks: list[Any], name: str) -> None:
    expected, close = _alone(TRAINED[name].small), CLOSE if TRAINED[name].compute is None else HALF
    assert expected[0][0] != pytest.approx(expected[-1][0], abs=1e-3), "training changes the loss"
    apart = [abs(r.loss - loss) for r, (loss, _) in zip(ranks[0]["trained"][name], expected, strict=True)]
    assert (max(apart) > CLOSE) == (TRAINED[name].compute is not None), "fewer bits give other numbers"
    for found in ranks:
        reports = found["trained"][name]
        assert [r.step for r in reports] == list(range(1, STEPS + 1))
        for report, (loss, norm) in zip(reports, expected, strict=True):
            assert abs(report.loss - loss) < close
            assert abs(report.norm - norm) < close * max(1.0, norm)


@pytest.mark.proof
def test_a_rank_has_its_own_experts_alone(ranks: list[Any]) -> None:
    operators = [(o, run.count) for run in SPARSE_MODEL.runs for o in SPARSE_MODEL.blocks[run.block].operators]
    sizes = [
        (o.kind is OperatorKind.GROUPED_LINEAR, count * prod(e.size for e in p.extents)) for o, count in operators for p in o.parameters
    ]
    experts, whole = sum(size for own, size in sizes if own), sum(size for _, size in sizes)
    for found in ranks:
        assert found["held"]["experts on ep4"] == whole - experts + experts // 4
        assert found["held"]["experts under zero-3"] == found["held"]["experts on ep2 under zero-3"]


@in_both
@pytest.mark.parametrize("begins", [NATIVE, OWN])
@pytest.mark.parametrize("name", KEPT)
def test_each_engine_goes_on_from_the_others_checkpoint(ranks: list[Any], name: str, begins: str) -> None:
    expected = [(r.loss, r.norm) for r in run_here(CASES[name].small, CASES[name].small.alone(), steps=LAST)[0]]
    for found in ranks:
        reports = found["crossed"][name][begins]
        assert [r.step for r in reports] == list(range(1, LAST + 1))
        for report, (loss, norm) in zip(reports, expected, strict=True):
            assert abs(report.loss - loss) < CLOSE
            assert abs(report.norm - norm) < CLOSE * max(1.0, norm)


def test_what_cannot_run_is_refused_on_every_rank(ranks: list[Any]) -> None:
    for found in ranks:
        assert "the grid has 2 devices, 4 ranks run" in found["refused"]["world"]
        assert "[native.context]" in found["refused"]["context"]
        assert "[grid.zero]" in found["refused"]["legal"]
