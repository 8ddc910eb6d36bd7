"""Search for the recomputation of each rank of a joint plan together with its action order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.cost.step.strategy_rank_bytes import again_bytes
from shardwright.cost.step.strategy_task_seconds import StepCosts
from shardwright.errors import InfeasibleError
from shardwright.program.training_problem import Problem
from shardwright.search.joint.joint_plan_and_step_costs import (
    ChunkChoice,
    JointPlan,
    joint_step_costs,
    layout_of_plan,
    with_recompute_temporaries,
)
from shardwright.search.joint.joint_space import ShapedSpace
from shardwright.search.joint.model_as_chain_of_one_layer_positions import chain_of
from shardwright.search.joint.search_order_of_joint_plan_within_memory import (
    UNITS_PER_SECOND,
    OrderedPlan,
    activation_room_of_ranks,
    order_problem,
    with_order,
)
from shardwright.search.orders.chunk_memory_options import MemoryOption
from shardwright.search.orders.find_order_and_memory import find_order_with_memory

MOST_OPTIONS = 16
"""Most recomputation options of one chunk in a search."""


def search_recompute_and_order(
    problem: Problem, shaped: ShapedSpace, plan: JointPlan, *, capacity: int, effort: float
) -> OrderedPlan | None:
    """The plan with recompute and order found together; None if chunks > 1, all fits or none fits.

    None where nothing fits, or where everything fits without recomputation.

    A rank recomputes any number of its first layers in full and any number of the next ones
    selectively. The choice decides how many microbatches are in flight, so order and recomputation
    are one search (`search.orders.find_order_and_memory`), which begins from the plan's choice.

    Args:
        plan: one chunk a rank.
        effort: as in `find_order_with_memory`.
    """
    if plan.chunks_per_rank > 1:
        return None
    bare = replace(
        plan, chunks=tuple(ChunkChoice(layers=chunk.layers) for chunk in plan.chunks), table=None
    )
    costs = joint_step_costs(problem, shaped, bare)
    room = activation_room_of_ranks(problem, costs, capacity=capacity)
    if (room >= plan.microbatches * costs.saved_bytes).all():
        return None
    choices = [
        _pareto_options(problem, shaped, bare, costs, rank, capacity=capacity)
        for rank in range(plan.ranks)
    ]
    for rank, chunk in enumerate(plan.chunks):
        if chunk not in choices[rank]:
            choices[rank] |= memory_options_of_rank(
                problem, shaped, bare, costs, rank, [chunk], capacity=capacity
            )
    options = [tuple(each.values()) for each in choices]
    begun_with = [list(each).index(chunk) for each, chunk in zip(choices, plan.chunks, strict=True)]
    try:
        # The options state the saved bytes.
        order_question = order_problem(
            problem,
            bare,
            replace(costs, saved_bytes=np.zeros_like(costs.saved_bytes)),
            capacity=capacity,
        )
        solution = find_order_with_memory(
            order_question, options, starts=[begun_with], effort=effort
        )
    except InfeasibleError:
        return None
    chosen = tuple(list(each)[place] for each, place in zip(choices, solution.choice, strict=True))
    return with_order(
        problem, shaped, replace(bare, chunks=chosen), solution.order.table, capacity=capacity
    )


def _pareto_options(
    problem: Problem,
    shaped: ShapedSpace,
    plan: JointPlan,
    costs: StepCosts,
    rank: int,
    *,
    capacity: int,
) -> dict[ChunkChoice, MemoryOption]:
    """Pareto-optimal recomputation choices of a rank in time and memory, as memory options.

    At most `MOST_OPTIONS`, evenly selected.
    """
    layers = plan.chunks[rank].layers
    choices = [
        ChunkChoice(layers=layers, redone=x, selective=y)
        for x in range(layers + 1)
        for y in range(layers - x + 1)
    ]
    priced = memory_options_of_rank(problem, shaped, plan, costs, rank, choices, capacity=capacity)
    useful: list[ChunkChoice] = []
    least_bytes = 2**62
    for chunk, option in sorted(
        priced.items(), key=lambda item: (item[1].extra, item[1].held + item[1].working)
    ):
        if option.held + option.working < least_bytes:
            useful.append(chunk)
            least_bytes = option.held + option.working
    places = np.unique(np.linspace(0, len(useful) - 1, MOST_OPTIONS).round().astype(int)).tolist()
    return {useful[place]: priced[useful[place]] for place in places}


def memory_options_of_rank(
    problem: Problem,
    shaped: ShapedSpace,
    plan: JointPlan,
    costs: StepCosts,
    rank: int,
    chunks: list[ChunkChoice],
    *,
    capacity: int,
) -> dict[ChunkChoice, MemoryOption]:
    """Recomputation choices of a rank as memory options of an order search: nanoseconds and bytes.

    Recomputation restores the inputs of weight gradients, so a chunk that recomputes has whole
    backwards.

    Args:
        plan: the plan without recomputation.
        costs: the costs of its step.
    """
    chain, layout = chain_of(problem.model), layout_of_plan(problem, plan)
    begin = sum(chunk.layers for chunk in plan.chunks[:rank])
    positions = slice(begin, begin + plan.chunks[rank].layers)
    row = int(shaped.prepared.layer_row[plan.outers[rank]])
    seconds = shaped.prepared.layers.seconds[:, 3:5, :, row].sum(axis=2)
    held = shaped.prepared.layers.saved_bytes[:, :, row]
    counts = dict.fromkeys((1, 2), chain.redone[positions])
    # Prefix sums over positions of the seconds and saved bytes of mode 1 (selective) and 2 (full),
    # and the bytes that each position recomputes.
    longer = {
        mode: np.concatenate(([0.0], np.cumsum(each @ seconds[:, mode - 1])))
        for mode, each in counts.items()
    }
    saved = {
        mode: np.concatenate(([0], np.cumsum(each @ (held[:, mode] - held[:, 0]))))
        for mode, each in counts.items()
    }
    remade = {
        mode: np.where((each > 0) & layout.layer, again_bytes(held, mode), 0).max(axis=1)
        for mode, each in counts.items()
    }
    rooms: dict[int, int] = {}

    def room(again: int) -> int:
        """Bytes for the rank's saved activations if backward makes `again` bytes anew; cached."""
        if again not in rooms:
            step = with_recompute_temporaries(
                shaped, plan, layout, costs, np.full(plan.ranks, again)
            )
            rooms[again] = int(activation_room_of_ranks(problem, step, capacity=capacity)[rank])
        return rooms[again]

    options: dict[ChunkChoice, MemoryOption] = {}
    for chunk in chunks:
        a, b = chunk.redone, chunk.redone + chunk.selective
        kept = int(costs.saved_bytes[rank] + saved[2][a] + saved[1][b] - saved[1][a])
        again = max(int(remade[2][:a].max(initial=0)), int(remade[1][a:b].max(initial=0)))
        options[chunk] = MemoryOption(
            extra=round((longer[2][a] + longer[1][b] - longer[1][a]) * UNITS_PER_SECOND),
            held=kept,
            stash=0 if b else kept,
            working=max(room(0) - room(again), 0),
            whole=b > 0,
        )
    return options
