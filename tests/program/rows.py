"""Rows of actions run by hand, without the package's graphs and kernels, and small plans to
order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.schedules.action_order_arrays import KINDS
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.operator_split_tree import Split, devices_of
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import Item, Placement, Selector, Stage
from shardwright.strategy.text.parse_plan import parse_plan

Act = tuple[str, int, int, int, int]
"""(letter, lane, chunk, microbatch, slice)."""
ZOO = Path(__file__).parents[1] / "strategy" / "zoo"


def zoo(name: str) -> Plan:
    return parse_plan((ZOO / f"{name}.plan").read_text())


def stage(base: int, *, devices: int = 1, step: int = 1) -> Stage:
    """One block copied on some devices."""
    split = Split(dim=Dim.REPLICATE, parts=devices, step=step) if devices > 1 else None
    return Stage(
        items=(Item(count=1),), base=base, placements=(Placement(select=Selector(), split=split),)
    )


def plan_of(
    lanes: Sequence[Sequence[Stage]],
    order: NamedOrder | Table,
    *,
    microbatches: int,
    slices: tuple[int, ...] = (),
) -> Plan:
    """A plan whose lanes are named after the order's."""
    made = tuple(
        Lane(
            name=name,
            samples=microbatches,
            microbatches=microbatches,
            stages=tuple(stages),
            slices=slices,
        )
        for name, stages in zip(order.lanes, lanes, strict=True)
    )
    return Plan(devices=64, lanes=made, orders=(order,))


def devices(plan: Plan, lane: int, chunk: int) -> set[int]:
    one = plan.lanes[lane].stages[chunk]
    return {device for p in one.placements for device in devices_of(p.split, one.base + p.offset)}


def entries(rows: ActionRows) -> list[list[tuple[Act, ...]]]:
    """Rows as actions and pairs."""
    result = []
    for start, end in zip(rows.row_start[:-1], rows.row_start[1:], strict=True):
        row: list[tuple[Act, ...]] = []
        pending: tuple[Act, ...] = ()
        for at in range(start, end):
            act = (
                KINDS[rows.kind[at]],
                int(rows.lane[at]),
                int(rows.chunk[at]),
                int(rows.microbatch[at]),
                int(rows.slice[at]),
            )
            pending = (*pending, act)
            if rows.overlapped is None or not rows.overlapped[at]:
                row.append(pending)
                pending = ()
        assert not pending
        result.append(row)
    return result


def feeds(
    plan: Plan, edges: Sequence[Sequence[tuple[int, int]]] | None
) -> list[list[tuple[int, int]]]:
    if edges is not None:
        return [list(one) for one in edges]
    return [[(c, c + 1) for c in range(len(lane.stages) - 1)] for lane in plan.lanes]


def needs_of(
    act: Act, plan: Plan, links: list[list[tuple[int, int]]], present: set[Act]
) -> list[tuple[Act, bool]]:
    """What an action waits for, and whether it comes from another stage; W of a B is its B."""
    letter, lane, chunk, microbatch, part = act
    parts = max(1, len(plan.lanes[lane].slices))
    stages = plan.lanes[lane].stages

    def units(other: int) -> list[int]:
        mine, theirs = stages[chunk].every, stages[other].every
        return sorted({m // theirs for m in range(microbatch * mine, (microbatch + 1) * mine)})

    def back(c: int, m: int, s: int) -> list[Act]:
        return [(k, lane, c, m, s) for k in "IB" if (k, lane, c, m, s) in present]

    needs: list[tuple[Act, bool]] = []
    if letter == "F":
        needs += [
            (("F", lane, before, m, part), True)
            for before, after in links[lane]
            if after == chunk
            for m in units(before)
        ]
        needs += [(("F", lane, chunk, microbatch, part - 1), False)] if part else []
    elif letter == "W" and ("I", lane, chunk, microbatch, part) in present:
        needs.append((("I", lane, chunk, microbatch, part), False))
    else:
        needs.append((("F", lane, chunk, microbatch, part), False))
        needs += [
            (b, True)
            for before, after in links[lane]
            if before == chunk
            for m in units(after)
            for b in back(after, m, part)
        ]
        if part + 1 < parts:
            needs += [(b, False) for b in back(chunk, microbatch, part + 1)]
    return needs


def run_rows(
    plan: Plan,
    rows: ActionRows,
    *,
    edges: Sequence[Sequence[tuple[int, int]]] | None = None,
    lasts: Callable[[Act], int] = lambda act: 1,
    send: Callable[[Act], int] = lambda act: 0,
) -> int:
    """When the last action ends; -1 if some action waits for ever. All rows that hold an action run
    it together."""
    links = feeds(plan, edges)
    table = entries(rows)
    present = {act for row in table for entry in row for act in entry}
    holders = {
        act: {r for r, row in enumerate(table) for entry in row if act in entry} for act in present
    }
    end: dict[Act, int] = {}
    at, free = [0] * len(table), [0] * len(table)
    moving = True
    while moving:
        moving = False
        for r, row in enumerate(table):
            if at[r] == len(row):
                continue
            together, fresh = {r}, [r]
            group: list[Act] = []
            while fresh:
                one = fresh.pop()
                if at[one] == len(table[one]):
                    group = []
                    break
                for act in table[one][at[one]]:
                    if act not in group:
                        group.append(act)
                    others = holders[act] - together
                    together |= others
                    fresh += others
            if not group or any(not set(table[one][at[one]]) <= set(group) for one in together):
                continue
            if any(act not in table[one][at[one]] for act in group for one in holders[act]):
                continue
            needs = [
                need
                for act in group
                for need in needs_of(act, plan, links, present)
                if need[0] in present
            ]
            if any(need not in end for need, _ in needs):
                continue
            start = max(
                [free[one] for one in together]
                + [end[need] + (send(need) if moved else 0) for need, moved in needs]
            )
            for act in group:
                end[act] = start + sum(lasts(one) for one in group)
            for one in together:
                at[one] += 1
                free[one] = start + sum(lasts(act) for act in group)
            moving = True
    return (
        max(end.values(), default=0)
        if all(at[r] == len(row) for r, row in enumerate(table))
        else -1
    )


def peaks(
    rows: ActionRows, *, held: Callable[[Act], int], stash: Callable[[Act], int]
) -> list[int]:
    """Most that each row holds from F to I, and of that what stays to W, or from F to B."""
    result = []
    for row in entries(rows):
        level = peak = 0
        acts = [act for entry in row for act in entry]
        for act in acts:
            other = {letter: (letter, *act[1:]) in acts for letter in "IWB"}
            if act[0] == "F" and (other["W"] or other["B"]):
                level += held(act)
            elif act[0] == "I" and other["W"]:
                level -= held(act) - stash(act)
            elif act[0] == "W":
                level -= stash(act) if other["I"] else held(act)
            elif act[0] == "B":
                level -= held(act)
            peak = max(peak, level)
        assert level == 0
        result.append(peak)
    return result
