"""A stage of a decoder as plain `torch.nn`: the model graph's operators in order, each a small
module whose weights carry our keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardwright.execute.device_state.device_parameters import Key, origin
from shardwright.execute.interpreter.stage_nodes import Node, stage_nodes
from shardwright.execute.native.attention_modules import Core, NativeRotary
from shardwright.execute.native.context_parallel_tokens import WHOLE, Context
from shardwright.execute.native.expert_modules import (
    NativePermute,
    NativeUnpermute,
    Products,
    Route,
)
from shardwright.execute.numerics.layers.activation_functions import (
    activation_name,
    apply_activation,
    clamped_gate,
)
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.block import INPUT
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.operator_constants import Settings
from shardwright.program.stages.stage_segments import StageParts
from shardwright.strategy.plan.stages import ActivationPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Lying:
    """The layout of a whole parameter of the model in its module: dims in another order, a weight
    transposed to (out, in).

    Args:
        back: dims of the model's in the operator's order.
        linear: of a projection.
    """

    back: tuple[int, ...]
    linear: bool

    def to_module(self, whole: torch.Tensor) -> torch.Tensor:
        """The module's tensor of the model's."""
        own = whole.permute(self.back)
        return own.reshape(-1, own.shape[-1]).T if self.linear and own.dim() > 1 else own

    def intervals(self, module: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """The model's intervals of the module's: of each dim."""
        own = tuple(reversed(module)) if self.linear else module
        assert len(own) == len(self.back), "a projection has a matrix"
        return tuple(own[self.back.index(i)] for i in range(len(own)))

    def to_model(self, whole: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """The model's tensor, of a shape, of the module's."""
        turned = [shape[i] for i in self.back]
        own = (whole.T if self.linear and len(shape) > 1 else whole).reshape(turned)
        return own.permute([self.back.index(i) for i in range(len(shape))])


Keyed = Mapping[str, tuple[Key, Lying]]
"""By name of a module's parameter: whose elements it has, and how they lie there."""


class Projection(nn.Module):  # type: ignore[misc]
    """y_i = f_i (x W_i (+ b_i)): one `nn.Linear` for every extent that the operator writes."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        count = len(operator.writes)
        width = operator.parameters[0].size // operator.writes[0].size
        biased = len(operator.parameters) > count
        self.factors = operator.factors or (1.0,) * count
        self.parts = nn.ModuleList(
            nn.Linear(width, e.size, bias=biased, device="meta") for e in operator.writes
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One tensor an extent."""
        return tuple(
            part(x) if f == 1.0 else part(x) * f
            for part, f in zip(self.parts, self.factors, strict=True)
        )


class NativeNorm(nn.Module):  # type: ignore[misc]
    """RMSNorm or LayerNorm of the whole width, or of every head of queries and keys; what follows
    them passes through.
    """

    def __init__(self, operator: Operator, *, settings: Settings) -> None:
        super().__init__()
        eps = settings.of_block(operator.name).eps
        self.parts = nn.ModuleList()
        self.whole: list[bool] = []
        biased = len(operator.reads) == 1 and len(operator.parameters) == 2
        for i, extent in enumerate(operator.reads):
            gain = i < len(operator.parameters)
            width = (
                operator.parameters[i].size
                if gain
                else extent.quantum
                if extent.quantum > 1
                else extent.size
            )
            self.whole.append(width == extent.size)
            if biased or (settings.norms_centred and operator.klass is not OperatorClass.ATTN):
                self.parts.append(
                    nn.LayerNorm(
                        width, eps=eps, elementwise_affine=gain, bias=biased, device="meta"
                    )
                )
            else:
                self.parts.append(
                    nn.RMSNorm(width, eps=eps, elementwise_affine=gain, device="meta")
                )

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One tensor an extent."""
        normed = []
        given = (*values, *values[-1:] * (len(self.parts) - len(values)))  # shared keys and values
        for part, whole, x in zip(self.parts, self.whole, given, strict=False):
            normed.append(
                part(x)
                if whole
                else part(x.unflatten(-1, (-1, part.normalized_shape[0]))).flatten(-2)
            )
        return (*normed, *values[len(normed) :])


class Activation(nn.Module):  # type: ignore[misc]
    """f(first) x second of two extents; f of one; what follows them passes through."""

    def __init__(self, operator: Operator, *, settings: Settings) -> None:
        super().__init__()
        self.count, self.curve = (
            len(operator.reads),
            activation_name(settings, gated=operator.gated),
        )
        self.clamped = settings if operator.clamped else None

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One tensor, and what passes."""
        if self.count == 1:
            return (apply_activation(self.curve, x), *rest)
        if self.clamped is not None:
            return (clamped_gate(x, rest[0], settings=self.clamped), *rest[1:])
        return (apply_activation(self.curve, x) * rest[0], *rest[1:])


