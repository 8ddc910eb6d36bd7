"""The model's chain of blocks, and the items, operators and stage of a part of it."""

from __future__ import annotations

from shardwright.errors import StrategyError
from shardwright.model.ir.operator import Operator
from shardwright.program.training_problem import Problem
from shardwright.search.exact.enumerate_tensor_split_trees import tree_placements
from shardwright.strategy.plan.operator_split_tree import Split
from shardwright.strategy.plan.stage_splits_and_policies import Item, Stage


def chain_items(problem: Problem) -> tuple[tuple[str, int], ...]:
    """(run name, number of blocks) of each run of a model; StrategyError if it is no chain.

    Raises:
        StrategyError: the blocks are no chain, or share weights (rules ``search.chain``,
            ``search.tied``), which this search does not support.
    """
    runs = problem.model.runs
    for before, run in zip((None, *runs), runs, strict=False):
        if run.inputs != (() if before is None else (before.name,)):
            raise StrategyError(
                f"{run.name} does not follow the block before it alone",
                hint="this search cuts chains only",
                rule="search.chain",
            )
    if any(
        p.tied_to for block in problem.model.blocks for o in block.operators for p in o.parameters
    ):
        raise StrategyError(
            "weights are shared between blocks",
            hint="this search prices stages one by one",
            rule="search.tied",
        )
    return tuple((run.name, run.count) for run in runs)


def chain_blocks(problem: Problem) -> int:
    """Number of blocks of the model's chain."""
    return sum(count for _, count in chain_items(problem))


def items_between(problem: Problem, first: int, end: int) -> tuple[Item, ...]:
    """Blocks first .. end - 1 of the chain as the items of a stage."""
    items, passed = [], 0
    for name, count in chain_items(problem):
        count_in_stage = min(end, passed + count) - max(first, passed)
        if count_in_stage > 0:
            items.append(Item(name=name, count=count_in_stage if count > 1 else 0))
        passed += count
    return tuple(items)


def operators_between(problem: Problem, first: int, end: int) -> tuple[Operator, ...]:
    """Operators of the runs that have any of blocks first .. end - 1 of the chain, each once."""
    names = {item.name for item in items_between(problem, first, end)}
    model = problem.model
    return tuple(
        o for run in model.runs if run.name in names for o in model.blocks[run.block].operators
    )


def stage_of_blocks(
    problem: Problem, *, first: int, end: int, tree: Split | None, first_device: int
) -> Stage:
    """The stage of blocks first .. end - 1, cut by `tree` (None = one device), from a device on."""
    operators = operators_between(problem, first, end)
    return Stage(
        items=items_between(problem, first, end),
        base=first_device,
        placements=tree_placements(tree, operators),
    )
