"""Mixed plans, and their conversion to the general plan form.

Each shape becomes a lane; its stages are on the pools' devices, with replicas of a stage side by
side.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.stages.cheapest_recompute_that_fits import (
    FIRST,
    LAST,
    Recompute,
    StateSharers,
)
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import LayerPattern
from shardwright.search.mixed.stages.stage_cost_table import StageTable
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.search.mixed.stages.tensor_and_expert_meshes_of_stage import grid_of
from shardwright.search.mixed_cluster_certificate import Subspace
from shardwright.strategy.grid.grid_to_plan import FULL, chunk_items, grid_placements, grid_shards
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan, Shards
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy, Keep, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLane:
    """Replicas of one pipeline shape in a plan.

    Args:
        rows: stage-table row of each run of stages.
        stages: number of stages of each run.
        sizes: units of layers of each stage.
        microbatches: microbatches of each replica.
    """

    rows: tuple[int, ...]
    stages: tuple[int, ...]
    sizes: tuple[int, ...]
    replicas: int
    microbatches: int

    def stage_rows(self) -> tuple[int, ...]:
        """Stage-table row of each single stage of the lane, in pipeline order."""
        return tuple(
            row for row, count in zip(self.rows, self.stages, strict=True) for _ in range(count)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """A mixed plan: lanes that share the batch."""

    lanes: tuple[MixedLane, ...]

    @property
    def replicas(self) -> int:
        """Number of pipeline replicas of all lanes."""
        return sum(lane.replicas for lane in self.lanes)


def pipelines_text(table: StageTable, plan: MixedPlan) -> str:
    """Describe a mixed plan in one line, a part for each lane.

    ``4 x (2 stages h100-sxm tp2 + 1 stage l40s tp4) mbs1 of 32 microbatches, layers 13 13 6``.
    Where the data-parallel members of a lane's runs have different microbatch sizes, both are
    written: mbs2/1.
    """

    def run(row: int, stages: int) -> str:
        """Text of one run of equal stages, such as ``2 stages h100-sxm tp2``."""
        return f"{stages} stage{'s' if stages > 1 else ''} {table.text(row)}"

    def runs(lane: MixedLane) -> str:
        """Texts of a lane's runs of stages, joined by plus signs."""
        pairs = zip(lane.rows, lane.stages, strict=True)
        return " + ".join(run(row, stages) for row, stages in pairs)

    def sizes(lane: MixedLane) -> str:
        """Distinct microbatch sizes of a data-parallel member in the runs, such as ``2/1``."""
        return "/".join(
            dict.fromkeys(str(int(table.mbs[row]) // table.mesh(row).dp) for row in lane.rows)
        )

    return "; ".join(
        f"{lane.replicas} x"
        f" ({runs(lane)})"
        f" mbs{sizes(lane)} of {lane.microbatches}"
        f" microbatch{'es' if lane.microbatches > 1 else ''}, layers"
        f" {' '.join(map(str, table.pattern.layers(lane.sizes)))}"
        for lane in plan.lanes
    )


def devices_of(table: StageTable, plan: MixedPlan) -> list[int]:
    """Number of devices of each pool that a plan uses."""
    devices = [0] * len(table.pools)
    for lane in plan.lanes:
        for row in lane.stage_rows():
            devices[table.pool[row]] += lane.replicas * int(table.size[row])
    return devices


def subspace_of(table: StageTable, plan: MixedPlan) -> Subspace:
    """Subspace with exactly a plan's replicas, nodes (fractions count) and smallest tp."""
    tp = min(int(table.tp[row]) for lane in plan.lanes for row in lane.rows)
    nodes = sum(
        used / pool.node for used, pool in zip(devices_of(table, plan), table.pools, strict=True)
    )
    sharded, many = (
        any(zero_of(table, lane) > 1 for lane in plan.lanes),
        (plan.replicas, plan.replicas),
    )
    return Subspace(
        replicas=many,
        tp=tp,
        nodes=(nodes, nodes),
        sharded=sharded,
        alone=sharded and len(plan.lanes) == 1,
    )


def zero_of(table: StageTable, lane: MixedLane) -> int:
    """ZeRO stage (1 to 3) of a lane, that of its first run's row."""
    return int(table.zero[lane.rows[0]])


def state_sharers_of(table: StageTable, plan: MixedPlan) -> StateSharers:
    """Numbers of replicas and, at the fewest, members that share a plan's optimizer states.

    Of each lane's runs the one with the fewest members counts, so that the plan fits wherever each
    layer is. The same holds for two lanes of one row that shard each for itself.
    """
    members = sum(
        lane.replicas * min(table.mesh(row).dp for row in lane.rows) for lane in plan.lanes
    )
    sharding_lanes = [
        (row, lane.replicas) for lane in plan.lanes if zero_of(table, lane) > 1 for row in lane.rows
    ]
    lanes = tuple(
        sorted(
            {
                row: min(replicas for other, replicas in sharding_lanes if other == row)
                for row, _ in sharding_lanes
            }.items()
        )
    )
    apart = bool(lanes) and len(plan.lanes) > 1
    return StateSharers(
        members=(members,) * len(table.meshes),
        replicas=plan.replicas,
        several=plan.replicas > 1,
        lanes=lanes,
        apart=apart,
    )


def general_plan(stage_costs: MixedStageCosts, plan: MixedPlan, *, options: Options = ()) -> Plan:
    """Convert a mixed plan to a `Plan` with devices, 1F1B orders, recomputation and shards.

    Of each pool the stages with more devices come first, so that no process group crosses a node.
    """
    problem, table, experts = (
        stage_costs.problem,
        stage_costs.table,
        has_experts(stage_costs.problem.model),
    )
    recompute = stage_costs.recompute(state_sharers_of(table, plan))
    bases = _stage_first_devices(table, plan)
    lanes, last = [], 0
    for number, lane in enumerate(plan.lanes):
        chunks = chunk_items(problem.model, chunks=table.pattern.layers(lane.sizes))
        stages = []
        for place, row in enumerate(lane.stage_rows()):
            base, mesh = bases[number, place], table.mesh(row)
            last = max(last, base + mesh.size * lane.replicas)
            grid = grid_of(problem, mesh, mbs=int(table.mbs[row]), replicas=lane.replicas)
            keeps = _stage_recomputation(recompute, table.pattern, lane, place, row)
            stages.append(
                Stage(
                    items=chunks[place],
                    base=base,
                    placements=grid_placements(grid, experts=experts),
                    keeps=keeps,
                )
            )
        samples = lane.replicas * lane.microbatches * int(table.mbs[lane.rows[0]])
        lanes.append(
            Lane(
                name=lane_name(number),
                samples=samples,
                microbatches=lane.microbatches,
                stages=tuple(stages),
            )
        )
    return Plan(
        devices=last,
        lanes=tuple(lanes),
        orders=tuple(NamedOrder(schedule="1f1b", lanes=(lane.name,)) for lane in lanes),
        shards=_shards(table, plan),
        options=options,
    )


def _shards(table: StageTable, plan: MixedPlan) -> tuple[Shards, ...]:
    """Shard rules: ZeRO-1 over all plain lanes, and one rule for each lane that shards more."""
    rules = (
        []
        if all(zero_of(table, lane) > 1 for lane in plan.lanes)
        else list(grid_shards(Grid(zero=1), experts=False))
    )
    for number, lane in enumerate(plan.lanes):
        if (zero := zero_of(table, lane)) > 1:
            (rule,) = grid_shards(Grid(zero=zero), experts=False)
            rules.append(replace(rule, lanes=(lane_name(number),)))
    return tuple(rules)


def lane_name(number: int) -> str:
    """Name of a lane by its index: a to z, then lane26, lane27 and so on."""
    return "abcdefghijklmnopqrstuvwxyz"[number] if number < 26 else f"lane{number}"


def _stage_first_devices(table: StageTable, plan: MixedPlan) -> dict[tuple[int, int], int]:
    """Cluster-wide number of the first device of each stage, by (lane index, stage index)."""
    free = [pool.first for pool in table.pools]
    places = [
        (number, place, row)
        for number, lane in enumerate(plan.lanes)
        for place, row in enumerate(lane.stage_rows())
    ]
    first_devices = {}
    for number, place, row in sorted(places, key=lambda one: -int(table.size[one[2]])):
        pool, size = table.pools[table.pool[row]], int(table.size[row])
        start = pool.first + -(-(free[pool.group] - pool.first) // size) * size
        first_devices[number, place] = start
        free[pool.group] = start + size * plan.lanes[number].replicas
        assert free[pool.group] <= pool.first + pool.devices, f"{pool.name} has no room"
    return first_devices


def _stage_recomputation(
    recompute: Recompute, pattern: LayerPattern, lane: MixedLane, stage_index: int, row: int
) -> tuple[Keep, ...]:
    """Recomputation of a stage: its first units of layers in full, the next ones selectively."""
    stages = len(lane.sizes)
    role = (FIRST if stage_index == 0 else 0) + (LAST if stage_index == stages - 1 else 0)
    at, alone = (
        (row, role, min(lane.microbatches, stages - stage_index) - 1, lane.sizes[stage_index]),
        row - len(recompute.full),
    )
    if alone >= 0:
        full, selective = int(recompute.whole_full[alone]), int(recompute.whole_selective[alone])
    else:
        full, selective = int(recompute.full[at]), int(recompute.selective[at])
    begin = 0 if stage_index else pattern.first
    ranges = (
        (begin + a * pattern.period, begin + b * pattern.period, what)
        for a, b, what in ((0, full, FULL), (full, full + selective, "core"))
    )
    return tuple(
        Keep(blocks=(a, b - 1), how=ActivationPolicy.RECOMPUTE, operators=(what,))
        for a, b, what in ranges
        if a < b
    )
