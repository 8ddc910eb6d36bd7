"""Ranks that a mesh puts together are those that the plan gives the same parameters, or parts of
the same sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch.distributed is not available here", allow_module_level=True)

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright.execute.native.device_meshes import GridMeshes, expert_owner_ranks, grid_meshes
from shardwright.execute.native.grids_that_torch_can_run import why_not_expressible
from shardwright.execute.native.rank_samples_and_positions import (
    ContextParallelism,
    rank_context,
    rank_tokens,
)
from shardwright.execute.native.rotary_and_attention_modules import NativeAttention
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.layout.device_cuts_in_placement_tree import Cell
from shardwright.program.layout.device_parts_of_dims import token_box
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import indices
from shardwright.program.stages.stage_segments import StageParts, plan_stages
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.jobs import training_job
from tests.strategies import dense_model, expert_model, legal
from tests.tiers import many, random_of

DEVICES, SAMPLES, LENGTH, EXPERTS = 16, 16, 64, 8
MODEL = expert_model(dense=1, sparse=3, experts=EXPERTS)
JOB = training_job(seq_len=LENGTH, global_batch=SAMPLES)
ORDERS = (
    ("tp", "cp", "ep", "dp", "pp"),
    ("dp", "ep", "cp", "tp", "pp"),
    ("pp", "ep", "tp", "dp", "cp"),
)


def _grids() -> list[Grid]:
    """Grids of all devices that PyTorch runs, some of all kinds."""
    degrees = (1, 2, 4)
    found = [
        Grid(
            tp=tp,
            sp=tp > 1,
            cp=cp,
            ulysses=ulysses,
            gather=True,
            ep=ep,
            etp=etp,
            dp=DEVICES // (tp * cp * pp),
            pp=pp,
            zero=zero,
            shard=shard,
            order=order,
        )
        for tp, cp, ulysses, ep, etp, pp, order, (zero, shard) in product(
            degrees, degrees, degrees, degrees, (1, 2), (1, 2), ORDERS, ((0, 0), (3, 0), (2, 2))
        )
        if cp % ulysses == 0 and tp * cp * pp <= DEVICES
    ]
    runs = [
        g
        for g in found
        if legal(g, model=MODEL, global_batch=SAMPLES, seq_len=LENGTH)
        and why_not_expressible(MODEL, g, job=JOB) is None
    ]
    return random_of("grids of meshes").sample(runs, many(12))


@pytest.fixture(scope="module", params=[0, 6, 15])
def rank(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process group that sends nothing: this process is one of its ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=DEVICES)
    yield request.param
    dist.destroy_process_group()


def _together(mesh: DeviceMesh, *names: str) -> set[frozenset[int]]:
    """Ranks that differ along these dims alone."""
    dims = mesh.mesh_dim_names or ()
    varied = [dims.index(n) for n in names if n in dims]
    kept = [i for i in range(len(dims)) if i not in varied]
    size = int(torch.tensor([mesh.mesh.shape[i] for i in varied]).prod())
    return {frozenset(row) for row in mesh.mesh.permute(*kept, *varied).reshape(-1, size).tolist()}


def _alike(parts: tuple[StageParts, ...], klass: OperatorClass, *dims: Dim) -> set[frozenset[int]]:
    """Ranks of a stage that have the same of some dims."""
    groups: dict[object, set[int]] = {}
    for part in parts:
        for device, cell in part.segments[-1].cells.cells[klass].items():
            groups.setdefault(
                (part.chunk, *(indices(cell.way(dim), 1 << 12) for dim in dims)), set()
            ).add(device + part.base)
    return {frozenset(group) for group in groups.values()}


def test_ranks_are_together_as_the_plan_has_them(rank: int) -> None:
    spread = traded = owned = 0
    for grid in _grids():
        (parts,) = plan_stages(plan_of(grid, model=MODEL, global_batch=SAMPLES), model=MODEL)
        meshes = grid_meshes(grid, experts=True, device="cpu")
        assert _together(meshes.dense, "replicate", "shard") == _alike(
            parts, OperatorClass.MLP, Dim.WIDTH
        )
        assert {len(group) for group in _together(meshes.dense, "shard")} == {
            (grid.shard or grid.dp * grid.cp) if grid.zero else 1
        }
        mine = next(part for part in parts if rank in part.devices)
        if meshes.experts is not None:
            spread += 1
            owned += grid.ep > 1 and grid.etp > 1
            _check_experts(meshes, parts, grid)
        if meshes.context is not None:
            context = rank_context(
                mine, meshes.context, rank=rank, length=LENGTH, gather=grid.gather
            )
            _check_context(context, mine, grid, rank=rank)
            traded += grid.ulysses > 1
            assert _together(meshes.context, "ring", "ulysses") == _alike(
                parts, OperatorClass.MLP, Dim.WIDTH, Dim.BATCH
            )
    assert spread > 2
    assert traded > 2
    assert owned > 1


def _check_experts(meshes: GridMeshes, parts: tuple[StageParts, ...], grid: Grid) -> None:
    mesh = meshes.experts
    assert mesh is not None
    assert _together(mesh, "expert_replicate", "expert_shard") == _alike(
        parts, OperatorClass.EXPERTS, Dim.EXPERTS, Dim.FFN
    )
    assert _together(mesh, "expert_replicate", "expert_shard", "etp") == _alike(
        parts, OperatorClass.EXPERTS, Dim.EXPERTS
    )
    names = mesh.mesh_dim_names or ()
    owners = expert_owner_ranks(meshes)
    assert owners is None or sorted(owners.runs) == sorted([*range(grid.ep)] * grid.etp)
    for part in parts:
        for device, cell in part.segments[-1].cells.cells[OperatorClass.EXPERTS].items():
            (place,) = (mesh.mesh == device + part.base).nonzero().tolist()
            own = place[names.index("ep")] if "ep" in names else 0
            share = EXPERTS // grid.ep
            assert indices(cell.way(Dim.EXPERTS), EXPERTS) == ((own * share, (own + 1) * share),)


def _check_context(context: ContextParallelism, part: StageParts, grid: Grid, *, rank: int) -> None:
    """Queries are those of the plan's core, keys all, in the order of who gives them."""
    core: Cell = part.segments[-1].cells.cells[OperatorClass.CORE][rank - part.base]
    _, positions = token_box(core, samples=part.samples, length=LENGTH)
    assert _numbers(context.queries) == _numbers(positions)
    assert _numbers(context.keys) == set(range(LENGTH))
    assert _numbers(context.own) <= _numbers(context.queries)
    assert ((context.key_gather_group is not None), (context.ring is not None)) == (
        grid.ring > 1 and grid.gather,
        grid.ring > 1 and not grid.gather,
    )
    if context.ring is not None:
        assert context.ring.key_positions(0) == context.queries
        assert _numbers(
            tuple(i for step in range(grid.ring) for i in context.ring.key_positions(step))
        ) == set(range(LENGTH))


