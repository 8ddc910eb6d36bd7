"""General plans that are legal by construction: random models, devices, cuts, trees, ranges, keeps,
lanes and orders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hypothesis import strategies as st

from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Mask, Operator, OperatorClass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.schedules.schedule_registry import SCHEDULES, schedule
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import layer_runs
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.operator_split_tree import Exchange
from shardwright.strategy.plan.pipeline_order import Action, Kind, NamedOrder, Table
from shardwright.strategy.plan.plan import ALL, Cadence, Plan, Shards, ShardUnit, State
from shardwright.strategy.plan.stage_splits_and_policies import (
    ActivationPolicy,
    Item,
    Keep,
    Placement,
    Selector,
    Stage,
)
from shardwright.strategy.verify.order_rules import stage_devices
from shardwright.strategy.verify.stage_placement_split_and_keep_rules import has_dim
from tests.strategy.rows_of_plans import Entry, table
from tests.strategy.trees import Counts, Shape, cut_points, draw_tree, for_experts
from tests.strategy.zoo_models import dense, encoder_decoder, hybrid, sparse

MODELS: Final = (
    lambda: dense(layers=3, kv_heads=16),
    lambda: dense(layers=4, kv_heads=4),
    lambda: sparse(dense_layers=1, layers=2, predictors=1),
    lambda: hybrid(layers=4),
    lambda: encoder_decoder(layers=2),
)
SEQ_LEN: Final = 64


def lane_form(name: str) -> str:
    """The form of the lanes that a schedule needs, from its placement and its parameters."""
    rule = schedule(name)
    if rule.placement.value != "looped":
        return rule.placement.value
    if "slices" in getattr(rule, "options", ()):
        return "sliced"
    return "chain" if getattr(rule, "chunks_per_rank", 1) == 1 else "looped"


FORMS: Final = {
    form: tuple(name for name in SCHEDULES if lane_form(name) == form)
    for form in ("chain", "sliced", "looped", "wave", "opposite")
}
"""Schedules of the same lanes."""
FREE: Final = "free"
"""The form of lanes whose stages are anywhere and whose orders are tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A legal plan and what it is for."""

    plan: Plan
    model: Model
    global_batch: int
    seq_len: int = SEQ_LEN


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """The smallest thing a cut can move: a block of a run, or an operator of a block that does not
    repeat."""

    run: str
    layer: bool
    operator: str = ""
    repeats: bool = False


def _runs(draw: st.DrawFn, model: Model) -> Iterator[int]:
    """Indices of the runs in a random topological order."""
    left = list(range(len(model.runs)))
    done: set[str] = set()
    while left:
        ready = [i for i in left if set(model.runs[i].inputs) <= done]
        chosen = ready[draw(st.integers(0, len(ready) - 1))]
        left.remove(chosen)
        done.add(model.runs[chosen].name)
        yield chosen


def _units(draw: st.DrawFn, model: Model) -> list[_Unit]:
    layers = {run.name for run in layer_runs(model)}
    units: list[_Unit] = []
    for i in _runs(draw, model):
        run = model.runs[i]
        operators = model.blocks[run.block].operators
        if run.count == 1 and run.name not in layers and len(operators) > 1 and draw(st.booleans()):
            units += [_Unit(run=run.name, layer=False, operator=o.name) for o in operators]
        else:
            units += [
                _Unit(run=run.name, layer=run.name in layers, repeats=run.count > 1)
            ] * run.count
    return units


def _items(units: Sequence[_Unit], *, counted: bool) -> tuple[Item, ...]:
    """A chunk's units as items; `counted`: layers by number alone."""
    items: list[Item] = []
    for unit in units:
        if unit.operator:
            items.append(Item(name=f"{unit.run}.{unit.operator}"))
            continue
        name = "" if unit.layer and counted else unit.run
        if name and not unit.repeats:
            items.append(Item(name=name))
        elif items and items[-1].name == name and items[-1].count:
            items[-1] = Item(name=name, count=items[-1].count + 1)
        else:
            items.append(Item(name=name, count=1))
    return tuple(items)


