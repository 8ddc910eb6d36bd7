"""A model beside a teacher: its graph, its names, and what does not fit."""

from __future__ import annotations

import pytest

from shardwright.errors import ModelError
from shardwright.model.add_frozen_teacher_to_model import with_teacher
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.block import MEMORY
from shardwright.model.requested_model_with_teacher import requested_model
from shardwright.model.tensors_without_gradient import has_backward
from shardwright.strategy.grid.grid_to_plan import chunk_items
from shardwright.strategy.grid.layers_per_chunk import chunk_layers, teacher_chunks
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import layer_runs, num_layers

STUDENT, TEACHER = load_model("llama-3.2-1b"), load_model("llama-3.1-8b")
BOTH = with_teacher(STUDENT, TEACHER)


def test_parameters_are_those_of_both_and_trained_those_of_the_model() -> None:
    assert BOTH.num_parameters == STUDENT.num_parameters + TEACHER.num_parameters
    assert BOTH.num_trainable_parameters == STUDENT.num_trainable_parameters
    assert (BOTH.name, BOTH.hidden, BOTH.vocab) == (STUDENT.name, STUDENT.hidden, STUDENT.vocab)


def test_only_the_model_has_a_backward_and_layers_to_spread() -> None:
    for run in BOTH.runs:
        assert has_backward(BOTH.blocks[run.block]) is not run.name.startswith("teacher_")
    assert num_layers(BOTH) == num_layers(STUDENT) == 16
    assert BOTH.teacher_layers == 32
    assert [run.name for run in layer_runs(BOTH)] == ["layers"]


def test_the_loss_reads_both_logits_and_the_teacher_comes_as_memory() -> None:
    head = BOTH.blocks[BOTH.runs[-1].block]
    by_name = {o.name: o for o in head.operators}
    assert by_name["loss"].inputs == ("logits", "teacher.logits")
    assert by_name["loss"].reads_teacher_logits
    assert by_name["teacher.norm"].inputs == (MEMORY,)
    assert head.constant == (MEMORY,)


def test_a_tied_head_of_the_teacher_names_its_embedding() -> None:
    model = with_teacher(TEACHER, STUDENT)
    tied = {p.tied_to for b in model.blocks for o in b.operators for p in o.parameters if p.tied_to}
    assert tied == {"teacher_embed.embed.weight"}
    assert model.num_parameters == BOTH.num_parameters


def test_a_teachers_modules_that_predict_further_are_left_out() -> None:
    teacher = load_model("deepseek-v3")
    model = with_teacher(teacher, teacher)
    assert not any(run.name.startswith("teacher_mtp") for run in model.runs)
    assert any(run.name.startswith("mtp") for run in model.runs)


def test_adapters_beside_a_teacher() -> None:
    both, alone = (
        requested_model("llama-3.2-1b", train="lora:r16", teacher="llama-3.1-8b"),
        requested_model("llama-3.2-1b", train="lora:r16"),
    )
    assert both.num_trainable_parameters == alone.num_trainable_parameters
    assert both.base == BOTH
    assert requested_model("llama-3.2-1b") == STUDENT


@pytest.mark.parametrize("chunks", [1, 2, 5, 16])
def test_every_chunk_has_its_part_of_both(chunks: int) -> None:
    items = chunk_items(BOTH, chunks=chunk_layers(16, pp=chunks))
    own = tuple(sum(item.count for item in chunk if not item.name) for chunk in items)
    its = tuple(
        sum(item.count for item in chunk if item.name == "teacher_layers") for chunk in items
    )
    assert own == chunk_layers(16, pp=chunks)
    assert its == teacher_chunks(32, chunks=chunks)
    assert items[0][0].name == "teacher_embed"
    assert items[-1][-1].name == "head"


@pytest.mark.parametrize(
    ("student", "teacher", "said"),
    [
        ("llama-3.2-1b", "gpt3-175b", "words"),
        ("llama-3.2-1b", "llava-1.5-7b", "reads image"),
        ("t5-11b", "t5-11b", "reads encoder"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(student: str, teacher: str, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        with_teacher(load_model(student), load_model(teacher))
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_taught_model_teaches_nobody() -> None:
    with pytest.raises(ModelError):
        with_teacher(STUDENT, BOTH)
    with pytest.raises(ModelError):
        with_teacher(BOTH, TEACHER)
