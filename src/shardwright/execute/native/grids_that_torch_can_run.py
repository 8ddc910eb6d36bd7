"""Rules for grids that PyTorch's own engine can run, and its differences from the plan."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from shardwright.errors import StrategyError
from shardwright.execute.training.adamw_optimizer import require_adamw
from shardwright.job.training_job import TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Mask, Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.grid.chunk_placement_by_schedule import grid_schedule
from shardwright.strategy.grid.grid_to_plan import expert_shard
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.rule_violations import Violation


def why_not_expressible(model: Model, grid: Grid, *, job: TrainingJob) -> Violation | None:
    """First reason why PyTorch cannot run a valid `grid` by itself; None if it can."""
    return next(violations_of_grid(model, grid, job=job), None)


def require_expressible_grid(model: Model, grid: Grid, *, job: TrainingJob) -> None:
    """Raise StrategyError if the optimizer is not AdamW or PyTorch cannot run the grid by itself.

    Raises:
        StrategyError: a rule ``native.*``; ``run.optimizer``.
    """
    require_adamw(job.optimizer)
    violation = why_not_expressible(model, grid, job=job)
    if violation is not None:
        raise StrategyError(
            violation.message,
            hint=f"{violation.hint}, or run without --backend torch-native",
            rule=violation.rule,
        )


def violations_of_grid(model: Model, grid: Grid, *, job: TrainingJob) -> Iterator[Violation]:
    """Iterate over the reasons why PyTorch cannot run a grid by itself, the first of each kind."""
    yield from _native_grid_violations(grid)
    if model.settings.load_balancing and grid.pp > 1:
        yield Violation(
            rule="native.balance",
            message=(
                f"pp {grid.pp}: the load-balancing loss needs the counts of all stages' routers,"
                " and PyTorch's stages do not send them"
            ),
            hint="use pp=1, or --load-balancing 0",
        )
    yield from _model_violations(model, grid)
    yield from _uneven_violations(model, grid, job)


def _native_grid_violations(grid: Grid) -> Iterator[Violation]:
    """Features of a grid that PyTorch's own engine lacks: offload, slices, two-lane orders."""
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


def _model_violations(model: Model, grid: Grid) -> Iterator[Violation]:
    """First violation by the model: no chain of decoder layers, or an operator without support."""
    expected_inputs: tuple[str, ...] = ()
    for run in model.runs:
        block = model.blocks[run.block]
        if run.inputs != expected_inputs or block.sequence != "text" or block.memory:
            yield Violation(
                rule="native.model",
                message=f"{model.name}: {run.name} is no link of a chain of decoder layers",
                hint="use a decoder-only model without prediction modules",
            )
            return
        expected_inputs = (run.name,)
    for block in model.blocks:
        for operator in block.operators:
            reason = _why_unsupported(operator, grid)
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
"""Operator kinds that may read several tensors: sums, experts, and rotary positions of latent
attention."""


def _why_unsupported(operator: Operator, grid: Grid) -> str:
    """Reason why PyTorch's engine cannot run an operator, to follow its name; empty if it can."""
    shape = operator.attention
    gate = (
        operator.kind is OperatorKind.ACTIVATION
        and operator.klass is OperatorClass.SHARED
        and not operator.gated
    )
    has_several_inputs = len(operator.inputs) > 1 and operator.kind not in SEVERAL and not gate
    if (
        operator.kind not in _KINDS
        or has_several_inputs
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
        return "has attention that is neither causal nor in a window"
    if operator.kind is OperatorKind.EMBEDDING and any(
        not p.name.endswith(("weight", "positions")) for p in operator.parameters
    ):
        return "looks up more than tokens and positions"
    tp = grid.tp
    experts_are_whole = grid.etp == 1 and (tp == 1 or grid.sp)
    if (
        not experts_are_whole
        and operator.kind is OperatorKind.GROUPED_LINEAR
        and len(operator.parameters) > len(operator.writes)
    ):
        return f"has biases, which every part of an expert would add (tp {tp}, etp {grid.etp})"
    if tp == 1:
        return ""
    if (
        operator.kind is OperatorKind.ROUTE
        and grid.sp
        and any(p.trainable and p.name.endswith("expert_scale") for p in operator.parameters)
    ):
        return f"has scales of experts, of whose gradients each rank of tp {tp} has a part"
    cut = (Dim.HEADS, Dim.FFN, Dim.VOCAB)
    if (
        operator.kind is OperatorKind.LINEAR
        and operator.reads[0].dim in cut
        and operator.writes[0].dim in cut
    ):
        return "is not cut by columns or rows"
    gain_spans_heads = any(p.extents[0].dim is Dim.HEADS for p in operator.parameters)
    if operator.kind is OperatorKind.NORM and (
        gain_spans_heads or (operator.klass is OperatorClass.ATTN and not operator.parameters)
    ):
        return f"norms all heads together, and a rank of tp {tp} has only a part of them"
    return ""


def _uneven_violations(model: Model, grid: Grid, job: TrainingJob) -> Iterator[Violation]:
    """Violation of a grid whose tp, dp or expert degrees do not divide the sizes evenly."""
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
    """Message on an expert parameter with no dim that the shards divide; empty if there is none."""
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


def differences_from_plan(grid: Grid) -> tuple[str, ...]:
    """Differences of PyTorch's execution from the plan, at equal losses: one line each."""
    lines = []
    if grid.zero in (1, 2) and grid.dp * grid.cp > 1:
        lines.append(
            f"zero{grid.zero}: FSDP2 shards the parameters too between steps, and gathers them in"
            " forward instead of after the update"
        )
    if grid.zero >= 2 and grid.dp * grid.cp > 1 and grid.pp > 1:
        lines.append(
            f"zero{grid.zero} with pp: a stage's gradients stay whole until its last backward, as"
            " with zero1"
        )
    if grid.zero == 3 and grid.dp * grid.cp > 1 and grid.pp > 1:
        lines.append("zero3 with pp: the parameters of up to three chunks a rank stay gathered")
    if grid.ring > 1 and grid.gather and grid.recompute is Recompute.NONE:
        lines.append(
            "cp-gather: gathered keys and values stay until backward instead of being gathered"
            " again"
        )
    return tuple(lines)
