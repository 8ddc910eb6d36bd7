"""Tensors of a block's forward that its backward needs, with the recompute modes that drop them.

Each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.model.ir.block import INPUT, MEMORY, Block
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.model.tensors_without_gradient import has_backward, without_gradient
from shardwright.program.block.block_program import Recomputable, SavedTensor
from shardwright.program.block.local_sizes import (
    LoweringContext,
    dispatched_tokens,
    local_tokens,
    operator_tokens,
    part,
    per_token,
)
from shardwright.program.block.operator_cut_protocol import Placing, is_routed
from shardwright.program.block.recomputed_operators import is_dropped, recomputed_operators
from shardwright.program.block.selective_recompute_policy import (
    NamedPolicy,
    named_policy,
    saved_products,
)
from shardwright.program.block.symbolic_sizes import Size
from shardwright.runtime.framework_feature_kinds import (
    AttentionKernel,
    ElementKernels,
    SelectiveRecompute,
)

_GEMMS = (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)
_FEED_FORWARDS = (OperatorClass.MLP, OperatorClass.SHARED, OperatorClass.EXPERTS)


def stream_volume(block: Block, structure: Placing, context: LoweringContext) -> Size:
    """Bytes of the residual stream that one device holds at the block's border."""
    return local_tokens(OperatorClass.STREAM, structure, context).scaled(
        context.element * _hidden(block)
    )


def output_volume(block: Block, structure: Placing, context: LoweringContext) -> Size:
    """Bytes of the block's output that one device holds."""
    return local_tokens(OperatorClass.STREAM, structure, context).scaled(
        context.element * block.output_width
    )


def _hidden(block: Block) -> int:
    """Elements of a token in the block's residual stream; 1 if no extent has the hidden dim."""
    return next(
        (
            e.size
            for o in block.operators
            for e in (*o.reads, *o.writes)
            if e.dim is Dim.HIDDEN and e.size > 1
        ),
        1,
    )


def _stream_share(block: Block, structure: Placing, context: LoweringContext) -> Size:
    """Bytes of a device's share of the residual stream, where copies are divided over devices.

    The devices that hold copies share the stream out, like heads or the feed-forward.
    """
    cut = next(
        (o for o in block.operators if o.width() in (Dim.HEADS, Dim.FFN) and not is_routed(o)), None
    )
    width = cut.width() if cut is not None else None
    if cut is None or width is None or structure.sequence_parallel:
        return stream_volume(block, structure, context)
    share = part(Extent(dim=width, size=_hidden(block)), cut, structure)
    return (local_tokens(OperatorClass.STREAM, structure, context) * share).scaled(context.element)


def saved_tensors(
    block: Block, operators: dict[str, Operator], structure: Placing, context: LoweringContext
) -> tuple[SavedTensor, ...]:
    """Every tensor that some operator keeps for backward, each once.

    Dropout masks and unfused attention scores included.
    """
    return _after_recompute(
        _kept_without_recompute(block, operators, structure, context),
        block,
        operators,
        structure,
        context,
    )


def saved_tensors_of_contexts(
    block: Block,
    operators: dict[str, Operator],
    structure: Placing,
    contexts: Sequence[LoweringContext],
) -> tuple[tuple[SavedTensor, ...], ...]:
    """`saved_tensors` under contexts that differ only in recomputed modules.

    The modules of their runtimes that run again in backward.
    """
    kept = _kept_without_recompute(block, operators, structure, contexts[0])
    return tuple(
        [_after_recompute(kept, block, operators, structure, context) for context in contexts]
    )


