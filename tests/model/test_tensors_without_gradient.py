"""What lies before the first trained parameter has no gradient: as autograd decides it, on graphs
of every kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import UsageError
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.inputs_without_gradient import with_constant_inputs
from shardwright.model.ir.block import INPUT, MEMORY
from shardwright.model.ir.model_graph import Model
from shardwright.model.tensors_without_gradient import (
    computes_input_gradient,
    has_backward,
    without_gradient,
)
from tests.tiers import examples

MODELS = {
    name: load_model(name)
    for name in ("llama-3.2-1b", "llava-1.5-7b", "t5-11b", "deepseek-v3", "mamba-codestral-7b")
}


def requiring(model: Model) -> dict[tuple[str, str], bool]:
    """(run, operator) -> its output requires a gradient, layer by layer as autograd would find it;
    of repeated layers the last one."""
    numbers = {run.name: i for i, run in enumerate(model.runs)}
    outputs: dict[str, bool] = {}
    found: dict[tuple[str, str], bool] = {}
    for i, run in enumerate(model.runs):
        block = model.blocks[run.block]
        memory = any(outputs[name] for name in run.inputs if model.is_memory(i, numbers[name]))
        stream = any(outputs[name] for name in run.inputs if not model.is_memory(i, numbers[name]))
        for _ in range(min(run.count, 2)):
            known = {INPUT: stream, MEMORY: memory}
            for operator in block.operators:
                own = any(p.trainable for p in operator.parameters)
                known[operator.name] = own or any(known[name] for name in operator.inputs)
                found[run.name, operator.name] = known[operator.name]
            stream = known[block.operators[-1].name]
        outputs[run.name] = stream
    return found


def names(model: Model) -> st.SearchStrategy[list[str]]:
    known = sorted(
        {b.name for b in model.blocks} | {o.klass.value for b in model.blocks for o in b.operators}
    )
    return st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True)


@examples(30, 600)
@given(
    st.sampled_from(sorted(MODELS)).flatmap(
        lambda name: st.tuples(st.just(name), names(MODELS[name]))
    )
)
def test_tensors_without_a_gradient_are_those_that_autograd_would_not_track(
    drawn: tuple[str, list[str]],
) -> None:
    name, chosen = drawn
    try:
        model = trained(MODELS[name], f"frozen:{','.join(chosen)}")
    except UsageError:
        return
    wanted = requiring(model)
    shared = {
        block: sum(run.block == block for run in model.runs)
        for block in {run.block for run in model.runs}
    }
    for run in model.runs:
        block = model.blocks[run.block]
        constant = without_gradient(block)
        for operator in block.operators:
            if shared[run.block] == 1:
                assert (operator.name not in constant) is wanted[run.name, operator.name], (
                    run.name,
                    operator.name,
                )
            else:
                assert operator.name not in constant or not wanted[run.name, operator.name]


def test_a_frozen_tower_has_no_backward_and_its_readers_do() -> None:
    model = trained(MODELS["llava-1.5-7b"], "frozen:vision_embed,vision")
    by_name = {run.name: model.blocks[run.block] for run in model.runs}
    assert {name for name, block in by_name.items() if not has_backward(block)} == {
        "vision_embed",
        "vision",
    }
    projector = by_name["projector"]
    assert projector.constant == (INPUT,)
    assert not computes_input_gradient(projector.operators[0], without_gradient(projector))
    assert computes_input_gradient(projector.operators[1], without_gradient(projector))


def test_models_that_are_trained_whole_are_as_they_were() -> None:
    for model in MODELS.values():
        assert trained(model, "") is model
        assert all(not block.constant for block in model.blocks)


def test_of_a_model_that_is_trained_whole_only_the_data_have_no_gradient() -> None:
    model = with_constant_inputs(MODELS["llama-3.2-1b"])
    assert [block.constant for block in model.blocks] == [(INPUT,), (), ()]


@pytest.mark.parametrize("text", ["frozen:layer", "frozen:embed,layer"])
def test_what_lies_behind_the_embedding_is_frozen_with_or_without_a_backward(text: str) -> None:
    model = trained(load_model("llama-3.1-8b"), text)
    by_name = {run.name: model.blocks[run.block] for run in model.runs}
    assert has_backward(by_name["layers"]) is ("embed" not in text)
    assert has_backward(by_name["head"])
