"""Trained parameters of a model: all of them, low-rank adapters on frozen weights (LoRA), or all
but those that are frozen or left out.

Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models (arXiv 2106.09685), section 4.1:
y = x W + x A B with W frozen, A of (in, r), B of (r, out). A fused projection (q, k and v; gate and
up) has one A and a B for each of its parts, as Megatron's linear layers have. The factor alpha / r
is part of B. Frozen parameters have no gradient, no state of the optimizer and nothing to sum; a
frozen product has no weight gradient and keeps its input for nobody; its input gradient is needed
as before, unless nothing before it is trained (`model.gradients`): a frozen image tower has no
backward.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from shardwright.errors import UsageError, nearest
from shardwright.lazy_dataclass import dataclass
from shardwright.model.backward_reach import told_constants
from shardwright.model.blocks.multi_token_prediction import (
    MODULE,
    predictors_of,
    without_predictors,
)
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
"""Classes whose products have adapters where no target is named: not the router, the embedding and
the head."""
LEFT_OUT: Final = f"without:{MODULE}"
"""The word for a model without its prediction modules."""
MAX_RANK: Final = 65536
_LORA: Final = re.compile(r"lora:r([0-9]{1,6})(?::(.+))?")
_HINT: Final = (
    "lora:r16, lora:r16:attn,mlp (classes or operators), frozen:embed (classes or blocks), or"
    " without:mtp"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The parameters that are trained.

    Args:
        rank: of the adapters; 0 = there are none, and all that is not frozen is trained.
        adapted: classes or operators with adapters.
        frozen: classes or blocks without gradients.
        whole: with the prediction modules that the model may have.
    """

    rank: int = 0
    adapted: tuple[str, ...] = ADAPTED
    frozen: tuple[str, ...] = ()
    whole: bool = True


def parse_training(text: str) -> Training:
    """``lora:r16``, ``lora:r16:attn``, ``frozen:embed,head``, ``without:mtp``, or several with
    spaces between; ``all`` or nothing = all is.

    Raises:
        UsageError: a word is none of these, or stands twice.
    """
    rank, adapted = 0, ADAPTED
    frozen: tuple[str, ...] = ()
    seen: set[str] = set()
    for word in text.split() if text.strip() != "all" else ():
        kind, _, rest = word.partition(":")
        found = _LORA.fullmatch(word)
        names = tuple(name for name in (found[2] or "" if found else rest).split(",") if name)
        known = (
            bool(found) if kind == "lora" else bool(names) if kind == "frozen" else word == LEFT_OUT
        )
        if kind in seen or not known:
            raise UsageError(
                f"--train {word[:40]!r} {'stands twice' if kind in seen else 'says nothing known'}",
                hint=_HINT,
            )
        seen.add(kind)
        if found:
            rank, adapted = int(found[1]), names or ADAPTED
            if not 1 <= rank <= MAX_RANK:
                raise UsageError(
                    f"--train {word[:40]!r}: rank {rank} is out of range", hint=f"1 to {MAX_RANK}"
                )
        elif kind == "frozen":
            frozen = names
    return Training(rank=rank, adapted=adapted, frozen=frozen, whole="without" not in seen)


def trained(model: Model, text: str) -> Model:
    """`model` with the adapters and the frozen parameters, or without the modules, that `text` (see
    `parse_training`) says.

    Raises:
        UsageError: `text` cannot be read, or names nothing of this model, or leaves nothing to
        train.
    """
    training = parse_training(text)
    if not training.whole:
        if not predictors_of(model):
            raise UsageError(
                f"--train {LEFT_OUT}: the model has no prediction modules",
                hint="leave the word out",
            )
        model = without_predictors(model)
    if replace(training, whole=True) == Training():
        return model
    operators = [(b, o) for b in model.blocks for o in b.operators]
    if training.rank:
        products = [o for _, o in operators if o.kind in LINEAR]
        _require(
            training.adapted,
            {n for o in products for n in (o.klass.value, o.name)},
            default=training.adapted is ADAPTED,
        )
    _require(training.frozen, {n for b, o in operators for n in (o.klass.value, b.name)})
    owners = frozenset(
        f"{b.name}.{p.name}"
        for b, o in operators
        if _is_named(b, o, training)
        for p in o.parameters
    )
    result = told_constants(
        replace(
            model,
            blocks=tuple(_block(block, training, owners) for block in model.blocks),
            base=model,
        )
    )
    if not result.num_trainable_parameters:
        raise UsageError(f"--train {text[:60]!r} leaves nothing to train", hint=_HINT)
    return result


def _require(names: Iterable[str], known: Iterable[str], *, default: bool = False) -> None:
    """Each name is known; of the default ones the model may lack some."""
    for name in names:
        if name not in known and not default:
            raise UsageError(
                f"--train: the model has no {name[:40]!r}", hint=nearest(name[:40], known)
            )


def _is_named(block: Block, operator: Operator, training: Training) -> bool:
    return bool({operator.klass.value, block.name} & set(training.frozen))


def _block(block: Block, training: Training, owners: frozenset[str]) -> Block:
    """`block` as it is trained; `owners`: frozen parameters, as ``block.parameter``, with which
    those that are tied to them are frozen.
    """

    def changed(operator: Operator) -> Operator:
        named = _is_named(block, operator, training)
        still = [p.tied_to in owners if p.tied_to else named for p in operator.parameters]
        gone = all(still) if still else named
        if not training.rank:
            return frozen(operator) if gone else _frozen_in_part(operator, still)
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
    """`operator` without gradients of its parameters; a product then needs its input no more."""
    keeps = () if operator.kind in LINEAR else operator.keeps
    return replace(operator, parameters=tuple(map(_base, operator.parameters)), keeps=keeps)


def _frozen_in_part(operator: Operator, still: list[bool]) -> Operator:
    """`operator` without gradients of those of its parameters that are frozen,
    or are tied to such.
    """
    pairs = zip(operator.parameters, still, strict=True)
    return (
        replace(operator, parameters=tuple(_base(p) if gone else p for p, gone in pairs))
        if any(still)
        else operator
    )


def _base(parameter: Parameter) -> Parameter:
    klass = ParameterClass.BASE if parameter.klass is ParameterClass.DENSE else parameter.klass
    return replace(parameter, klass=klass, trainable=False)


def adapted(operator: Operator, *, rank: int, source: Operator) -> Operator:
    """`operator` with a trained product of `rank` beside its weights, which needs the input that
    `source` kept.
    """
    grouped = operator.kind is OperatorKind.GROUPED_LINEAR
    each = tuple(e for e in operator.parameters[0].extents if grouped and e.dim is Dim.EXPERTS)
    inner = Extent(dim=Dim.HIDDEN, size=rank)
    klass = ParameterClass.EXPERTS if grouped else ParameterClass.LORA
    down = Parameter(
        name=f"{operator.name}.lora_a", extents=(*each, *operator.reads, inner), klass=klass
    )
    up = tuple(
        Parameter(
            name=f"{operator.name}.lora_b{f'.{i}' if i else ''}",
            extents=(*each, inner, weight.extents[-1]),
            klass=klass,
        )
        for i, weight in enumerate(operator.parameters[: len(operator.writes)])
    )
    return replace(
        operator, parameters=(*operator.parameters, down, *up), adapted=True, keeps=source.keeps
    )
