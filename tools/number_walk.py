"""Write the walk of one number into docs/architecture.md, from a command to seconds on the screen.

    python tools/number_walk.py

Every step of the walk is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from shardwright.api.request_to_problem import facts_of, problem_of, space_of
from shardwright.api.simulate_grid_or_plan_of_request import simulate_legal_strategy
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.bounds.longest_path import path_seconds
from shardwright.cost.bounds.straggler_jitter import jitter_factor
from shardwright.cost.kernels.gemm_element_attention_seconds import gemm_seconds
from shardwright.cost.kernels.kernel_seconds_and_gemm_pieces_for_overlap import gemm_shape
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.cost.network.grid_groups_and_collective_seconds import move_seconds
from shardwright.cost.network.networks_of_plan_devices import (
    group_span,
    network_of_devices,
    plan_units,
)
from shardwright.cost.part_phase_recompute_keys import GEMM
from shardwright.cost.step.strategy_task_seconds import compose_step, step_costs
from shardwright.cost.tables.block_table import block_table
from shardwright.cost.tables.plan_block_costs import local_sizes
from shardwright.files.plan_argument import read_strategy
from shardwright.program.block.block_program import Phase
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.operator_cuts_on_one_device_of_plan import on_replica
from shardwright.program.block.symbolic_sizes import evaluate
from shardwright.program.lower_plan_to_tasks import lower_plan
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.program.stages.held_parameters import plan_holdings
from shardwright.program.stages.stage_segments import Segment, plan_stages
from shardwright.program.training_problem import Problem
from shardwright.report.screens.plan_screen import render_simulation
from shardwright.schedules.action_order_arrays import KINDS
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.members.enumerate_members import member_grid
from shardwright.search.search_request import Request
from shardwright.simulator.event_simulation_inputs import plan_kernel_tasks
from shardwright.simulator.kernel.event_kernel import simulate
from shardwright.simulator.peak_device_memory import plan_memory
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.simulator.step_breakdown import breakdown
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.units import GIB

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
BEGIN, END = "<!-- made by tools/number_walk.py -->\n", "<!-- end -->\n"
WORDS = (
    'llama-3.1-8b h100-sxm:8 --seq-len 8192 --global-batch 256 --strategy "tp2 sp dp4 mbs1 zero1"'
)
MODEL, CLUSTER, _, SEQ_LEN, _, BATCH, _, STRATEGY = shlex.split(WORDS)
Row = tuple[str, Callable[..., Any], str]


def dotted(verb: Callable[..., Any]) -> str:
    """The name that a function is imported by."""
    return f"{verb.__module__}.{verb.__qualname__}"


def walk() -> str:
    """The section, from its command to its last sum."""
    request = Request(model=MODEL, cluster=CLUSTER, seq_len=int(SEQ_LEN), global_batch=int(BATCH))
    problem = problem_of(request)
    grid = read_strategy(STRATEGY, model=problem.model, model_name=MODEL).strategy
    assert isinstance(grid, Grid)
    rows = [*_asked(problem, grid), *_a_layer(problem, grid), *_a_step(request, problem, grid)]
    lines = [
        f"    shardwright simulate {WORDS}\n\n",
        "| step | function | result |\n",
        "|---|---|---|\n",
    ]
    lines += [f"| {what} | `{dotted(verb)}` | {value} |\n" for what, verb, value in rows]
    return "".join((*lines, _sum(problem, grid), _bounds(request, problem, grid)))


def _asked(problem: Problem, grid: Grid) -> Iterator[Row]:
    """Rows from the command's words to a plan and the devices that hold each parameter."""
    model, job = problem.model, problem.job
    yield (
        "read the request",
        problem_of,
        (
            f"{model.num_parameters:,} parameters, {problem.cluster.num_devices} devices,"
            f" {job.tokens_per_step:,} tokens a step, {problem.runtime.name}"
        ),
    )
    yield "read the strategy", read_strategy, f"tp {grid.tp}, dp {grid.dp}, {grid.devices} devices"
    yield (
        "check the rules",
        violations,
        f"{len(violations(grid, facts=facts_of(problem)))} rules broken",
    )
    plan = plan_of(grid, model=model, global_batch=job.global_batch)
    lane = plan.lanes[0]
    yield (
        "write the grid as a general plan",
        plan_of,
        f"{len(lane.stages)} stage, {lane.samples} samples in {lane.microbatches} microbatches",
    )
    stages = plan_stages(plan, model=model)
    stage = stages[0][0]
    segments = " + ".join(f"{s.count} {s.block.name}" for s in stage.segments)
    yield (
        "group equal layers and equal devices",
        plan_stages,
        f"{segments}; {len(stage.families)} family of {len(stage.families[0])} devices",
    )
    held = plan_holdings(
        stages, model=model, length=job.sequence_length, islands=plan_units(problem)[0]
    )
    mine = [h for key, items in held.items() if key[3] == 0 for h in items]
    group = max(
        (h.group for h in mine),
        key=lambda g: sum(h.elements * h.layers for h in mine if h.group == g),
    )
    elements = sum(h.elements * h.layers for h in mine)
    yield (
        "find the devices that reduce each gradient together",
        plan_holdings,
        (
            f"device 0 holds {elements:,} elements, most of them reduced with devices"
            f" {', '.join(map(str, group[1:]))}"
        ),
    )