def _cut(draw: st.DrawFn, units: Sequence[_Unit], parts: int) -> list[Sequence[_Unit]]:
    """`units` in so many parts, none empty."""
    ends = cut_points(draw, len(units), parts)
    return [units[a:b] for a, b in zip([0, *ends], [*ends, len(units)], strict=True)]


def _operators(model: Model, units: Sequence[_Unit]) -> list[Operator]:
    """The operators of a chunk."""
    blocks = {run.name: model.blocks[run.block] for run in model.runs}
    return [
        o for unit in units for o in blocks[unit.run].operators if unit.operator in ("", o.name)
    ]


# Dims that every class of operators has something to cut of; the widths of all models here hold at
# least 8 runs of each.
_DIMS: Final[Mapping[str, tuple[Dim, ...]]] = {
    "attn": (Dim.BATCH, Dim.SEQUENCE, Dim.WIDTH, Dim.HEADS, Dim.HIDDEN, Dim.REPLICATE),
    "core": (Dim.BATCH, Dim.SEQUENCE, Dim.WIDTH, Dim.HEADS, Dim.REPLICATE),
    "mlp": (Dim.BATCH, Dim.SEQUENCE, Dim.WIDTH, Dim.FFN, Dim.HIDDEN, Dim.REPLICATE),
    "shared": (Dim.BATCH, Dim.SEQUENCE, Dim.WIDTH, Dim.FFN, Dim.HIDDEN, Dim.REPLICATE),
    "ssm": (Dim.BATCH, Dim.WIDTH, Dim.HEADS, Dim.REPLICATE),
    "stream": (Dim.BATCH, Dim.SEQUENCE, Dim.REPLICATE),
    "embed": (Dim.BATCH, Dim.SEQUENCE, Dim.WIDTH, Dim.VOCAB, Dim.HIDDEN, Dim.REPLICATE),
    "head": (Dim.BATCH, Dim.SEQUENCE, Dim.WIDTH, Dim.VOCAB, Dim.REPLICATE),
}
_WIDTHS: Final = {
    Dim.WIDTH: 8,
    Dim.HEADS: 8,
    Dim.FFN: 64,
    Dim.HIDDEN: 128,
    Dim.VOCAB: 1000,
    Dim.EXPERTS: 8,
}


def _exchange(draw: st.DrawFn, shape: Shape) -> Exchange | None:
    return draw(st.sampled_from(Exchange)) if Dim.SEQUENCE in shape.dims else None


def _placements(
    draw: st.DrawFn,
    *,
    operators: Sequence[Operator],
    blocks: int,
    room: int,
    counts: Counts,
    fixed: bool,
) -> tuple[Placement, ...]:
    """Trees for a stage with these operators, on at most `room` devices; `fixed`: every tree on all
    devices of the first."""
    names = {o.klass.value for o in operators}
    # A stage may begin between the dispatch of tokens and the experts' products: it has nothing to
    # cut along f.
    experts_run = any(o.klass is OperatorClass.EXPERTS and has_dim(o, Dim.FFN) for o in operators)
    scans = "ssm" in names
    common = (Dim.BATCH, Dim.REPLICATE, *(() if scans else (Dim.SEQUENCE,)))
    wide = (Dim.WIDTH,) if names & {"attn", "mlp", "shared", "ssm", "embed", "head"} else ()
    first = draw_tree(draw, dims=(*common, *wide), room=room, counts=counts, whole=fixed)
    result = [Placement(select=Selector(), split=first.split, exchange=_exchange(draw, first))]

    def other(dims: tuple[Dim, ...]) -> tuple[Shape, int]:
        """A tree of its own, and where it begins."""
        if fixed:
            return draw_tree(draw, dims=dims, room=room, counts=counts, whole=True), 0
        shape = draw_tree(draw, dims=dims, room=room, counts=counts)
        return shape, draw(st.integers(0, room - shape.span - 1))

    if blocks and draw(st.booleans()):
        low = draw(st.integers(0, blocks - 1))
        high = draw(st.integers(low, blocks - 1))
        shape, offset = other(common)
        select = Selector(blocks=(low, high))
        result.append(
            Placement(
                select=select, split=shape.split, offset=offset, exchange=_exchange(draw, shape)
            )
        )
    for name in sorted(names & set(_DIMS)):
        if draw(st.integers(0, 3)) == 0:
            shape, offset = other(_DIMS[name])
            exchange = _exchange(draw, shape) if name == "core" else None
            result.append(
                Placement(
                    select=Selector(classes=(name,)),
                    split=shape.split,
                    offset=offset,
                    exchange=exchange,
                )
            )
    if "router" in names and experts_run and draw(st.booleans()):
        tokens, offset = other(common)
        result.append(
            Placement(select=Selector(classes=("router",)), split=tokens.split, offset=offset)
        )
        experts = for_experts(draw, tokens.split, counts)
        if draw(st.integers(0, 2)) == 0:  # all tokens, on devices of their own
            apart, offset = other((Dim.EXPERTS, Dim.FFN, Dim.REPLICATE))
            experts = apart.split
        result.append(
            Placement(select=Selector(classes=("experts",)), split=experts, offset=offset)
        )
    return tuple(result)


