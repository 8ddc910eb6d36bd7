"""A proof fails where execution is wrong: each mutation of the interpreter is caught."""

import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.device_state import stored_parameter_parts as device_parameters
from shardwright.execute.device_state import sum_each_parameter_gradient_over_devices as gradients
from shardwright.execute.interpreter import earlier_slice_tensors as earlier_slices
from shardwright.execute.interpreter import operator_inputs_on_device as layer_inputs
from shardwright.execute.proof.proof_result import TOLERANCE
from shardwright.execute.proof.prove_plan import prove_plan
from shardwright.execute.redistribution import tensor_layouts_at_producer_and_reader as edge_layouts
from shardwright.execute.training import compare_step_gradients_on_virtual_devices as training_step
from tests.execute.short_plans import short_zoo_plan
from tests.strategy.zoo_plans import zoo_plan

Patch = Callable[[pytest.MonkeyPatch], None]


def no_sums(patch: pytest.MonkeyPatch) -> None:
    def sum_gradients(*_: Any) -> Any:
        yield from ()

    patch.setattr(training_step, "sum_gradients", sum_gradients)


def one_parameter_is_not_summed(patch: pytest.MonkeyPatch) -> None:
    whole = gradients.sum_gradients
    patch.setattr(
        training_step,
        "sum_gradients",
        lambda d, groups, store: whole(
            d, {k: g for k, g in groups.items() if "proj" not in k[2]}, store
        ),
    )


def devices_hold_each_others_queries(patch: pytest.MonkeyPatch) -> None:
    part = device_parameters.parameter_part

    def wrong(source: Any, key: Any, box: Any) -> Any:
        if key[3] != "qkv.weight":
            return part(source, key, box)
        whole = source(key)
        starts = [
            sum(b - a for a, b in dim) if dim != ((0, size),) else 0
            for dim, size in zip(box, whole.shape, strict=True)
        ]
        return device_parameters.box_slice(
            whole.roll(starts, dims=list(range(whole.dim()))), box
        ).clone()

    patch.setattr(device_parameters, "parameter_part", wrong)


def parts_of_sums_are_taken_for_values(patch: pytest.MonkeyPatch) -> None:
    layout = edge_layouts.cotangent_layout
    patch.setattr(
        edge_layouts,
        "cotangent_layout",
        lambda *a: tuple(h._replace(part=None) for h in layout(*a)),
    )


def slices_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    longer = earlier_slices.EarlierSlices.with_earlier_positions

    def wrong(self: Any, operator: Any, inputs: Any, *, part: int) -> Any:
        if operator.attention is None:
            return inputs
        ((query, keys, values, *others),) = longer(self, operator, inputs, part=part)
        return ((query, keys.flip(1), values.flip(1), *others),)

    patch.setattr(earlier_slices.EarlierSlices, "with_earlier_positions", wrong)


def slices_owe_nothing(patch: pytest.MonkeyPatch) -> None:
    def shorter(self: Any, operator: Any, backs: Any) -> Any:
        if operator.attention is None:
            return backs
        ((query, keys, values, *others), *rest) = backs
        length = self.kept[operator.name].pop()[0].shape[1]
        self.pending_grads[operator.name].pop()
        return ((query, keys[:, -length:], values[:, -length:], *others), *rest)

    patch.setattr(earlier_slices.EarlierSlices, "own_position_grads", shorter)


def positions_begin_at_zero(patch: pytest.MonkeyPatch) -> None:
    rows = layer_inputs.own_rows
    patch.setattr(
        layer_inputs,
        "own_rows",
        lambda whole, samples, positions: rows(
            whole, samples, ((0, sum(b - a for a, b in positions)),)
        ),
    )


MUTANTS: list[tuple[Patch, str, bool, str]] = [
    (no_sums, "53-tp2-dp2", False, r"layers\.[4-7]/.*|.*norm.*|.*logits.*"),
    (one_parameter_is_not_summed, "14-survey3", False, r".*/proj\.weight"),
    (devices_hold_each_others_queries, "53-tp2-dp2", True, r".*"),
    (parts_of_sums_are_taken_for_values, "49-survey-heads-hidden", False, r"(?!.*logits).*"),
    (slices_in_the_wrong_order, "64-uneven-slices", True, r".*"),
    (
        slices_owe_nothing,
        "64-uneven-slices",
        False,
        r"embed.*|layers\.[0-6]/.*|layers\.7/(norm1.*|qkv\.weight\.[12])",
    ),
    (positions_begin_at_zero, "63-weighted-ring", True, r".*"),
]
"""A mutation, the plan, and what the proof then finds wrong: the loss, and the parameters whose
gradients differ. Nothing else is."""


@pytest.mark.parametrize(
    ("mutate", "name", "loss", "gradients"), MUTANTS, ids=[m.__name__ for m, *_ in MUTANTS]
)
def test_mutant_is_caught(
    mutate: Patch, name: str, loss: bool, gradients: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = zoo_plan(name)
    # A list of layers is of the plan as it is.
    question = (zoo.model, zoo.job, zoo.plan) if "layers" in gradients else short_zoo_plan(name)
    mutate(monkeypatch)
    edge_layouts.input_edges.cache_clear()
    try:
        found = prove_plan(*question)
    finally:
        edge_layouts.input_edges.cache_clear()
    assert (abs(found.loss_difference) > TOLERANCE) == loss
    assert {key for key, difference in found.gradients.items() if difference > TOLERANCE} == {
        key for key in found.gradients if re.fullmatch(gradients, key)
    }
