"""What FSDP2 gathers and reduces of models of which a part is frozen, against what is priced:
elements, as integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (the extra `run`)")

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.model.add_frozen_teacher_to_model import IN_HEAD, with_teacher
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator
from shardwright.model.tensors_without_gradient import has_backward
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import price_grid
from tests.strategies import dense_model
from tests.torch_checks.sharded import fake_cluster

RANKS = 2


class Unit(nn.Module):
    """Stands in for some operators: it has their parameters, and what it makes depends on its input
    and on all of them."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        super().__init__()
        for parameter in (p for o in operators for p in o.parameters if not p.tied_to):
            made = nn.Parameter(
                torch.zeros([e.size for e in parameter.extents]), requires_grad=parameter.trainable
            )
            self.register_parameter(parameter.name.replace(".", "_"), made)

    def forward(self, x: Tensor) -> Tensor:
        return x * sum(p.sum() for p in self.parameters())


class Moved(TorchDispatchMode):
    """Counts elements of whole buffers by collective."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().startswith("c10d::_allgather_base_"):
            self.elements["gathered"] += args[0].numel()
        elif func.name().startswith("c10d::_reduce_scatter_base_"):
            self.elements["reduced"] += args[1].numel()
        return func(*args, **(kwargs or {}))


def units(model: Model, *, teachers: bool) -> nn.Sequential:
    """The units of the model or of its teacher in their order: embedding, layers, head; each is cut
    over all ranks."""
    made = []
    for run in model.runs:
        block = model.blocks[run.block]
        of_teacher = [
            o for o in block.operators if block.is_of_teacher or o.name.startswith(IN_HEAD)
        ]
        chosen = of_teacher if teachers else [o for o in block.operators if o not in of_teacher]
        made += [Unit(chosen) for _ in range(run.count) if any(o.parameters for o in chosen)]
    whole, mesh = nn.Sequential(*made), init_device_mesh("cpu", (RANKS,))
    for unit in whole:
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    return fully_shard(whole, mesh=mesh)


def moved(model: Model) -> Counter[str]:
    """Elements that a step of one microbatch moves."""
    with fake_cluster(RANKS):
        own, moving = units(model, teachers=False), Moved()
        other = units(model, teachers=True) if model.teacher_layers else None
        with moving:
            x = torch.ones(1)
            with torch.no_grad() if other else nullcontext():
                beside = other(x) if other else x
            (own(x) * beside).sum().backward()
    return moving.elements


def priced(model: Model) -> Counter[str]:
    """The same of ours."""
    job = job_from_flags(seq_len=64, global_batch=RANKS)
    problem = Problem(
        model=model, cluster=parse_cluster("h100:8"), job=job, runtime=load_runtime("torchtitan")
    )
    found = price_grid(problem, Grid(dp=RANKS, zero=3))
    sync, row, times = found.meshes.sync, found.mesh_row, found.layout.by_rank[0]
    whole = int(times @ (sync.gathered[:, row] + sync.regathered[:, row]))
    return Counter(gathered=whole, reduced=int(times @ sync.dense[:, row]))


def prefetched(model: Model) -> int:
    """Elements of the unit before the first one that has a backward: FSDP2's prefetch in backward
    goes one unit too far, for nobody."""
    own = [
        model.blocks[run.block] for run in model.runs if not model.blocks[run.block].is_of_teacher
    ]
    first = next(i for i, block in enumerate(own) if has_backward(block))
    return own[first - 1].num_parameters if first else 0


def model_of(train: str, *, teacher: bool) -> Model:
    made = trained(dense_model(layers=3), train)
    return with_teacher(made, dense_model(layers=2, ffn=1024)) if teacher else made


@pytest.mark.parametrize("teacher", [False, True])
@pytest.mark.parametrize(
    "train", ["all", "lora:r4", "lora:r4:attn", "frozen:attn", "frozen:mlp,head"]
)
def test_fsdp2_moves_what_is_priced(train: str, teacher: bool) -> None:
    model = model_of(train, teacher=teacher)
    found, wanted = moved(model), priced(model)
    assert found["reduced"] == wanted["reduced"] > 0
    assert found["gathered"] == wanted["gathered"] + prefetched(model)
    assert bool(prefetched(model)) == train.startswith("lora")
