"""Grids that PyTorch's own engine can run, and its differences from the plan."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from shardwright.errors import StrategyError
from shardwright.execute.training.optimizer import require_adamw
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Mask, Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.grid.grid import Grid, Recompute
from shardwright.strategy.grid.grid_schedules import grid_schedule
from shardwright.strategy.grid.grid_to_plan import expert_shard
from shardwright.strategy.grid.model_counts import grid_facts
from shardwright.strategy.rule_violations import Violation


def expressible(model: Model, grid: Grid, *, job: TrainingJob) -> Violation | None:
    """Why PyTorch cannot run `grid` by itself; None if it can. The grid must be legal
    (`strategy.grid.rules`).
    """
    return next(refusals(model, grid, job=job), None)


def require_expressible(model: Model, grid: Grid, *, job: TrainingJob) -> None:
    """Raise what `expressible` says.

    Raises:
        StrategyError: a rule ``native.*``; ``run.optimizer``.
    """
    require_adamw(job.optimizer)
    found = expressible(model, grid, job=job)
    if found is not None:
        raise StrategyError(
            found.message,
            hint=f"{found.hint}, or run without --backend torch-native",
            rule=found.rule,
        )


def refusals(model: Model, grid: Grid, *, job: TrainingJob) -> Iterator[Violation]:
    """Every reason."""
    yield from _axes(grid)
    if model.settings.load_balancing and grid.pp > 1:
        yield Violation(
            rule="native.balance",
            message=(
                f"pp {grid.pp}: the load-balancing loss needs what routers of all stages counted,"
                " and PyTorch's stages do not send it"
            ),
            hint="use pp=1, or --load-balancing 0",
        )
    yield from _model(model, grid)
    yield from _widths(model, grid, job)


def _axes(grid: Grid) -> Iterator[Violation]:
    if grid.offload:
        yield Violation(
            rule="native.offload",
            message=f"offload {grid.offload}: FSDP2 keeps all states on the host or none",
            hint="use offload=0",
        )
    if grid.slices > 1:
        yield Violation(
            rule="native.slices",
            message=f"{grid.slices} slices: PyTorch's actions name no slice",
            hint="use whole sequences",
        )
    if grid_schedule(grid.schedule).lanes > 1:
        yield Violation(
            rule="native.schedule",
            message=f"{grid.schedule} runs two lanes, and PyTorch gives every stage one rank",
            hint="use dualpipe-v or zb-v",
        )


def _model(model: Model, grid: Grid) -> Iterator[Violation]:
    """A chain from the embedding to the head, of operators that `decoder` has."""
    before: tuple[str, ...] = ()
    for run in model.runs:
        block = model.blocks[run.block]
        if run.inputs != before or block.sequence != "text" or block.memory:
            yield Violation(
                rule="native.model",
                message=f"{model.name}: {run.name} is no link of a chain of decoder layers",
                hint="use a decoder-only model without prediction modules",
            )
            return
        before = (run.name,)
    for block in model.blocks:
        for operator in block.operators:
            reason = _unknown(operator, grid)
            if reason:
                yield Violation(
                    rule="native.operator",
                    message=f"{model.name}: {block.name}.{operator.name} {reason}",
                    hint="use a dense decoder, or no tp",
                )
                return


_KINDS = frozenset(
    {
        OperatorKind.LINEAR,
        OperatorKind.NORM,
        OperatorKind.ROTARY,
        OperatorKind.ACTIVATION,
        OperatorKind.RESIDUAL,
        OperatorKind.ATTENTION,
        OperatorKind.EMBEDDING,
        OperatorKind.LOSS,
        OperatorKind.ROUTE,
        OperatorKind.PERMUTE,
        OperatorKind.GROUPED_LINEAR,
    }
)


SEVERAL = (OperatorKind.RESIDUAL, OperatorKind.PERMUTE, OperatorKind.ROTARY)
"""Kinds that read several tensors: sums, experts, and positions of latent attention."""


def _unknown(operator: Operator, grid: Grid) -> str:
    """Why `decoder` has no module for an operator; empty if it has."""
    shape = operator.attention
    gate = (
        operator.kind is OperatorKind.ACTIVATION
        and operator.klass is OperatorClass.SHARED
        and not operator.gated
    )
    many = len(operator.inputs) > 1 and operator.kind not in SEVERAL and not gate
    if (
        operator.kind not in _KINDS
        or many
        or (operator.kind is OperatorKind.PERMUTE and operator.experts is None)
    ):
        return f"({operator.kind}) has no plain PyTorch module here"
    if operator.adapted:
        return "has an adapter"
    if shape and (
        shape.cross
        or shape.selected
        or shape.soft_cap
        or shape.sinks
        or shape.alibi
        or shape.mask is not Mask.CAUSAL
    ):
        return "attends otherwise than causally or in a window"
    if operator.kind is OperatorKind.EMBEDDING and any(
        not p.name.endswith(("weight", "positions")) for p in operator.parameters
    ):
        return "looks up more than tokens and positions"
    tp = grid.tp
    whole = grid.etp == 1 and (tp == 1 or grid.sp)
    if (
        not whole
        and operator.kind is OperatorKind.GROUPED_LINEAR
        and len(operator.parameters) > len(operator.writes)
    ):
        return f"has biases of experts, which every part of one (tp {tp}, etp {grid.etp}) would add"
    if tp == 1:
        return ""
    if (
        operator.kind is OperatorKind.ROUTE
        and grid.sp
        and any(p.trainable and p.name.endswith("expert_scale") for p in operator.parameters)
    ):
        return f"has scales of experts, whose gradients the ranks of tp {tp} have parts of"
    cut = (Dim.HEADS, Dim.FFN, Dim.VOCAB)
    if (
        operator.kind is OperatorKind.LINEAR
        and operator.reads[0].dim in cut
        and operator.writes[0].dim in cut
    ):
        return "is not cut by columns or rows"
    wide = any(p.extents[0].dim is Dim.HEADS for p in operator.parameters)
    if operator.kind is OperatorKind.NORM and (
        wide or (operator.klass is OperatorClass.ATTN and not operator.parameters)
    ):
        return f"norms all heads together, of which tp {tp} leaves a part"
    return ""


def _widths(model: Model, grid: Grid, job: TrainingJob) -> Iterator[Violation]:
    """Tensor parallelism and replicas cut evenly."""
    facts = grid_facts(
        model, devices=grid.devices, global_batch=job.global_batch, seq_len=job.sequence_length
    )
    rows = [
        p.extents[0].size
        for b in model.blocks
        for o in b.operators
        if o.kind is OperatorKind.EMBEDDING
        for p in o.parameters
    ]
    sizes = {
        "heads": facts.heads,
        "key heads": facts.kv_heads,
        "feed-forward": facts.ffn,
        "rows of the tables": gcd(*rows),
    }
    sizes |= (
        {"positions": job.sequence_length // grid.cp}
        if grid.sp
        else {"experts' feed-forward": facts.expert_ffn}
    )
    uneven = next(
        (
            f"{size} {name} do not divide by tp {grid.tp}"
            for name, size in sizes.items()
            if size % grid.tp
        ),
        "",
    )
    if not uneven and job.global_batch % (grid.dp * grid.microbatch):
        uneven = f"{job.global_batch} samples do not divide by dp {grid.dp} x mbs {grid.microbatch}"
    if not uneven and grid.ep * grid.etp > 1 and grid.zero:
        uneven = next(
            filter(None, (_uneven_experts(o, grid) for b in model.blocks for o in b.operators)), ""
        )
    if uneven:
        yield Violation(
            rule="native.uneven", message=uneven, hint="choose a degree that divides it"
        )


def _uneven_experts(operator: Operator, grid: Grid) -> str:
    """Of what no dim of a rank's experts divides by the ranks that shard them; empty if some dim
    does.
    """
    if operator.kind is not OperatorKind.GROUPED_LINEAR:
        return ""
    shard = expert_shard(grid)
    for parameter in operator.parameters:
        parts = {Dim.EXPERTS: grid.ep, Dim.FFN: grid.etp}
        sizes = [e.size // parts.get(e.dim, 1) for e in parameter.extents]
        if all(size % shard for size in sizes):
            where = f"{operator.name}, on one of ep {grid.ep} x etp {grid.etp}"
            return f"no dim of {' x '.join(map(str, sizes))} ({where}) divides by {shard} shards"
    return ""


def remarks(grid: Grid) -> tuple[str, ...]:
    """Differences between PyTorch's execution and the plan, with the same losses: one line each."""
    found = []
    if grid.zero in (1, 2) and grid.dp * grid.cp > 1:
        found.append(
            f"zero{grid.zero}: FSDP2 shards the parameters too between steps, and gathers them in"
            " forward instead of after the update"
        )
    if grid.zero >= 2 and grid.dp * grid.cp > 1 and grid.pp > 1:
        found.append(
            f"zero{grid.zero} with pp: a stage's gradients stay whole until its last backward, as"
            " with zero1"
        )
    if grid.zero == 3 and grid.dp * grid.cp > 1 and grid.pp > 1:
        found.append("zero3 with pp: the parameters of up to three chunks a rank stay gathered")
    if grid.ring > 1 and grid.gather and grid.recompute is Recompute.NONE:
        found.append(
            "cp-gather: gathered keys and values stay until backward instead of being gathered"
            " again"
        )
    return tuple(found)
