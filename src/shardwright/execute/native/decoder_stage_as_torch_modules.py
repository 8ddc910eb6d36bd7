"""Pipeline stage of a decoder as `torch.nn` modules, one for each operator in order.

Every weight carries its key in the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardwright.execute.device_state.stored_parameter_parts import Key, origin
from shardwright.execute.interpreter.stage_layers import StageNode, stage_nodes
from shardwright.execute.native.expert_modules import (
    GroupedProjections,
    NativePermute,
    NativeRouter,
    NativeUnpermute,
)
from shardwright.execute.native.rank_samples_and_positions import WHOLE, ContextParallelism
from shardwright.execute.native.rotary_and_attention_modules import NativeAttention, NativeRotary
from shardwright.execute.numerics.layers.activation_functions import (
    activation_name,
    apply_activation,
    clamped_gate,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import INPUT
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.program.stages.stage_segments import StageParts
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLayout:
    """Conversion of a parameter between the model's dims and its module's.

    Dims are permuted, and a linear weight is transposed to (out, in).

    Args:
        back: the model's dims in the operator's order.
        linear: the parameter belongs to a projection.
    """

    back: tuple[int, ...]
    linear: bool

    def to_module(self, parameter: torch.Tensor) -> torch.Tensor:
        """Permute the model's parameter to its module's dims; a linear weight becomes (out, in)."""
        permuted = parameter.permute(self.back)
        return (
            permuted.reshape(-1, permuted.shape[-1]).T
            if self.linear and permuted.dim() > 1
            else permuted
        )

    def model_intervals(self, module: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """Intervals of the module's dims, reordered to the model's dims."""
        operator_intervals = tuple(reversed(module)) if self.linear else module
        assert len(operator_intervals) == len(self.back), "a projection has a matrix"
        return tuple(operator_intervals[self.back.index(i)] for i in range(len(operator_intervals)))

    def to_model(self, module_tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Permute a module's tensor back to the dims and `shape` of the model's parameter."""
        operator_shape = [shape[i] for i in self.back]
        operator_tensor = (
            module_tensor.T if self.linear and len(shape) > 1 else module_tensor
        ).reshape(operator_shape)
        return operator_tensor.permute([self.back.index(i) for i in range(len(shape))])


ParameterKeys = Mapping[str, tuple[Key, ModuleLayout]]
"""By name of a module's parameter: key of the model's parameter, and its layout."""


class NativeProjection(nn.Module):  # type: ignore[misc]
    """Linear projections y_i = f_i (x W_i (+ b_i)): one `nn.Linear` for every extent written."""

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
        """Outputs of all projections, each times its factor, one for each extent written."""
        return tuple(
            part(x) if f == 1.0 else part(x) * f
            for part, f in zip(self.parts, self.factors, strict=True)
        )


class NativeNorm(nn.Module):  # type: ignore[misc]
    """RMSNorm or LayerNorm of the whole width, or of each head of queries and keys.

    Further values pass through.
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
        """Normalise one value for each extent that the norm reads; further values pass through."""
        normed = []
        inputs = (*values, *values[-1:] * (len(self.parts) - len(values)))  # shared keys and values
        for part, spans_width, x in zip(self.parts, self.whole, inputs, strict=False):
            normed.append(
                part(x)
                if spans_width
                else part(x.unflatten(-1, (-1, part.normalized_shape[0]))).flatten(-2)
            )
        return (*normed, *values[len(normed) :])


class NativeActivation(nn.Module):  # type: ignore[misc]
    """Activation f(x), or gated f(x) * y of two inputs; further values pass through."""

    def __init__(self, operator: Operator, *, settings: Settings) -> None:
        super().__init__()
        self.count, self.curve = (
            len(operator.reads),
            activation_name(settings, gated=operator.gated),
        )
        self.clamped = settings if operator.clamped else None

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """f(x), times the next value if the operator is gated; further values pass through."""
        if self.count == 1:
            return (apply_activation(self.curve, x), *rest)
        if self.clamped is not None:
            return (clamped_gate(x, rest[0], settings=self.clamped), *rest[1:])
        return (apply_activation(self.curve, x) * rest[0], *rest[1:])


class NativeGate(nn.Module):  # type: ignore[misc]
    """Scaling of x by the sigmoid of one score for each token."""

    def forward(self, x: torch.Tensor, score: torch.Tensor) -> tuple[torch.Tensor]:
        """Scale `x` by sigmoid(score)."""
        return (x * torch.sigmoid(score),)


class NativeResidual(nn.Module):  # type: ignore[misc]
    """Residual sum of its inputs, with optional factors of the first input and of the sum."""

    def __init__(self, operator: Operator, *, settings: Settings) -> None:
        super().__init__()
        self.factor = settings.residual_factor if operator.joins_stream else 1.0
        self.weight = nn.Parameter(torch.empty(1, device="meta")) if operator.parameters else None

    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor]:
        """Sum the inputs, with the factors of the first input and of the sum."""
        total = sum(others, first if self.factor == 1.0 else self.factor * first)
        return (total if self.weight is None else total * self.weight,)


class TokenTable(nn.Embedding):  # type: ignore[misc]
    """Embedding table whose padding row gets no lookup gradient, even if ranks share its rows.

    PyTorch's own ``padding_idx`` counts the rows of a rank's part.
    """

    def __init__(self, rows: int, width: int, *, padding_row: int | None) -> None:
        super().__init__(rows, width, device="meta")
        self.padding_row = padding_row

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Table rows of the token ids; the padding row gets no gradient."""
        rows = super().forward(ids)
        if self.padding_row is not None and rows.requires_grad:
            learned = (ids != self.padding_row).unsqueeze(-1)
            rows.register_hook(lambda grad: grad * learned)
        return rows