def _kept_without_recompute(
    block: Block, operators: dict[str, Operator], structure: Placing, context: LoweringContext
) -> dict[str, SavedTensor]:
    """Tensors that operators keep for backward where nothing is recomputed, by name."""
    kept: dict[str, SavedTensor] = {}
    constant = without_gradient(block)
    for operator in block.operators:
        if (
            operator.kind is OperatorKind.LOSS
            or operator.name in constant
            or not structure.runs(operator)
        ):
            continue
        for name in operator.keeps:
            if name == MEMORY or name in kept:
                continue
            if name == INPUT:
                parked = (
                    _stream_share(block, structure, context)
                    if context.runtime.checkpoints_on_host
                    else None
                )
                kept[name] = SavedTensor(
                    tensor=name,
                    volume=stream_volume(block, structure, context),
                    dropped=Recomputable.NEVER,
                    parked=parked,
                )
            else:
                kept |= _saved_output(
                    operators[name],
                    operator,
                    _kept_widths(name, block, context),
                    structure,
                    context,
                )
        kept |= _saved_extra(operator, structure, context)
    return kept


def _after_recompute(
    kept: dict[str, SavedTensor],
    block: Block,
    operators: dict[str, Operator],
    structure: Placing,
    context: LoweringContext,
) -> tuple[SavedTensor, ...]:
    """Saved tensors left after the runtime's recomputed modules and its selective policy."""
    if not has_backward(block):
        return ()
    dropped = recomputed_operators(block.operators, context.runtime).dropped
    if dropped:
        kept = {name: saved for name, saved in kept.items() if not is_dropped(name, dropped)}
    if context.runtime.selective_recompute is SelectiveRecompute.OPERATORS:
        kept = _under_operator_policy(kept, block, operators, structure, context)
    if context.runtime.selective_recompute is SelectiveRecompute.NAMED:
        policy = named_policy(block.operators, context.runtime)
        kept = (
            _under_named_policy(kept, policy, operators, structure, context)
            if policy
            else {name: _only_dropped_by_full(s) for name, s in kept.items()}
        )
    return tuple(kept.values())


def _under_operator_policy(
    kept: dict[str, SavedTensor],
    block: Block,
    operators: dict[str, Operator],
    structure: Placing,
    context: LoweringContext,
) -> dict[str, SavedTensor]:
    """`kept` under a per-operator policy, which keeps matrix products and fused cores.

    It drops every tensor but these and the input, and keeps matrix products, whoever reads them.
    """
    products = saved_products(block.operators)
    if products is None:
        return {name: _only_dropped_by_full(s) for name, s in kept.items()}
    cores = {o.name for o in block.operators if o.attention is not None}
    read = _read_by_backward(block, kept)
    tensors: dict[str, SavedTensor] = {}
    for name, saved in kept.items():
        core = name in cores or name.removesuffix(".lse") in cores
        tensors[name] = (
            saved
            if saved.dropped is Recomputable.NEVER
            else replace(saved, dropped=_dropped_by_policy(saved=core))
        )
    for name, parts in products.items():
        outputs = _outputs(operators[name], operators[name], structure, context)
        for (output, volume), is_kept in zip(outputs.items(), parts, strict=True):
            if is_kept and output in tensors:
                tensors[output] = replace(tensors[output], dropped=Recomputable.FULL)
            elif is_kept and (
                name in read or context.runtime.element_kernels is not ElementKernels.COMPILED
            ):
                # A compiler's partitioner drops what the policy keeps and no backward reads; an
                # eager policy does not look.
                volume_bytes = volume.scaled(context.element)
                tensors[output] = SavedTensor(
                    tensor=output, volume=volume_bytes, dropped=Recomputable.NONE_AND_FULL
                )
        if structure.sequence_parallel and _is_row_parallel(operators[name]):
            # The policy names reduce_scatter among what it keeps.
            scattered = f"{name}.scattered"
            volume = stream_volume(block, structure, context)
            tensors[scattered] = SavedTensor(
                tensor=scattered, volume=volume, dropped=Recomputable.NONE_AND_FULL
            )
    return tensors


