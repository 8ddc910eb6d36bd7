"""Permuting tokens by a kernel of its own and by PyTorch's: counted by hand, and never slower
fused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.block.block_program import Phase
from shardwright.program.block.kernels.local_operator_sizes import Local
from shardwright.program.block.kernels.operator_kernels import KERNELS_OF
from shardwright.program.block.symbolic_sizes import Size
from shardwright.simulator.predict_plan import predict
from shardwright.strategy.text.grid_notation import parse_grid
from tests.search.problems import real_problem

LOCAL = Local(
    tokens=Size(times=10),
    reads=(Size(times=7),),
    writes=(Size(times=7),),
    context=1,
    element=2,
    scores_fused=True,
    keys_passed=False,
    dropout=False,
    fused_accumulate=False,
    loss_bytes=1,
    indexed=True,
)


def test_what_the_kernels_of_pytorch_move() -> None:
    """70 elements of 2 bytes are read and written by a gather, and read, read and written by a
    sum."""
    (moe,) = (b for b in load_model("mixtral-8x7b").blocks if b.name == "moe")
    permute, unpermute = (o for o in moe.operators if o.kind is OperatorKind.PERMUTE)
    for operator, more in ((permute, Phase.I), (unpermute, Phase.F)):
        works = KERNELS_OF[OperatorKind.PERMUTE](operator, LOCAL)
        moved = {
            work.phase: sum(size.times for size in (*work.read, *work.written)) for work in works
        }
        assert moved == {
            phase: 70 * 2 * (3 if phase is more else 2) for phase in (Phase.F, Phase.I)
        }
        fused = KERNELS_OF[OperatorKind.PERMUTE](operator, replace(LOCAL, indexed=False))
        assert (
            sum(size.times for work in fused for size in (*work.read, *work.written)) == 70 * 2 * 4
        )


@pytest.mark.parametrize("device", ["a100-80gb", "h100-sxm", "b200-sxm", "b300", "gb200"])
@pytest.mark.parametrize("dispatcher", ["alltoall", "flex"])
def test_fusing_is_never_slower(device: str, dispatcher: str) -> None:
    def seconds(fused: str) -> float:
        runtime = f"megatron-core-0.16 dispatcher={dispatcher} permute_fusion={fused}"
        problem = real_problem(
            "mixtral-8x7b", f"{device}:8", seq_len=4096, global_batch=16, runtime=runtime
        )
        return predict(problem, parse_grid("tp1 ep8 dp8 mbs1 zero1 recompute=none")).step_time_s

    assert seconds("on") < seconds("off")