class Gate(nn.Module):  # type: ignore[misc]
    """x scaled by the sigmoid of one score a token."""

    def forward(self, x: torch.Tensor, score: torch.Tensor) -> tuple[torch.Tensor]:
        """One tensor."""
        return (x * torch.sigmoid(score),)


class NativeResidual(nn.Module):  # type: ignore[misc]
    """The sum of its inputs, of which the first may have a factor, times the operator's own factor
    where it has one.
    """

    def __init__(self, operator: Operator, *, settings: Settings) -> None:
        super().__init__()
        self.factor = settings.residual_factor if operator.joins_stream else 1.0
        self.weight = nn.Parameter(torch.empty(1, device="meta")) if operator.parameters else None

    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor]:
        """One tensor."""
        total = sum(others, first if self.factor == 1.0 else self.factor * first)
        return (total if self.weight is None else total * self.weight,)


class TokenTable(nn.Embedding):  # type: ignore[misc]
    """A table whose padding row gets no gradient from lookup, also where its rows are cut over
    ranks.

    PyTorch's own ``padding_idx`` counts rows of a rank's part.
    """

    def __init__(self, rows: int, width: int, *, padding_row: int | None) -> None:
        super().__init__(rows, width, device="meta")
        self.padding_row = padding_row

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of `ids`."""
        found = super().forward(ids)
        if self.padding_row is not None and found.requires_grad:
            learned = (ids != self.padding_row).unsqueeze(-1)
            found.register_hook(lambda grad: grad * learned)
        return found


class Lookup(nn.Module):  # type: ignore[misc]
    """table[id] times the settings' factor, and positions[position] where the model learns them."""

    def __init__(self, operator: Operator, *, settings: Settings, context: Context) -> None:
        super().__init__()
        self.factor, self.first, self.context = (
            settings.embed_factor,
            settings.first_position,
            context,
        )
        sizes = [[e.size for e in p.extents] for p in operator.parameters]
        padded = [settings.padding_row, *(None for _ in sizes[1:])]
        self.tables = nn.ModuleList(
            TokenTable(rows, width, padding_row=row)
            for (rows, width), row in zip(sizes, padded, strict=True)
        )

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        """One tensor."""
        found = self.tables[0](ids)
        if self.factor != 1.0:
            found = found * found.new_tensor(self.factor)
        for table in self.tables[1:]:
            found = found + table((self.context.positions(ids) + self.first).unsqueeze(0))
        return (found,)


def _step(operator: Operator, *, settings: Settings, context: Context, again: bool) -> nn.Module:
    """The module of an operator of a kind that `rules` lets through."""
    match operator.kind:
        case OperatorKind.LINEAR:
            return Projection(operator)
        case OperatorKind.NORM:
            return NativeNorm(operator, settings=settings)
        case OperatorKind.ROTARY:
            return NativeRotary(operator, settings=settings, context=context)
        case OperatorKind.ATTENTION:
            return Core(operator, settings=settings, context=context, again=again)
        case OperatorKind.ACTIVATION:
            return Gate() if len(operator.inputs) > 1 else Activation(operator, settings=settings)
        case OperatorKind.RESIDUAL:
            return NativeResidual(operator, settings=settings)
        case OperatorKind.EMBEDDING:
            return Lookup(operator, settings=settings, context=context)
        case OperatorKind.ROUTE:
            return Route(operator, settings=settings)
        case OperatorKind.PERMUTE:
            return (
                NativeUnpermute(operator)
                if operator.name.endswith("unpermute")
                else NativePermute(operator)
            )
        case OperatorKind.GROUPED_LINEAR:
            return Products(operator)
    raise AssertionError(operator.kind)