class EmbeddingLookup(nn.Module):  # type: ignore[misc]
    """Token embedding times a factor, plus learned position embeddings where the model has them."""

    def __init__(
        self, operator: Operator, *, settings: Settings, context: ContextParallelism
    ) -> None:
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
        """Token embeddings times a factor, plus learned position embeddings where there are any."""
        embedded = self.tables[0](ids)
        if self.factor != 1.0:
            embedded = embedded * embedded.new_tensor(self.factor)
        for table in self.tables[1:]:
            embedded = embedded + table((self.context.positions(ids) + self.first).unsqueeze(0))
        return (embedded,)


def _operator_module(
    operator: Operator, *, settings: Settings, context: ContextParallelism, again: bool
) -> nn.Module:
    """Create the module of an operator of a kind that `grids_that_torch_can_run` accepts."""
    match operator.kind:
        case OperatorKind.LINEAR:
            return NativeProjection(operator)
        case OperatorKind.NORM:
            return NativeNorm(operator, settings=settings)
        case OperatorKind.ROTARY:
            return NativeRotary(operator, settings=settings, context=context)
        case OperatorKind.ATTENTION:
            return NativeAttention(operator, settings=settings, context=context, again=again)
        case OperatorKind.ACTIVATION:
            return (
                NativeGate()
                if len(operator.inputs) > 1
                else NativeActivation(operator, settings=settings)
            )
        case OperatorKind.RESIDUAL:
            return NativeResidual(operator, settings=settings)
        case OperatorKind.EMBEDDING:
            return EmbeddingLookup(operator, settings=settings, context=context)
        case OperatorKind.ROUTE:
            return NativeRouter(operator, settings=settings)
        case OperatorKind.PERMUTE:
            return (
                NativeUnpermute(operator)
                if operator.name.endswith("unpermute")
                else NativePermute(operator)
            )
        case OperatorKind.GROUPED_LINEAR:
            return GroupedProjections(operator)
    raise AssertionError(operator.kind)


def _parameter_names(operator: Operator) -> list[str]:
    """Names (``parts.0.weight``) of a module's parameters, in the operator's order."""
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


def native_module_path(operator: Operator) -> str:
    """Path of an operator's module in `NativeLayer`: ``steps.`` + its name, dots as ``_``."""
    return f"steps.{_module_name(operator)}"


def _module_name(operator: Operator) -> str:
    """The operator's name with `_` for each dot, as torch allows no dots in module names."""
    return operator.name.replace(".", "_")


class NativeLayer(nn.Module):  # type: ignore[misc]
    """Module of one layer of a stage: its operators in order, without the loss.

    Args:
        operators: operators of the layer that run. keyed: keys of its parameters.
        again: full recomputation: only the layer's input is kept for backward.
    """

    def __init__(
        self, node: StageNode, *, model: Model, settings: Settings, context: ContextParallelism
    ) -> None:
        super().__init__()
        recomputed_operators = {
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
                _module_name(o): _operator_module(
                    o, settings=settings, context=context, again=o.name in recomputed_operators
                )
                for o in self.operators
            }
        )
        keyed: dict[str, tuple[Key, ModuleLayout]] = {}
        for operator in self.operators:
            for name, parameter in zip(
                _parameter_names(operator), operator.parameters, strict=True
            ):
                origin_of_parameter = origin(
                    model, node.segment.run, node.layer, operator, parameter
                )
                dim_order = tuple(
                    origin_of_parameter.order.index(i)
                    for i in range(len(origin_of_parameter.order))
                )
                layout = ModuleLayout(back=dim_order, linear=operator.kind is OperatorKind.LINEAR)
                keyed[f"{native_module_path(operator)}.{name}"] = (origin_of_parameter.key, layout)
                self.get_parameter(f"{native_module_path(operator)}.{name}").requires_grad_(
                    parameter.trainable
                )
        self.parameter_keys: ParameterKeys = keyed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the layer's last operator; recomputed in backward if the plan says so."""
        if self.again and torch.is_grad_enabled():
            return checkpoint(self._run, x, use_reentrant=False, preserve_rng_state=False)
        return self._run(x)

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        """Run the layer's operators in order on their inputs; return the last one's output."""
        values: dict[str, tuple[torch.Tensor, ...]] = {INPUT: (x,)}
        for operator in self.operators:
            single_input = operator.kind in (OperatorKind.LINEAR, OperatorKind.RESIDUAL)
            inputs = [
                value
                for name in operator.inputs
                for value in values[name][: 1 if single_input else None]
            ]
            values[operator.name] = self.steps[_module_name(operator)](*inputs)
        return values[self.operators[-1].name][0]


class NativeStage(nn.Module):  # type: ignore[misc]
    """Module of one pipeline chunk: token ids or hidden states in, hidden states or logits out.

    `context`: context parallelism of the rank.
    """

    def __init__(
        self,
        stage: StageParts,
        *,
        model: Model,
        settings: Settings,
        context: ContextParallelism = WHOLE,
    ) -> None:
        super().__init__()
        nodes = stage_nodes(stage, model)
        self.layers = nn.ModuleList(
            NativeLayer(node, model=model, settings=settings, context=context) for node in nodes
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all layers of the pipeline stage on `x`, in order."""
        for layer in self.layers:
            x = layer(x)
        return x

    def parameter_keys(self) -> Iterator[tuple[str, Key, ModuleLayout]]:
        """Iterate over (name, key in the model, module layout) of every parameter."""
        for number, layer in enumerate(self.layers):
            for name, (key, layout) in layer.parameter_keys.items():
                yield f"layers.{number}.{name}", key, layout
