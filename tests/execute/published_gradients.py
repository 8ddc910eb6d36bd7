"""Loss and gradients of a model of Transformers in training mode, against those of a step of
ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from shardwright.execute.device_state.stored_parameter_parts import Key
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import StepResult
from shardwright.execute.weights.family_parameter_names import naming_rules_of
from shardwright.execute.weights.parameter_slices_of_stored_tensors import (
    stored_parameters,
    stored_tensor_of,
)
from shardwright.execute.weights.read_weights import open_weights
from shardwright.model.ir.model_graph import Model
from tests.execute.published_configs import logits_of


def published_loss(published: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Cross-entropy of every token, and what the class adds to it where its configuration says so,
    of one forward pass."""
    found: list[Any] = []
    hook = published.register_forward_hook(
        lambda module, inputs, output: found.append(getattr(output, "aux_loss", None))
    )
    own = functional.cross_entropy(
        logits_of(published, batch).flatten(0, 1), batch["labels"].flatten()
    )
    hook.remove()
    return (
        own
        if found[0] is None
        else own + published.config.get_text_config().router_aux_loss_coef * found[0]
    )


def gradient_differences(
    published: Any, model: Model, result: StepResult, *, folder: Path
) -> Iterator[tuple[Key, float, float]]:
    """(parameter, largest difference of its gradient, largest of Transformers') of every trained
    parameter of a step of one device.

    Args:
        published: behind its backward; its parameters become their gradients.
        folder: gets them as weights, which we read as such.
    """
    for parameter in published.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    published.save_pretrained(folder)
    gradients = open_weights(folder, model=model, dtype=torch.float64)
    (store,) = result.stores.values()
    for key, parameter in stored_parameters(model):
        if parameter.trainable:
            (held,) = store.held[key].values()
            wanted = (
                gradients(key)
                - stored_tensor_of(model, naming_rules_of(model.architecture), key).add
            )
            own = torch.zeros_like(held.value) if held.gradient is None else held.gradient
            yield key, float((own - wanted).abs().max()), float(wanted.abs().max())