def _numbers(intervals: tuple[tuple[int, int], ...]) -> set[int]:
    found = [n for low, high in intervals for n in range(low, high)]
    assert len(found) == len(set(found))
    return set(found)


def test_tokens_of_all_ranks_are_the_batch(rank: int) -> None:
    grid = Grid(cp=4, ulysses=2, gather=True, dp=4, microbatch=2)
    ((part,),) = plan_stages(plan_of(grid, model=MODEL, global_batch=SAMPLES), model=MODEL)
    batch = torch.arange(SAMPLES * LENGTH).view(SAMPLES, LENGTH)
    own = [
        rank_tokens(part, rank=r, microbatches=2, length=LENGTH).take(batch) for r in range(DEVICES)
    ]
    assert {tokens.shape for tokens in own} == {(SAMPLES // 4, LENGTH // 4)}
    assert torch.equal(
        torch.cat([tokens.flatten() for tokens in own]).sort().values, batch.flatten()
    )


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize(
    "queries", [((0, 3), (9, 12)), ((3, 6), (6, 9)), ((9, 12), (0, 3)), ((4, 12),)]
)
def test_queries_of_some_positions_see_what_they_see_among_all(
    queries: tuple[tuple[int, int], ...], window: int
) -> None:
    operator = next(
        o for o in dense_model().blocks[1].operators if o.kind is OperatorKind.ATTENTION
    )
    assert operator.attention is not None
    shape = replace(operator.attention, heads=4, kv_heads=2, window=window)
    own = [n for low, high in queries for n in range(low, high)]
    made = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(2, heads, 12, 8, generator=made, dtype=torch.float64) for heads in (4, 2, 2)
    )
    part, whole = (
        NativeAttention(
            replace(operator, attention=shape), settings=Settings(), context=context, again=False
        )
        for context in (
            ContextParallelism(own=queries, length=12, queries=queries),
            ContextParallelism(),
        )
    )
    assert torch.allclose(
        part._masked_attention(q[:, :, own], k, v),
        whole._masked_attention(q, k, v)[:, :, own],
        rtol=0,
        atol=1e-14,
    )