def _keeps(draw: st.DrawFn, *, blocks: int, classes: set[OperatorClass]) -> tuple[Keep, ...]:
    """Up to two lines on blocks that do not overlap."""
    if not blocks or draw(st.booleans()):
        return ()
    middle = draw(st.integers(0, blocks - 1))
    ranges = [
        (0, middle),
        *([(middle + 1, blocks - 1)] if middle + 1 < blocks and draw(st.booleans()) else []),
    ]
    keeps = []
    for low_high in ranges:
        how = draw(st.sampled_from(ActivationPolicy))
        named = (
            ("full",)
            if draw(st.booleans())
            else (draw(st.sampled_from(sorted(klass.value for klass in classes))),)
        )
        keeps.append(
            Keep(
                blocks=low_high,
                how=how,
                operators=named,
                unit=draw(st.integers(1, 2)) if how is ActivationPolicy.RECOMPUTE else 1,
                percent=100 if how is ActivationPolicy.RECOMPUTE else draw(st.integers(1, 100)),
            )
        )
    return tuple(keeps)


def _shards(draw: st.DrawFn, model: Model) -> tuple[Shards, ...]:
    """Up to two rules whose degrees fit any sync group."""
    classes = sorted(
        {p.klass.value for block in model.blocks for o in block.operators for p in o.parameters}
    )
    rules = []
    for named in ((), (draw(st.sampled_from(classes)),))[: draw(st.integers(0, 2))]:
        level = draw(st.integers(0, 3))
        rules.append(
            Shards(
                parameters=named,
                optimizer=ALL if level >= 1 else 1,
                gradient=ALL if level >= 2 else 1,
                parameter=ALL if level >= 3 else 1,
                gather=draw(st.sampled_from(Cadence)) if level == 3 else Cadence.STEP,
                reduce=draw(st.sampled_from((Cadence.STEP, Cadence.MICROBATCH))),
                unit=draw(st.sampled_from(ShardUnit)),
                host=((State.OPTIMIZER, draw(st.integers(1, 100))),) if draw(st.booleans()) else (),
                by_memory=draw(st.booleans()),
            )
        )
    return tuple(rules)


