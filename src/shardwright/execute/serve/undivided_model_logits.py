"""Logits of the unsplit model over whole sequences without a cache, as a reference for proofs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from shardwright.execute.device_state.saved_layer_state import BlockRun
from shardwright.execute.device_state.stored_parameter_parts import ParameterStore, Source
from shardwright.execute.interpreter.chunk_passes import Walker
from shardwright.execute.interpreter.iterate_device_passes_in_order import Turn
from shardwright.execute.interpreter.prepared_step import PreparedStep
from shardwright.execute.interpreter.stage_layers import StageNode
from shardwright.execute.numerics.base.operator_protocol import (
    Forward,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.losses.logit_scaling import scaled_logits
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.prepare_work_shared_by_devices import prepare_forward
from shardwright.execute.transport.communication_requests import Task
from shardwright.execute.transport.in_process_transport import run_in_process
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import TEXT
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator, OperatorKind


def unsplit_logits(
    model: Model, tokens: Sequence[int], *, source: Source, settings: Settings | None = None
) -> torch.Tensor:
    """Logits of one sequence, (positions, vocabulary), by one forward pass on one device.

    Operators, weights and the order of operations are those of training.
    """
    job = TrainingJob(sequences=(SequenceLength(name=TEXT, tokens=len(tokens)),), global_batch=1)
    work = prepare_forward(model, single_device_plan(model, job), length=len(tokens))
    ids = torch.tensor([list(tokens)])
    store = ParameterStore(model=model, source=source, settings=settings or model.settings)
    walker = _LogitsWalker(work, ids, store)
    run_in_process({0: walker.forward(0, 0, 0, 0)})
    return walker.made[0]


class _LogitsWalker(Walker):
    """Walker that stores its heads' logits, (positions, vocabulary) each."""

    def __init__(self, work: PreparedStep, ids: torch.Tensor, store: ParameterStore) -> None:
        super().__init__(0, work, {TEXT: ids, "labels": torch.zeros_like(ids)}, store)
        self.made: list[torch.Tensor] = []

    def _block_run(self, node: StageNode, place: Turn) -> BlockRun:
        """The computation of one layer, with the loss replaced."""
        return replace(super()._block_run(node, place), forward_of=self._forward_of)

    def _forward_of(self, operator: Operator) -> Forward:
        """Forward pass of an operator; for the loss, one that keeps the logits instead."""
        return (
            _ReadLogits(made=self.made)
            if operator.kind is OperatorKind.LOSS
            else numerics_of(operator)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadLogits:
    """Replacement of the loss that stores the logits."""

    made: list[torch.Tensor]

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Append the first sample's logits to the list; the output is zeros.

        See `Forward`.
        """
        yield from ()
        self.made.append(scaled_logits(inputs[0][0][0], place.settings))
        return (inputs[0][0].new_zeros((*inputs[0][0].shape[:2], 1)),), SavedTensors(inputs=())