def _under_named_policy(
    kept: dict[str, SavedTensor],
    policy: NamedPolicy,
    operators: dict[str, Operator],
    structure: Placing,
    context: LoweringContext,
) -> dict[str, SavedTensor]:
    """`kept` under a policy that names the tensors to keep or to offload.

    It has the tensors that the policy drops, and those that it keeps for operators that run again.

    A core's log-sum-exp goes with its output.
    """
    tensors: dict[str, SavedTensor] = {}
    for name, saved in kept.items():
        source = name.removesuffix(".quantised").removesuffix(".lse")
        operator_name = (
            source if source in operators or source == INPUT else source.rsplit(".", 1)[0]
        )
        dropped = (
            saved.dropped
            if saved.dropped is Recomputable.NEVER
            else _dropped_by_policy(saved=operator_name in policy.kept)
        )
        tensors[name] = replace(saved, dropped=dropped, host=operator_name in policy.host)
    for name in sorted(policy.kept - {INPUT} - {n.removesuffix(".quantised") for n in kept}):
        for output, volume in _outputs(
            operators[name], operators[name], structure, context
        ).items():
            volume_bytes = volume.scaled(context.element)
            tensors[output] = SavedTensor(
                tensor=output,
                volume=volume_bytes,
                dropped=Recomputable.NONE_AND_FULL,
                host=name in policy.host,
            )
    return tensors


def _is_row_parallel(operator: Operator) -> bool:
    """True if a cut of the operator's width cuts its inputs only (row-parallel).

    Members hold parts of a sum.
    """
    width = operator.width()
    return (
        width is not None
        and any(e.dim is width for e in operator.reads)
        and all(e.dim is not width for e in operator.writes)
    )


def _read_by_backward(block: Block, kept: dict[str, SavedTensor]) -> frozenset[str]:
    """Names of operators whose output the backward or a recomputation reads.

    A recomputation on the way to a tensor that backward reads.
    """
    needed = {name.removesuffix(".quantised") for name in kept}
    for operator in reversed(block.operators):
        if operator.name in needed:
            needed.update(operator.inputs)
    return frozenset(needed)


def _dropped_by_policy(*, saved: bool) -> Recomputable:
    """Recompute modes that drop a tensor, given that a selective policy saves it or not."""
    return Recomputable.FULL if saved else Recomputable.SELECTIVE


def _only_dropped_by_full(saved: SavedTensor) -> SavedTensor:
    """The tensor, dropped by full recompute alone where selective recompute dropped it."""
    return (
        replace(saved, dropped=Recomputable.FULL)
        if saved.dropped is Recomputable.SELECTIVE
        else saved
    )


def _saved_output(
    source: Operator,
    reader: Operator,
    quantised: tuple[int, bool],
    structure: Placing,
    context: LoweringContext,
) -> dict[str, SavedTensor]:
    """Outputs of `source` that are kept for backward, wide, quantised or both, by name.

    Args:
        quantised: bytes an element in which some operator keeps the outputs quantised, 0 if none;
            and whether any operator keeps them as they are.
    """
    tensors = {}
    for name, volume in _outputs(source, reader, structure, context).items():
        quantised_bytes, kept_wide = quantised
        if kept_wide:
            tensors[name] = SavedTensor(
                tensor=name, volume=volume.scaled(context.element), dropped=Recomputable.FULL
            )
        if quantised_bytes:
            copy = f"{name}.quantised" if kept_wide else name
            tensors[copy] = SavedTensor(
                tensor=copy, volume=volume.scaled(quantised_bytes), dropped=Recomputable.FULL
            )
    return tensors


def _outputs(
    source: Operator, reader: Operator, structure: Placing, context: LoweringContext
) -> dict[str, Size]:
    """Elements of each output of `source` on one device, as `reader` keeps the output."""
    holder = source
    if (
        not context.runtime.tp_input_regather
        and source.klass is OperatorClass.STREAM
        and reader.kind in _GEMMS
    ):
        holder = reader
    if is_routed(source):
        tokens = dispatched_tokens(source, structure, context)
    elif holder is source:
        tokens = operator_tokens(source, structure, context)
    else:
        tokens = local_tokens(holder.klass, structure, context)
    elements = {}
    for index, extent in enumerate(per_token(source.writes, source)):
        name = f"{source.name}.{index}" if index else source.name
        elements[name] = tokens * part(extent, source, structure)
    return elements


