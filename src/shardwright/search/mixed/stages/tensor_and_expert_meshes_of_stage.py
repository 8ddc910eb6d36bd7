"""Device meshes of one pipeline stage of a replica, for tensor and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.mixed.stages.device_pools import DevicePool
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts, has_experts
from shardwright.strategy.grid.parallelism_grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMesh:
    """The devices of one stage of one replica.

    Args:
        tp: tensor parallel degree.
        dp: data-parallel members that each take a part of a microbatch's samples, so that experts
            spread over more devices than tp.
        ep: expert parallel degree: all devices of the stage where the model has experts, else 1.
            So a replica holds each expert once.
    """

    tp: int
    dp: int = 1
    ep: int = 1

    @property
    def size(self) -> int:
        """Number of devices of one stage of one replica: tp x dp."""
        return self.tp * self.dp

    def text(self) -> str:
        """The mesh in the notation of strategies, such as ``tp2 dp2 ep4``."""
        return (
            f"tp{self.tp}"
            + (f" dp{self.dp}" if self.dp > 1 else "")
            + (f" ep{self.ep}" if self.ep > 1 else "")
        )


def grid_of(problem: Problem, mesh: StageMesh, *, mbs: int, replicas: int = 1) -> Grid:
    """Grid of one stage of `replicas` replicas under ZeRO-1; `mbs` is of a whole replica.

    Args:
        mbs: samples of a microbatch of one replica.
    """
    sp = mesh.tp > 1 and problem.runtime.sequence_parallel
    return Grid(
        tp=mesh.tp, sp=sp, dp=mesh.dp * replicas, ep=mesh.ep, microbatch=mbs // mesh.dp, zero=1
    )


def meshes_of(problem: Problem, pool: DevicePool, choices: PinnedValues) -> tuple[StageMesh, ...]:
    """Meshes inside a node of the pool that are legal for the model and allowed by the request."""
    return tuple(
        mesh
        for mesh in _inside(problem, pool.node)
        if choices.has(tp=mesh.tp, ep=mesh.ep) and _is_legal(problem, pool, mesh)
    )


def _inside(problem: Problem, node: int) -> Iterator[StageMesh]:
    """Every mesh whose size divides a node's devices; tp alone without experts, else ep = size."""
    experts = has_experts(problem.model)
    for size in (size for size in range(1, node + 1) if node % size == 0):
        for tp in (tp for tp in range(1, size + 1) if size % tp == 0):
            if experts or tp == size:
                yield StageMesh(tp=tp, dp=size // tp, ep=size if experts else 1)


def _is_legal(problem: Problem, pool: DevicePool, mesh: StageMesh) -> bool:
    """True where the strategy rules allow the mesh on the pool."""
    facts = grid_facts(
        problem.model,
        devices=pool.devices,
        global_batch=mesh.dp,
        seq_len=problem.job.sequence_length,
    )
    return not violations(grid_of(problem, mesh, mbs=mesh.dp), facts=facts)
