"""Select the trained parameters of a model: all, LoRA adapters, or all but frozen parts.

Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models (arXiv 2106.09685), section 4.1:
y = x W + x A B with W frozen, A of (in, r), B of (r, out). A fused projection (q, k and v; gate and
up) has one A and a B for each of its parts, as Megatron's linear layers have. The factor alpha / r
is part of B. Frozen parameters have no gradient, no state of the optimizer and nothing to sum; a
frozen product has no weight gradient and keeps its input for nobody; its input gradient is needed
as before, unless nothing before it is trained (`model.tensors_without_gradient`): a frozen image
tower has no backward.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from shardwright.errors import UsageError, nearest
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.multi_token_prediction import (
    MODULE,
    num_predictors_of,
    without_predictors,
)
from shardwright.model.inputs_without_gradient import with_constant_inputs
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter, ParameterClass

LINEAR: Final = (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)
ADAPTED: Final = tuple(
    k.value
    for k in (
        OperatorClass.ATTN,
        OperatorClass.MLP,
        OperatorClass.EXPERTS,
        OperatorClass.SHARED,
        OperatorClass.SSM,
    )
)
"""Default classes with adapters: all but the router, the embedding and the head."""
LEFT_OUT: Final = f"without:{MODULE}"
"""Word of --train for a model without its prediction modules."""
MAX_RANK: Final = 65536
_LORA: Final = re.compile(r"lora:r([0-9]{1,6})(?::(.+))?")
_HINT: Final = (
    "lora:r16, lora:r16:attn,mlp (classes or operators), frozen:embed (classes or blocks), or"
    " without:mtp"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedParts:
    """Selection of the trained parameters: adapters, frozen parts, prediction modules.

    Args:
        rank: rank of the adapters; 0 = none, and every parameter that is not frozen is trained.
        adapted: classes or operators with adapters.
        frozen: classes or blocks without gradients.
        whole: keep the prediction modules, if the model has any.
    """

    rank: int = 0
    adapted: tuple[str, ...] = ADAPTED
    frozen: tuple[str, ...] = ()
    whole: bool = True


def parse_training(text: str) -> TrainedParts:
    """Parse --train: ``lora:r16``, ``lora:r16:attn``, ``frozen:embed,head``, ``without:mtp``.

    Several words have spaces between; ``all`` or an empty text trains everything.

    Raises:
        UsageError: a word is none of these, or is repeated.
    """
    rank, adapted = 0, ADAPTED
    frozen: tuple[str, ...] = ()
    seen: set[str] = set()
    for word in text.split() if text.strip() != "all" else ():
        kind, _, rest = word.partition(":")
        lora = _LORA.fullmatch(word)
        names = tuple(name for name in (lora[2] or "" if lora else rest).split(",") if name)
        known = (
            bool(lora) if kind == "lora" else bool(names) if kind == "frozen" else word == LEFT_OUT
        )
        if kind in seen or not known:
            raise UsageError(
                f"--train {word[:40]!r} {'is repeated' if kind in seen else 'is an unknown value'}",
                hint=_HINT,
            )
        seen.add(kind)
        if lora:
            rank, adapted = int(lora[1]), names or ADAPTED
            if not 1 <= rank <= MAX_RANK:
                raise UsageError(
                    f"--train {word[:40]!r}: rank {rank} is out of range", hint=f"1 to {MAX_RANK}"
                )
        elif kind == "frozen":
            frozen = names
    return TrainedParts(rank=rank, adapted=adapted, frozen=frozen, whole="without" not in seen)


def trained(model: Model, text: str) -> Model:
    """Apply --train to a model: add adapters, freeze parameters, or remove prediction modules.

    See `parse_training`.

    Raises:
        UsageError: `text` cannot be parsed, names no part of this model, or leaves nothing to
        train.
    """
    training = parse_training(text)
    if not training.whole:
        if not num_predictors_of(model):
            raise UsageError(
                f"--train {LEFT_OUT}: the model has no prediction modules",
                hint="leave the word out",
            )
        model = without_predictors(model)
    if replace(training, whole=True) == TrainedParts():
        return model
    operators = [(b, o) for b in model.blocks for o in b.operators]
    if training.rank:
        products = [o for _, o in operators if o.kind in LINEAR]
        _require_known_names(
            training.adapted,
            {n for o in products for n in (o.klass.value, o.name)},
            default=training.adapted is ADAPTED,
        )
    _require_known_names(
        training.frozen, {n for b, o in operators for n in (o.klass.value, b.name)}
    )
    owners = frozenset(
        f"{b.name}.{p.name}"
        for b, o in operators
        if _is_named_frozen(b, o, training)
        for p in o.parameters
    )
    result = with_constant_inputs(
        replace(
            model,
            blocks=tuple(_trained_block(block, training, owners) for block in model.blocks),
            base=model,
        )
    )
    if not result.num_trainable_parameters:
        raise UsageError(f"--train {text[:60]!r} leaves nothing to train", hint=_HINT)
    return result


def _require_known_names(
    names: Iterable[str], known: Iterable[str], *, default: bool = False
) -> None:
    """Raise UsageError for a name of --train that is not `known`; never if `default`."""
    for name in names:
        if name not in known and not default:
            raise UsageError(
                f"--train: the model has no {name[:40]!r}", hint=nearest(name[:40], known)
            )


def _is_named_frozen(block: Block, operator: Operator, training: TrainedParts) -> bool:
    """True if --train freezes the operator's class or block by name."""
    return bool({operator.klass.value, block.name} & set(training.frozen))