def _layer_of(problem: Problem, grid: Grid) -> Segment:
    plan = plan_of(grid, model=problem.model, global_batch=problem.job.global_batch)
    return max(
        plan_stages(plan, model=problem.model)[0][0].segments, key=lambda segment: segment.count
    )


def _a_layer(problem: Problem, grid: Grid) -> Iterator[Row]:
    """One layer on device 0: its kernels, its communication, its seconds."""
    segment, machine = _layer_of(problem, grid), problem_machine(problem)
    island = problem.cluster.tiers()[0].num_devices
    structure, _ = on_replica(segment.cells, 0, length=problem.job.sequence_length, island=island)
    program, sizes = (
        lower_block(segment.block, structure, block_context(problem, segment.block)),
        local_sizes(structure),
    )
    moves = [m for m in program.moves if len(m.group) > 1]
    yield (
        "lower a layer on one device",
        lower_block,
        f"{len(program.works)} kernels, {len(moves)} collectives in F, I and W",
    )
    up = next(w for w in program.works if (w.operator, w.phase) == ("up", Phase.F))
    (m, n, k), _, _ = gemm_shape(up, sizes)
    seconds = float(gemm_seconds(machine, m=m, n=n, k=k)[0])
    rate = 2.0 * int(m[0]) * int(n[0]) * int(k[0]) / seconds
    shape = f"{m[0]:,} x {n[0]:,} x {k[0]:,}"
    yield (
        "price a matrix multiplication: `up`, forward",
        gemm_seconds,
        f"{shape}: {seconds * 1e3:.4f} ms, {rate / 1e12:.0f} of {machine.peak / 1e12:.0f} TFLOP/s",
    )
    gather = next(
        m for m in moves if (m.operator, m.phase, m.kind) == ("up", Phase.F, Collective.ALL_GATHER)
    )
    network = network_of_devices(problem, gather.group)
    volume = np.array([float(sum(evaluate(size, sizes)[0] for size in gather.volume))])
    spent = move_seconds(
        gather.kind, volume=volume, span=group_span(gather.group, network), network=network
    )
    text = (
        f"{gather.kind.value} of {volume[0] / 2**20:.0f} MiB over devices"
        f" {' and '.join(map(str, gather.group))}: {spent[0] * 1e3:.4f} ms"
    )
    yield "price the collective before it", move_seconds, text
    table = block_table(
        program,
        local=sizes,
        spans=lambda move: (group_span(move.group or (0,), network),),
        machine=machine,
        network=network,
        runtime=problem.runtime,
        wait_s=problem.constants.collective_wait_s,
    )
    forward = table.seconds[0, :, 0]
    yield (
        "add up the forward pass of the layer",
        block_table,
        f"{forward.sum() * 1e3:.4f} ms, of which GEMMs {forward[GEMM] * 1e3:.4f} ms",
    )


