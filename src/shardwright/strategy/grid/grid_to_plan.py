"""Expansion of a grid into a general plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd

from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.chunk_placement_by_schedule import grid_schedule
from shardwright.strategy.grid.expert_mesh import MeshPiece, dense_axes, fold
from shardwright.strategy.grid.grid_rules import LoneStages
from shardwright.strategy.grid.layers_per_chunk import chunk_layers, teacher_chunks
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts, layer_runs
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.operator_split_tree import Exchange, Split
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import ALL, Cadence, Plan, Shards, ShardUnit, State
from shardwright.strategy.plan.stage_splits_and_policies import (
    ActivationPolicy,
    Item,
    Keep,
    Placement,
    Selector,
    Stage,
)

MAIN = "main"
TWO_WAY = ("down", "up")
"""Lanes of a grid whose schedule runs two in opposite directions."""
FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """One equal cut of a chain: a dim in `parts` at a device stride."""

    dim: Dim
    parts: int
    step: int
    zigzag: bool = False


def _nested_cuts(terms: Sequence[_Cut]) -> Split | None:
    """Split tree of nested cuts, outermost first; None without cuts; merges cuts of one dim.

    Cutting a list in a and every part in b parts is cutting it in a x b parts, for blocks and for
    zigzag pairs alike.
    """
    merged: list[_Cut] = []
    for term in terms:
        if term.parts == 1:
            continue
        previous = merged[-1] if merged else None
        if previous and (previous.dim, previous.zigzag, previous.step) == (
            term.dim,
            term.zigzag,
            term.parts * term.step,
        ):
            merged[-1] = _Cut(
                dim=term.dim, parts=previous.parts * term.parts, step=term.step, zigzag=term.zigzag
            )
        else:
            merged.append(term)
    tree: Split | None = None
    for term in reversed(merged):
        tree = Split(
            dim=term.dim, parts=term.parts, step=term.step, children=(tree,), zigzag=term.zigzag
        )
    return tree


def _mesh_pieces(grid: Grid) -> tuple[MeshPiece, ...]:
    """Factor a stage's devices into pieces of both meshes; StrategyError if they misfit.

    Raises StrategyError where the meshes do not line up.
    """
    if grid.ep * grid.etp == 1:
        return tuple(
            MeshPiece(dense=axis, expert="edp", size=size, stride=stride)
            for axis, size, stride in dense_axes(grid)
        )
    pieces = fold(grid)
    if pieces is None:
        raise StrategyError(
            f"edp {grid.edp} x ep {grid.ep} x etp {grid.etp} does not line up with tp, cp and dp",
            hint="going outwards, the products of both meshes must divide one another",
            rule="grid.experts",
        )
    return pieces


def _cuts_along_axis(
    pieces: tuple[MeshPiece, ...], axis: str, dim: Dim, *, zigzag: bool = False, expert: str = ""
) -> list[_Cut]:
    """Cuts of `dim` along a dense axis, outermost (edp) first, of one `expert` axis or of all.

    That order makes the tokens of one set of expert copies those of one set of devices (rule
    ``experts.coset``).
    """
    chosen = sorted(
        (a for a in pieces if a.dense == axis and expert in ("", a.expert)),
        key=lambda a: (a.expert == "edp", a.stride),
        reverse=True,
    )
    return [_Cut(dim=dim, parts=a.size, step=a.stride, zigzag=zigzag) for a in chosen]


def grid_placements(grid: Grid, *, experts: bool, attention: bool = True) -> tuple[Placement, ...]:
    """Split trees of a grid's stages: of all operators, then core, stream, experts that differ.

    ``all`` is cut over dp (b), ring (s, dealt zigzag), ulysses (s) and tp (t); the stream and the
    router exchange t for s (sp) or for copies; the core exchanges the ulysses part of s for heads;
    experts keep the token cuts of the devices that copy experts and are cut over ep (e) and etp
    (f), but are cut like the other operators where tokens are copied over tp.

    Args:
        experts, attention: the model has such operators (only then their placements are written).
    """
    pieces = _mesh_pieces(grid)
    batch, ring = (
        _cuts_along_axis(pieces, "dp", Dim.BATCH),
        _cuts_along_axis(pieces, "ring", Dim.SEQUENCE, zigzag=True),
    )
    ulysses, heads = (
        _cuts_along_axis(pieces, "ulysses", Dim.SEQUENCE),
        _cuts_along_axis(pieces, "ulysses", Dim.HEADS),
    )
    width, stream_dim = (
        _cuts_along_axis(pieces, "tp", Dim.WIDTH),
        Dim.SEQUENCE if grid.sp else Dim.REPLICATE,
    )
    placements = [
        Placement(select=Selector(), split=_nested_cuts([*batch, *ring, *ulysses, *width]))
    ]
    if grid.cp > 1 and attention:
        exchange = (Exchange.GATHER if grid.gather else Exchange.RING) if grid.ring > 1 else None
        placements.append(
            Placement(
                select=Selector(classes=("core",)),
                split=_nested_cuts([*batch, *ring, *width, *heads]),
                exchange=exchange,
            )
        )
    if grid.tp > 1:
        classes = ("stream", "router") if experts else ("stream",)
        stream = _nested_cuts(
            [*batch, *ring, *ulysses, *_cuts_along_axis(pieces, "tp", stream_dim)]
        )
        placements.append(Placement(select=Selector(classes=classes), split=stream))
    if experts and (grid.sp or grid.ep * grid.etp > 1):
        tokens = [
            *_cuts_along_axis(pieces, "dp", Dim.BATCH, expert="edp"),
            *_cuts_along_axis(pieces, "ring", Dim.SEQUENCE, zigzag=True, expert="edp"),
            *_cuts_along_axis(pieces, "ulysses", Dim.SEQUENCE, expert="edp"),
            *_cuts_along_axis(pieces, "tp", Dim.SEQUENCE, expert="edp"),
        ]
        split = [
            _Cut(dim=dim, parts=a.size, step=a.stride)
            for name, dim in (("ep", Dim.EXPERTS), ("etp", Dim.FFN))
            for a in reversed(pieces)
            if a.expert == name
        ]
        placements.append(
            Placement(select=Selector(classes=("experts",)), split=_nested_cuts([*tokens, *split]))
        )
    return tuple(placements)


def chunk_items(model: Model, *, chunks: tuple[int, ...]) -> tuple[tuple[Item, ...], ...]:
    """Assign a model's blocks to chunks: layers by count, other blocks (embedding, head) by name.

    A block that is not a layer goes before the next layer, or at the end.

    A teacher's blocks come first, in as many chunks (`teacher_chunks`), all by name.
    """
    layers = {run.name for run in layer_runs(model)}
    teacher_runs = [run for run in model.runs if model.blocks[run.block].is_of_teacher]
    model_items = _assigned_items(
        [run for run in model.runs if run not in teacher_runs], chunks, layers
    )
    if not teacher_runs:
        return model_items
    teacher_layer_runs = {
        run.name for run in teacher_runs if not model.blocks[run.block].has_vocabulary
    }
    teacher_items = _assigned_items(
        teacher_runs,
        teacher_chunks(model.teacher_layers, chunks=len(chunks)),
        teacher_layer_runs,
        named=True,
    )
    return tuple(
        (*teacher_part, *model_part)
        for teacher_part, model_part in zip(teacher_items, model_items, strict=True)
    )


def _assigned_items(
    runs: Sequence[Run], chunks: tuple[int, ...], layers: set[str], *, named: bool = False
) -> tuple[tuple[Item, ...], ...]:
    """Assign runs in order to chunks of so many layers; other blocks go with the next layer.

    Args:
        chunks: layers of each chunk.
        layers: names of the runs that count as layers.
        named: write layers by name too.
    """
    items: list[list[Item]] = [[] for _ in chunks]
    chunk, room, layers_to_come = 0, chunks[0], sum(chunks)
    for run in runs:
        if run.name not in layers:
            # Behind the last layer of a chunk it goes with the next one; before all layers it
            # begins the first chunk.
            while not room and 0 < layers_to_come < sum(chunks):
                chunk += 1
                room = chunks[chunk]
            item = Item(name=run.name, count=run.count if run.count > 1 else 0)
            items[chunk].append(item)
            continue
        unplaced = run.count
        while unplaced:
            while not room:
                chunk += 1
                room = chunks[chunk]
            taken = min(unplaced, room)
            last_item = items[chunk][-1] if items[chunk] else Item(name="-")
            if named:
                items[chunk].append(Item(name=run.name, count=taken))
            elif not last_item.name:
                items[chunk].pop()
                items[chunk].append(Item(count=last_item.count + taken))
            else:
                items[chunk].append(Item(count=taken))
            unplaced, room, layers_to_come = unplaced - taken, room - taken, layers_to_come - taken
    return tuple(map(tuple, items)) if named else _move_tail_to_last_chunk(items, chunk)


def _move_tail_to_last_chunk(
    items: list[list[Item]], last_used: int
) -> tuple[tuple[Item, ...], ...]:
    """Move blocks listed after the last layer (head) to the last chunk, also if it has no layer."""
    if last_used < len(items) - 1:
        tail_start = max(
            (i + 1 for i, item in enumerate(items[last_used]) if not item.name), default=0
        )
        items[-1] += items[last_used][tail_start:]
        del items[last_used][tail_start:]
    return tuple(tuple(chunk) for chunk in items)


def _keeps(grid: Grid, *, layers: int) -> tuple[Keep, ...]:
    """Activation policy of a chunk: its first layers on the host or recomputed; () = all kept."""
    if grid.host and layers:
        return (
            Keep(
                blocks=(0, min(grid.host, layers) - 1), how=ActivationPolicy.HOST, operators=(FULL,)
            ),
        )
    if grid.recompute is Recompute.NONE or not layers:
        return ()
    if grid.recompute is Recompute.SELECTIVE:
        return (Keep(blocks=(0, layers - 1), how=ActivationPolicy.RECOMPUTE, operators=("core",)),)
    num_recomputed = min(grid.recompute_layers or layers, layers)
    return (
        Keep(blocks=(0, num_recomputed - 1), how=ActivationPolicy.RECOMPUTE, operators=(FULL,)),
    )


def expert_shard(grid: Grid) -> int:
    """Ranks that shard an expert's states: gcd of copies and scaled shard; shard 0 = all copies.

    The result divides the number of copies and is at least 1.
    """
    holders = grid.cp * grid.dp
    copies = holders if grid.tp > 1 and not grid.sp else grid.edp
    return gcd(max(grid.shard * copies // holders, 1), copies) if grid.shard else copies


def grid_shards(grid: Grid, *, experts: bool) -> tuple[Shards, ...]:
    """ZeRO rules of a grid, one more for experts of another degree; () = no ZeRO, no offload.

    Stage 1 shards the optimizer, 2 the gradient as well (reduced every microbatch), 3 the parameter
    too (gathered at every use).
    """
    host = ((State.OPTIMIZER, grid.offload),) if grid.offload else ()
    if not grid.zero:
        return (Shards(host=host),) if host else ()

    def rule(degree: int, *, parameters: tuple[str, ...] = ()) -> Shards:
        """ZeRO rule with one degree for what the ZeRO stage shards; no `parameters` = all."""
        return Shards(
            parameters=parameters,
            optimizer=degree,
            gradient=degree if grid.zero >= 2 else 1,
            parameter=degree if grid.zero >= 3 else 1,
            gather=Cadence.USE if grid.zero >= 3 else Cadence.STEP,
            reduce=Cadence.MICROBATCH if grid.zero >= 2 else Cadence.STEP,
            unit=ShardUnit.DIM0 if grid.zero >= 3 else ShardUnit.FLAT,
            host=host,
        )

    expert_degree = expert_shard(grid)
    if experts and grid.shard and expert_degree != grid.shard:
        return (rule(grid.shard), rule(expert_degree, parameters=("experts",)))
    return (rule(grid.shard or ALL),)


def plan_of(grid: Grid, *, model: Model, global_batch: int, lone: LoneStages = ()) -> Plan:
    """General plan of a grid for a model: one lane of pp x vpp stages, or two opposite lanes.

    All stages share split trees.

    Grids that mean the same give the same plan. Chunks are on the pipeline ranks that the
    schedule's placement gives (chunk c on c mod pp for most); rank r's first device is r times pp's
    stride.

    Args:
        global_batch: samples a step.
        lone: `GridFacts.lone_stages` of the runtime.

    Raises:
        StrategyError: the layers, the batch or the experts do not divide (the other rules are
            `grid_rule_violations.violations`).
    """
    facts = grid_facts(model, devices=grid.devices, global_batch=global_batch, seq_len=1, lone=lone)
    grid = canonical(grid, facts=facts)
    if global_batch < 1 or global_batch % (grid.dp * grid.microbatch):
        raise StrategyError(
            f"global batch {global_batch} does not divide by dp x mbs = {grid.dp} x"
            f" {grid.microbatch}",
            hint="every replica takes a whole number of microbatches",
            rule="grid.batch",
        )
    lanes, orders = _pipeline(
        replace(grid, zero=0, shard=0, offload=0, options=()), model, global_batch
    )
    return Plan(
        devices=grid.devices,
        lanes=lanes,
        orders=orders,
        shards=grid_shards(grid, experts=facts.experts > 0),
        options=grid.options,
    )


@lru_cache(maxsize=64)
def _pipeline(
    grid: Grid, model: Model, global_batch: int
) -> tuple[tuple[Lane, ...], tuple[NamedOrder, ...]]:
    """(lanes with stages on devices, pipeline order) of a grid, cached without its ZeRO options.

    Grids that differ only in memory options share the same objects.
    """
    facts = grid_facts(model, devices=grid.devices, global_batch=global_batch, seq_len=1)
    chunks = chunk_layers(
        facts.layers, pp=grid.pp, vpp=grid.vpp, first=grid.first, last=grid.last, layers=grid.layers
    )
    placements = grid_placements(grid, experts=facts.experts > 0, attention=facts.heads > 0)
    stride = grid.strides()["pp"]
    policies = {layers: _keeps(grid, layers=layers) for layers in set(chunks)}
    items = chunk_items(model, chunks=chunks)
    schedule_layout = grid_schedule(grid.schedule)
    names = TWO_WAY if schedule_layout.lanes > 1 else (MAIN,)
    microbatches = global_batch // (grid.dp * grid.microbatch)
    if microbatches % schedule_layout.lanes:
        raise StrategyError(
            f"{microbatches} microbatches a replica do not halve over the two lanes of"
            f" {grid.schedule}",
            hint="each lane takes as many",
            rule="grid.lanes",
        )

    def lane(name: str, number: int) -> Lane:
        """Lane `number`, with each chunk's stage on the rank that the schedule gives."""
        stages = tuple(
            Stage(
                items=item,
                base=schedule_layout.rank(c, pp=grid.pp, lane=number) * stride,
                placements=placements,
                keeps=policies[layers],
            )
            for c, (item, layers) in enumerate(zip(items, chunks, strict=True))
        )
        slices = (1,) * grid.slices if grid.slices > 1 else ()
        return Lane(
            name=name,
            samples=global_batch // schedule_layout.lanes,
            microbatches=microbatches // schedule_layout.lanes,
            stages=stages,
            slices=slices,
        )

    return tuple(lane(name, number) for number, name in enumerate(names)), (
        NamedOrder(schedule=grid.schedule, lanes=names),
    )