def _kept_widths(name: str, block: Block, context: LoweringContext) -> tuple[int, bool]:
    """Bytes an element of a tensor that is kept quantised, and if it is kept wide too.

    By a linear operator or an activation; 0 = no operator keeps tensor `name` quantised.
    """
    quantises = context.runtime.saves_quantized and context.gemm_element < context.element
    widths = [0]
    for operator in block.operators:
        if name in operator.keeps and operator.kind is not OperatorKind.LOSS:
            linear = (
                quantises and operator.kind in _GEMMS and operator.klass is not OperatorClass.HEAD
            )
            gate = (
                context.runtime.saves_gates_eight_bit
                and operator.kind is OperatorKind.ACTIVATION
                and operator.klass in _FEED_FORWARDS
            )
            widths.append(context.gemm_element if linear else 1 if gate else 0)
    return max(widths), 0 in widths[1:]


def _saved_extra(
    operator: Operator, structure: Placing, context: LoweringContext
) -> dict[str, SavedTensor]:
    """Tensors kept beside an operator's output: masks, gate activations, attention scores.

    By name. Scores are unfused attention's; fused attention keeps their log-sum-exp.
    """
    name, width = operator.name, context.element
    local = local_tokens(operator.klass, structure, context)
    tokens = dispatched_tokens(operator, structure, context) if is_routed(operator) else local
    eager = context.runtime.element_kernels is ElementKernels.EAGER
    fused = context.runtime.element_kernels is ElementKernels.FUSED

    def written() -> Size:
        return tokens * part(operator.writes[0], operator, structure)

    bytes_by_name: dict[str, Size] = {}
    if operator.kind is OperatorKind.RESIDUAL and context.dropout:
        bytes_by_name["mask"] = local * part(operator.writes[0], operator, structure)
    if operator.clamped and fused and not context.runtime.fused_experts:
        # The fused kernel keeps the joined halves, the clamps their inputs.
        bytes_by_name["clamped"] = written().scaled(2 * width)
    if operator.gated and eager:
        # Two kernels, activation and product: the product's backward reads the activation's output.
        bytes_by_name["gate"] = written().scaled(width)
    if is_routed(operator) and operator.kind is OperatorKind.ACTIVATION and not operator.gated:
        # Only the gated form is fused with the product by the router's weights, whose backward
        # reads its other factor.
        bytes_by_name["unweighted"] = written().scaled(width)
    if operator.adapted:
        # Output of the adapter's first factor, for the gradient of the second.
        bytes_by_name["lora"] = (tokens * Size(times=operator.rank)).scaled(width)
    scores_by_name: dict[str, Size] = {}
    if operator.attention is not None:
        heads = part(Extent(dim=Dim.HEADS, size=operator.attention.heads), operator, structure)
        rows = local * heads
        if context.runtime.attention_kernel is AttentionKernel.UNFUSED:
            keys = context.memory_tokens if operator.attention.cross else context.tokens
            scores = rows * Size(times=keys)
            scores_by_name["softmax"] = scores.scaled(width)
            if context.dropout:
                scores_by_name["dropout"] = scores.scaled(width + 1)
        else:
            scores_by_name["lse"] = rows.scaled(4)
    return {
        f"{name}.{suffix}": SavedTensor(tensor=f"{name}.{suffix}", volume=volume, dropped=dropped)
        for volumes, dropped in (
            (bytes_by_name, Recomputable.FULL),
            (scores_by_name, Recomputable.SELECTIVE),
        )
        for suffix, volume in volumes.items()
    }