def _names(operator: Operator) -> list[str]:
    """Names of a step's own parameters, in the order of the operator's."""
    if operator.kind is OperatorKind.EMBEDDING:
        return [f"tables.{i}.weight" for i in range(len(operator.parameters))]
    if operator.kind is OperatorKind.ROUTE:
        return [f"own.{p.name.rpartition('.')[2]}" for p in operator.parameters]
    if operator.kind is OperatorKind.GROUPED_LINEAR:
        count = len(operator.writes)
        return [
            f"weights.{i}" if i < count else f"biases.{i - count}"
            for i in range(len(operator.parameters))
        ]
    if operator.kind is OperatorKind.RESIDUAL:
        return ["weight"][: len(operator.parameters)]
    if operator.kind is OperatorKind.NORM and len(operator.reads) == 1:
        return ["parts.0.weight", "parts.0.bias"][: len(operator.parameters)]
    count = len(operator.reads) if operator.kind is OperatorKind.NORM else len(operator.writes)
    return [
        f"parts.{i % count}.{'bias' if i >= count else 'weight'}"
        for i in range(len(operator.parameters))
    ]


def step_path(operator: Operator) -> str:
    """The path of an operator's module in a layer."""
    return f"steps.{_slot(operator)}"


def _slot(operator: Operator) -> str:
    return operator.name.replace(".", "_")


class Layer(nn.Module):  # type: ignore[misc]
    """One layer of a stage: its operators in order, without the loss.

    Args:
        operators: those that run. keyed: its parameters' keys. again: only its input is kept for
            backward.
    """

    def __init__(self, node: Node, *, model: Model, settings: Settings, context: Context) -> None:
        super().__init__()
        again = {
            n
            for keep in node.segment.keeps
            if keep.how is ActivationPolicy.RECOMPUTE
            for n in keep.operators
        }
        self.again = node.recomputed
        self.operators = tuple(
            o for o in node.segment.block.operators if o.kind is not OperatorKind.LOSS
        )
        self.steps = nn.ModuleDict(
            {
                _slot(o): _step(o, settings=settings, context=context, again=o.name in again)
                for o in self.operators
            }
        )
        keyed: dict[str, tuple[Key, Lying]] = {}
        for operator in self.operators:
            for name, parameter in zip(_names(operator), operator.parameters, strict=True):
                found = origin(model, node.segment.run, node.layer, operator, parameter)
                back = tuple(found.order.index(i) for i in range(len(found.order)))
                turn = Lying(back=back, linear=operator.kind is OperatorKind.LINEAR)
                keyed[f"{step_path(operator)}.{name}"] = (found.key, turn)
                self.get_parameter(f"{step_path(operator)}.{name}").requires_grad_(
                    parameter.trainable
                )
        self.keyed: Keyed = keyed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the last operator."""
        if self.again and torch.is_grad_enabled():
            return checkpoint(self._run, x, use_reentrant=False, preserve_rng_state=False)
        return self._run(x)

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        values: dict[str, tuple[torch.Tensor, ...]] = {INPUT: (x,)}
        for operator in self.operators:
            one = operator.kind in (OperatorKind.LINEAR, OperatorKind.RESIDUAL)
            inputs = [
                value for name in operator.inputs for value in values[name][: 1 if one else None]
            ]
            values[operator.name] = self.steps[_slot(operator)](*inputs)
        return values[self.operators[-1].name][0]


class Stage(nn.Module):  # type: ignore[misc]
    """The layers of a chunk: token ids or a stream in, a stream or logits out; `context`: where the
    tokens are in their sequences.
    """

    def __init__(
        self, stage: StageParts, *, model: Model, settings: Settings, context: Context = WHOLE
    ) -> None:
        super().__init__()
        nodes = stage_nodes(stage, model)
        self.layers = nn.ModuleList(
            Layer(node, model=model, settings=settings, context=context) for node in nodes
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All layers in order."""
        for layer in self.layers:
            x = layer(x)
        return x

    def keyed(self) -> Iterator[tuple[str, Key, Lying]]:
        """(name, key, how it lies there) of every parameter."""
        for number, layer in enumerate(self.layers):
            for name, (key, turn) in layer.keyed.items():
                yield f"layers.{number}.{name}", key, turn
