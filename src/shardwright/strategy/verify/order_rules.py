"""Rules of a plan's pipeline orders: lanes, rows and actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardwright.errors import nearest
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane, Role
from shardwright.strategy.plan.operator_split_tree import devices_of, num_leaves
from shardwright.strategy.plan.pipeline_order import Action, Kind, Table, actions_of
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.split_tree_span_and_leaf_overlap import MAX_LISTED
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy
from shardwright.strategy.rule_violations import Violation
from shardwright.strategy.verify.block_coverage import StagePieces, operators_of

Chunk = tuple[int, int]
Row = tuple[Action, ...]


def order_rules(plan: Plan, *, pieces: dict[str, StagePieces], model: Model) -> Iterator[Violation]:
    """Check the pipeline orders of a plan: each lane in one order, and tables row by row.

    Args:
        pieces: by lane, the blocks and operators of each stage.
    """
    lanes = {lane.name: lane for lane in plan.lanes}
    times = Counter(name for order in plan.orders for name in order.lanes)
    for name in times:
        if name not in lanes:
            yield Violation(
                rule="order.lanes",
                message=f"there is no lane {name!r}",
                hint=nearest(name, lanes),
                path="order",
            )
    for name in lanes:
        if times[name] != 1:
            yield Violation(
                rule="order.lanes",
                message=f"lane {name} is in {times[name]} orders",
                hint="in exactly one",
                path=f"lane {name}",
            )
    if any(times[name] != 1 for name in lanes) or set(times) - set(lanes):
        return
    if len(plan.orders) > 1:
        yield from _shared_device_violations(plan, lanes)
    for i, order in enumerate(plan.orders):
        if isinstance(order, Table):
            yield from _table_violations(
                order, [lanes[name] for name in order.lanes], pieces, model=model, path=f"order {i}"
            )


def stage_devices(lane: Lane, chunk: int) -> frozenset[int]:
    """Devices of a stage; empty if the stage's split trees are too large to list."""
    stage = lane.stages[chunk]
    if any(num_leaves(p.split) > MAX_LISTED for p in stage.placements):
        return frozenset()
    return frozenset(
        d for p in stage.placements for d in devices_of(p.split, stage.base + p.offset)
    )


def _shared_device_violations(plan: Plan, lanes: dict[str, Lane]) -> Iterator[Violation]:
    """Check that any two lanes on one device belong to the same pipeline order."""
    owner: dict[int, tuple[int, str]] = {}
    for i, order in enumerate(plan.orders):
        for name in order.lanes:
            lane = lanes[name]
            for device in frozenset().union(
                *(stage_devices(lane, c) for c in range(len(lane.stages)))
            ):
                order_index, owner_name = owner.setdefault(device, (i, name))
                if order_index != i:
                    yield Violation(
                        rule="order.joint",
                        message=(
                            f"lanes {owner_name} and {name} share device {device} but not an order"
                        ),
                        hint="one order for lanes that share devices",
                        path=f"order {i}",
                    )
                    return


def _table_violations(
    table: Table,
    lanes: list[Lane],
    pieces: dict[str, StagePieces],
    *,
    model: Model,
    path: str,
) -> Iterator[Violation]:
    """Check one order table: one row for each class of devices, with the actions of the class."""
    takes: dict[int, list[Chunk]] = {}
    for i, lane in enumerate(lanes):
        for chunk in range(len(lane.stages)):
            for device in stage_devices(lane, chunk):
                takes.setdefault(device, []).append((i, chunk))
    classes: dict[frozenset[Chunk], int] = {}
    for device in sorted(takes):
        classes.setdefault(frozenset(takes[device]), device)
    keys = [key for key, _ in table.rows]
    if sorted(keys) != sorted(classes.values()):
        yield Violation(
            rule="order.rows",
            message=(
                f"rows for devices {_first_numbers(keys)}, but the classes begin at"
                f" {_first_numbers(sorted(classes.values()))}"
            ),
            hint=(
                "one row for each class of devices that take part in the same stages, keyed by its"
                " lowest device"
            ),
            path=path,
        )
        return
    chunks = {device: members for members, device in classes.items()}
    rows = {key: tuple(a for entry in row for a in actions_of(entry)) for key, row in table.rows}
    for device, row in rows.items():
        yield from _row_violations(
            row, chunks[device], lanes, pieces, model=model, path=f"{path} / row {device}"
        )
    yield from _common_order_violations(rows, chunks, path=path)