def _lane_shards(
    draw: st.DrawFn, lanes: tuple[Lane, ...], rules: tuple[Shards, ...]
) -> tuple[Shards, ...]:
    """The rules, and one more for some lanes that have their devices to themselves."""
    taken = [
        frozenset().union(*(stage_devices(lane, chunk) for chunk in range(len(lane.stages))))
        for lane in lanes
    ]
    apart = len(frozenset().union(*taken)) == sum(map(len, taken))
    if (
        len(lanes) < 2
        or not apart
        or not rules
        or any(rule.optimizer != ALL for rule in rules)
        or draw(st.booleans())
    ):
        return rules
    named = tuple(lane.name for lane in lanes if draw(st.booleans())) or (lanes[0].name,)
    gradient = draw(st.sampled_from((1, ALL)))
    parameter = ALL if gradient == ALL and draw(st.booleans()) else 1
    return (*rules, Shards(lanes=named, optimizer=ALL, gradient=gradient, parameter=parameter))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """A lane's numbers."""

    samples: int
    microbatches: int
    slices: tuple[int, ...]

    @property
    def counts(self) -> Counts:
        """What trees may share out: samples of a microbatch, tokens of the smallest slice, runs of
        the widths."""
        share = min(self.slices) * SEQ_LEN // sum(self.slices) if self.slices else SEQ_LEN
        return {Dim.BATCH: self.samples // self.microbatches, Dim.SEQUENCE: share, **_WIDTHS}


def _sizes(draw: st.DrawFn, model: Model, *, microbatches: int = 0, sliced: bool = False) -> _Sizes:
    causal = all(
        o.attention is None or o.attention.mask is not Mask.FULL
        for b in model.blocks
        for o in b.operators
    )
    slices = (
        tuple(draw(st.lists(st.integers(1, 3), min_size=int(sliced), max_size=3))) if causal else ()
    )
    count = microbatches or draw(st.integers(1, 4))
    return _Sizes(
        samples=count * draw(st.sampled_from((1, 2, 3, 4, 8))), microbatches=count, slices=slices
    )


def _stage(
    draw: st.DrawFn,
    units: Sequence[_Unit],
    model: Model,
    *,
    base: int,
    placements: tuple[Placement, ...],
    counted: bool,
) -> Stage:
    items = _items(units, counted=counted)
    blocks = sum(item.count for item in items)
    return Stage(
        items=items,
        base=base,
        placements=placements,
        keeps=_keeps(
            draw,
            blocks=blocks,
            classes={o.klass for o in _operators(model, [u for u in units if not u.operator])},
        ),
    )


def _free_lane(draw: st.DrawFn, model: Model, *, name: str, first: int, room: int) -> Lane:
    """A lane on devices `first` .. `first + room`: every stage where it likes, on as many of them
    as it likes."""
    sizes, units, counted = _sizes(draw, model), _units(draw, model), draw(st.booleans())
    stages = []
    for part in _cut(draw, units, draw(st.integers(1, min(4, len(units))))):
        base = draw(st.integers(0, room - 1))
        blocks = sum(item.count for item in _items(part, counted=counted))
        placements = _placements(
            draw,
            operators=_operators(model, part),
            blocks=blocks,
            room=room - base,
            counts=sizes.counts,
            fixed=False,
        )
        stages.append(
            _stage(draw, part, model, base=first + base, placements=placements, counted=counted)
        )
    return Lane(
        name=name,
        samples=sizes.samples,
        microbatches=sizes.microbatches,
        stages=tuple(stages),
        slices=sizes.slices,
    )


def _ranked_lane(
    draw: st.DrawFn, model: Model, *, name: str, ranks: Sequence[int], width: int, sizes: _Sizes
) -> Lane:
    """A lane whose chunk c is on devices ranks[c] x width and the following: the same set of
    devices for every tree of a rank."""
    units, counted = _units(draw, model), draw(st.booleans())
    stages = []
    for rank, part in zip(ranks, _cut(draw, units, len(ranks)), strict=True):
        blocks = sum(item.count for item in _items(part, counted=counted))
        placements = _placements(
            draw,
            operators=_operators(model, part),
            blocks=blocks,
            room=width,
            counts=sizes.counts,
            fixed=True,
        )
        stages.append(
            _stage(draw, part, model, base=rank * width, placements=placements, counted=counted)
        )
    return Lane(
        name=name,
        samples=sizes.samples,
        microbatches=sizes.microbatches,
        stages=tuple(stages),
        slices=sizes.slices,
    )


def _walks(draw: st.DrawFn, lanes: Sequence[Lane], *, paired: bool) -> list[Entry]:
    """Every action of these lanes in one random order that respects all dependencies; some
    neighbours overlap."""
    queues: list[list[Action]] = []
    for i, lane in enumerate(lanes):
        parts = max(1, len(lane.slices))
        for microbatch in range(lane.microbatches):
            halves, early = draw(st.booleans()), draw(st.booleans())
            queue: list[tuple[int, Kind, int]] = []
            for chunk in range(len(lane.stages)):
                queue += [(chunk, Kind.F, part) for part in range(parts)]
            for chunk in reversed(range(len(lane.stages))):
                for part in reversed(range(parts)):
                    if early and any(
                        keep.how is ActivationPolicy.RECOMPUTE for keep in lane.stages[chunk].keeps
                    ):
                        queue.append((chunk, Kind.R, part))
                    queue += [
                        (chunk, kind, part) for kind in ((Kind.I, Kind.W) if halves else (Kind.B,))
                    ]
            queues.append(
                [
                    Action(lane=i, chunk=c, kind=k, microbatch=microbatch, slice=s)
                    for c, k, s in queue
                ]
            )
    order: list[Entry] = []
    turns = draw(st.randoms(use_true_random=False))
    while queues:
        chosen = turns.randrange(len(queues))
        action = queues[chosen].pop(0)
        queues = [queue for queue in queues if queue]
        last = order[-1] if order else None
        free = isinstance(last, Action) and (last.lane, last.microbatch) != (
            action.lane,
            action.microbatch,
        )
        if paired and isinstance(last, Action) and free and turns.random() < 0.3:
            order[-1] = (last, action)
        else:
            order.append(action)
    return order


def _tabled(draw: st.DrawFn, lanes: Sequence[Lane]) -> Table:
    return table(lanes, _walks(draw, lanes, paired=draw(st.booleans())))


def _free(
    draw: st.DrawFn, model: Model
) -> tuple[int, tuple[Lane, ...], tuple[NamedOrder | Table, ...]]:
    """Lanes of free stages: some share their devices and a table, others have their own."""
    devices = draw(st.integers(1, 12))
    groups = draw(st.integers(1, min(2, devices)))
    room = devices // groups
    lanes: list[Lane] = []
    orders: list[NamedOrder | Table] = []
    for group in range(groups):
        mine = [
            _free_lane(draw, model, name=f"lane-{group}-{i}", first=group * room, room=room)
            for i in range(draw(st.integers(1, 3 - groups)))
        ]
        lanes += mine
        orders.append(_tabled(draw, mine))
    return devices, tuple(lanes), tuple(orders)


def _ranked(
    draw: st.DrawFn, model: Model, form: str
) -> tuple[int, tuple[Lane, ...], tuple[NamedOrder | Table, ...]]:
    """One pipeline of equal ranks under a schedule by name: a chain, loops, waves, or two opposite
    lanes."""
    ranks = (
        2
        if form == "opposite"
        else draw(
            st.integers(
                1 if form in ("chain", "sliced") else 2, 2 if form in ("looped", "wave") else 4
            )
        )
    )
    width = draw(st.integers(1, 12 // ranks))
    microbatches = ranks * 2 if form in ("looped", "wave", "opposite") else draw(st.integers(1, 4))
    sizes = _sizes(draw, model, microbatches=microbatches, sliced=form == "sliced")
    down = list(range(ranks))
    if form == "sliced" and not sizes.slices:
        form = "chain"
    if form != "sliced":
        sizes = replace(sizes, slices=())
    rows = {"looped": [down * 2], "wave": [down + down[::-1]], "opposite": [down, down[::-1]]}.get(
        form, [down]
    )
    lanes = tuple(
        _ranked_lane(draw, model, name=("down", "up")[i], ranks=row, width=width, sizes=sizes)
        for i, row in enumerate(rows)
    )
    order = NamedOrder(
        schedule=draw(st.sampled_from(FORMS[form])), lanes=tuple(lane.name for lane in lanes)
    )
    return ranks * width, lanes, (order,)


@st.composite
def plans_of_form(draw: st.DrawFn, form: str) -> Case:
    """A legal general plan for a small model, of a form of lanes: one of `FORMS`, which have
    schedules by name, or `FREE`, whose orders are tables."""
    model = draw(st.sampled_from(MODELS))()
    devices, lanes, orders = _free(draw, model) if form == FREE else _ranked(draw, model, form)
    plan = Plan(
        devices=devices,
        lanes=lanes,
        orders=orders,
        shards=_lane_shards(draw, lanes, _shards(draw, model)),
    )
    return Case(plan=plan, model=model, global_batch=sum(lane.samples for lane in lanes))


def plans() -> st.SearchStrategy[Case]:
    """A legal general plan for a small model, half of them with orders by name."""
    named = st.sampled_from(tuple(FORMS)).flatmap(plans_of_form)
    return st.one_of(plans_of_form(FREE), named)