def _trained_block(block: Block, training: TrainedParts, owners: frozenset[str]) -> Block:
    """Apply --train to a block: freeze named parameters and those tied to `owners`, add LoRA.

    `owners`: frozen parameters as ``block.parameter``; parameters tied to them are frozen too.
    """

    def changed(operator: Operator) -> Operator:
        """Freeze an operator: under LoRA all of it, with an adapter if selected; else as named."""
        named = _is_named_frozen(block, operator, training)
        is_frozen = [p.tied_to in owners if p.tied_to else named for p in operator.parameters]
        gone = all(is_frozen) if is_frozen else named
        if not training.rank:
            return frozen(operator) if gone else _frozen_in_part(operator, is_frozen)
        chosen = operator.kind in LINEAR and {operator.klass.value, operator.name} & set(
            training.adapted
        )
        return (
            adapted(frozen(operator), rank=training.rank, source=operator)
            if chosen and not gone
            else frozen(operator)
        )

    return replace(block, operators=tuple(map(changed, block.operators)))


def frozen(operator: Operator) -> Operator:
    """The operator with all parameters frozen; a linear layer then saves no input."""
    keeps = () if operator.kind in LINEAR else operator.keeps
    return replace(
        operator, parameters=tuple(map(_frozen_parameter, operator.parameters)), keeps=keeps
    )


def _frozen_in_part(operator: Operator, is_frozen: list[bool]) -> Operator:
    """Freeze the parameters of an operator for which `is_frozen`, in their order, has True."""
    pairs = zip(operator.parameters, is_frozen, strict=True)
    return (
        replace(
            operator, parameters=tuple(_frozen_parameter(p) if gone else p for p, gone in pairs)
        )
        if any(is_frozen)
        else operator
    )


def _frozen_parameter(parameter: Parameter) -> Parameter:
    """Make a parameter not trainable; its class DENSE becomes BASE."""
    klass = ParameterClass.BASE if parameter.klass is ParameterClass.DENSE else parameter.klass
    return replace(parameter, klass=klass, trainable=False)


def adapted(operator: Operator, *, rank: int, source: Operator) -> Operator:
    """Add a trained LoRA adapter of `rank` (A, a B for each output); save what `source` saves."""
    grouped = operator.kind is OperatorKind.GROUPED_LINEAR
    expert_extents = tuple(
        e for e in operator.parameters[0].extents if grouped and e.dim is Dim.EXPERTS
    )
    inner = Extent(dim=Dim.HIDDEN, size=rank)
    klass = ParameterClass.EXPERTS if grouped else ParameterClass.LORA
    down = Parameter(
        name=f"{operator.name}.lora_a",
        extents=(*expert_extents, *operator.reads, inner),
        klass=klass,
    )
    up = tuple(
        Parameter(
            name=f"{operator.name}.lora_b{f'.{i}' if i else ''}",
            extents=(*expert_extents, inner, weight.extents[-1]),
            klass=klass,
        )
        for i, weight in enumerate(operator.parameters[: len(operator.writes)])
    )
    return replace(
        operator, parameters=(*operator.parameters, down, *up), adapted=True, keeps=source.keeps
    )