def _a_step(request: Request, problem: Problem, grid: Grid) -> Iterator[Row]:
    """From layers to tasks, from tasks to the screen."""
    plan = plan_of(grid, model=problem.model, global_batch=problem.job.global_batch)
    done = simulate_plan(problem, plan)
    step = done.costs.step(0, 0, 0)
    passes = float(step.forward_s[0]) * 1e3, float(step.backward_s[0]) * 1e3
    yield (
        "add up the chunk",
        compose_step,
        (
            f"F {passes[0]:.3f} ms, B {passes[1]:.3f} ms, update"
            f" {float(step.optimizer_s[0]) * 1e3:.3f} ms"
        ),
    )
    rows = action_rows(plan)
    kinds = [KINDS[kind] for kind in rows.kind.tolist()]
    yield (
        "order the actions",
        action_rows,
        ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)),
    )
    yield (
        "make tasks with dependencies",
        lower_plan,
        f"{len(done.program.instances.template)} tasks of {len(done.program.templates)} kinds",
    )
    tasks = plan_kernel_tasks(problem, done.program, done.costs)
    yield (
        "give each task its time and resources",
        plan_kernel_tasks,
        f"{int(tasks[0].sum()):,} ps of work in all, {tasks[7]} resources",
    )
    _, finish, _ = simulate(*tasks)
    yield "simulate the tasks", simulate, f"the last one ends at {int(finish.max()):,} ps"
    yield (
        "multiply by the jitter of many devices",
        jitter_factor,
        f"x {jitter_factor(problem, plan.devices):.6g} on {plan.devices} devices",
    )
    yield "return the step time", simulate_plan, f"{done.step_time_s:.6f} s"
    memory = plan_memory(problem, done.program, done.costs)[0]
    yield (
        "add up the memory",
        plan_memory,
        f"{memory.allocated / GIB:.2f} GiB allocated, {memory.reserved / GIB:.2f} GiB reserved",
    )
    parts = sorted(breakdown(done), key=lambda part: -part[1])[:3]
    yield (
        "break the step time down",
        breakdown,
        ", ".join(f"{name} {seconds:.3f} s" for name, seconds in parts),
    )
    low, high = predict_plan(problem, plan, done).interval_s
    yield (
        "compute the prediction interval",
        predict_plan,
        f"80 % between {low:.2f} and {high:.2f} s",
    )
    console = Console(width=140, record=True, file=StringIO())
    console.print(render_simulation(simulate_legal_strategy(request, problem, name="", grid=grid)))
    line = next(line for line in console.export_text().splitlines() if line.startswith("Step"))
    yield "print the screen", render_simulation, f"`{' '.join(line.split())}`"


def _sum(problem: Problem, grid: Grid) -> str:
    """The step as a sum that can be done by hand."""
    plan = plan_of(grid, model=problem.model, global_batch=problem.job.global_batch)
    done = simulate_plan(problem, plan)
    step, parts = done.costs.step(0, 0, 0), dict(breakdown(done))
    count, forward, backward = (
        plan.lanes[0].microbatches,
        float(step.forward_s[0]),
        float(step.backward_s[0]),
    )
    rest = [
        (name, parts[key])
        for name, key in (
            ("exposed gathers and reductions", "sharding"),
            ("slowdown from overlap", "slowdown"),
            ("optimizer step", "optimizer"),
        )
    ]
    total = count * (forward + backward) + sum(seconds for _, seconds in rest)
    added = " + ".join(f"{seconds:.4f} s of {name}" for name, seconds in rest)
    return (
        f"\nBy hand: {count} x ({forward:.6f} + {backward:.6f}) s ="
        f" {count * (forward + backward):.4f} s, + {added} = {total:.4f} s.\n"
    )


def _bounds(request: Request, problem: Problem, grid: Grid) -> str:
    """Lower bounds of the same grid, which a search computes before it simulates."""
    facts = facts_of(problem)
    pins = {
        axis: (str(getattr(grid, axis)),) for axis in ("tp", "cp", "pp", "vpp", "zero", "offload")
    }
    space = replace(
        space_of(Request(**{**_fields(request), "pins": tuple(pins.items())}), problem, facts),
        options=(),
    )
    bounded = bound_space(problem, space, facts, capacity=10**15)
    place = next(
        i for i in range(bounded.members.num_members) if member_grid(bounded.members, i) == grid
    )
    path = path_seconds(problem, grid, step_costs(problem, grid, bounded.prepared.priced(place)))
    simulated_s = simulate_plan(
        problem, plan_of(grid, model=problem.model, global_batch=problem.job.global_batch)
    ).step_time_s
    return (
        "\nA search computes lower bounds of this grid first, from arrays of degrees: B0 ="
        f" {bounded.seconds[place]:.4f} s (`{dotted(bound_space)}`), B1 = {path:.4f} s"
        f" (`{dotted(path_seconds)}`), simulated S = {simulated_s:.4f} s as above.\n"
    )


def _fields(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


def written(page: str) -> str:
    """`page` with the section made again."""
    return re.sub(
        re.escape(BEGIN) + ".*?" + re.escape(END),
        lambda _: BEGIN + walk() + END,
        page,
        flags=re.DOTALL,
    )


def main() -> None:
    """Write the section into the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