def _first_numbers(numbers: list[int]) -> str:
    """The first eight numbers separated by spaces, with ``..`` for further numbers."""
    return " ".join(map(str, numbers[:8])) + (" .." if len(numbers) > 8 else "")


def _row_violations(
    row: Row,
    members: frozenset[Chunk],
    lanes: list[Lane],
    pieces: dict[str, StagePieces],
    *,
    model: Model,
    path: str,
) -> Iterator[Violation]:
    """Check one row: each forward once, and for trained chunks one backward, whole or in halves."""
    times = Counter((a.lane, a.chunk, a.microbatch, a.slice, a.kind) for a in row)
    counts = {(i, c): lanes[i].microbatches // max(1, lanes[i].stages[c].every) for i, c in members}
    if sum(counts.values()) > len(row):
        yield Violation(
            rule="order.actions",
            message=f"{len(row)} actions for {sum(counts.values())} forwards",
            path=path,
        )
        return
    expected_units = {
        (i, c, m, s)
        for (i, c), count in counts.items()
        for m in range(count)
        for s in range(max(1, len(lanes[i].slices)))
    }
    action = next(
        (a for a in row if (a.lane, a.chunk, a.microbatch, a.slice) not in expected_units), None
    )
    if action:
        message = (
            f"chunk {action.chunk} microbatch {action.microbatch} slice {action.slice} is not"
            " these devices' work"
        )
        yield Violation(
            rule="order.actions",
            message=message,
            hint="only stages that the devices take part in",
            path=path,
        )
        return
    for unit in sorted(expected_units):
        forward, input_grad, weight_grad, full_grad = (
            times[(*unit, kind)] for kind in (Kind.F, Kind.I, Kind.W, Kind.B)
        )
        lane = lanes[unit[0]]
        trained = lane.role is Role.TRAIN and any(
            p.trainable
            for piece in pieces[lane.name][unit[1]]
            for o in operators_of(piece, model=model)
            for p in o.parameters
        )
        half_backwards = input_grad == weight_grad == 1 and not full_grad
        full_backward = full_grad == 1 and not input_grad and not weight_grad
        partial = not trained and max(input_grad, weight_grad, full_grad) <= 1
        # the first chunk that is trained needs no input gradient, so a lone W is a backward too
        weight_only = weight_grad == 1 and not full_grad and not input_grad
        if forward != 1 or not (half_backwards or full_backward or partial or weight_only):
            message = (
                f"chunk {unit[1]} microbatch {unit[2]} slice {unit[3]}: F {forward}, I"
                f" {input_grad}, W {weight_grad}, B {full_grad} times"
            )
            yield Violation(
                rule="order.actions",
                message=message,
                hint="F once, then B once or I and W once",
                path=path,
            )
            return
    yield from _recompute_violations(row, lanes, path=path)


def _recompute_violations(row: Row, lanes: list[Lane], *, path: str) -> Iterator[Violation]:
    """Check recompute actions: only on chunks that recompute, once between forward and backward."""
    places: dict[tuple[int, int, int, int], str] = {}
    for action in row:
        unit = (action.lane, action.chunk, action.microbatch, action.slice)
        places[unit] = places.get(unit, "") + action.kind.value
    for (lane, chunk, microbatch, part), kinds in places.items():
        recomputes = any(
            keep.how is ActivationPolicy.RECOMPUTE for keep in lanes[lane].stages[chunk].keeps
        )
        if "R" in kinds and (not recomputes or not kinds.startswith("FR") or kinds.count("R") > 1):
            yield Violation(
                rule="order.recompute",
                message=f"chunk {chunk} microbatch {microbatch} slice {part}: {' '.join(kinds)}",
                hint="R once, between F and its backward, where a recompute line asks for it",
                path=path,
            )
            return


def _common_order_violations(
    rows: dict[int, Row], chunks: dict[int, frozenset[Chunk]], *, path: str
) -> Iterator[Violation]:
    """Check that classes of devices run the actions of their common stages in the same order."""
    devices = sorted(rows)
    for i, row in enumerate(devices):
        for peer in devices[i + 1 :]:
            common = chunks[row] & chunks[peer]
            if not common:
                continue
            actions, other_actions = (
                [a for a in rows[d] if (a.lane, a.chunk) in common] for d in (row, peer)
            )
            if actions != other_actions:
                yield Violation(
                    rule="order.rendezvous",
                    message=f"rows {row} and {peer} run their common stages in different orders",
                    hint="the members of a collective must meet",
                    path=path,
                )
