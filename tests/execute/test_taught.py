"""A frozen teacher beside the model: what runs is what was lowered, trains like the unsplit models,
and has PyTorch's FLOPs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import kl_div, log_softmax
from torch.utils.flop_counter import FlopCounterMode

from shardwright.cost.step.model_flops import model_flops
from shardwright.errors import DataError
from shardwright.execute.device_state.stored_parameter_parts import Key, seeded
from shardwright.execute.numerics.losses.teacher_divergence import TeacherDivergence
from shardwright.execute.proof.fewer_layers_and_microbatches import num_operators, shorter_step
from shardwright.execute.proof.prove_plan import prove_plan, random_batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
)
from shardwright.execute.weights.read_weights import open_weights
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.model.add_frozen_teacher_to_model import with_teacher
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import DEFAULT, load_runtime
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import parse_grid
from tests.execute.counts import problem_of
from tests.execute.small_plans import Small, run_here
from tests.execute.test_counts import same
from tests.execute.test_plans import assert_equal
from tests.jobs import training_job
from tests.strategy.zoo_models import dense, sparse

TOKENS, BATCH = 16, 8
BESIDE = with_teacher(dense(layers=2), dense(layers=3))
STAGE = "teacher_embed+teacher_layers:3+embed+2+head"
OF_EXPERTS = with_teacher(dense(layers=2), sparse(dense_layers=1, layers=1))


def planned(grid: str, *, model: Model = BESIDE) -> Plan:
    return plan_of(parse_grid(grid), model=model, global_batch=BATCH)


@pytest.mark.parametrize(
    "grid",
    [
        "tp2 pp2 mbs2 recompute=full",
        *(
            pytest.param(one, marks=pytest.mark.proof)
            for one in (
                "tp2 sp dp2 mbs1 zero1",
                "dp4 mbs1",
                "pp2 dp2 mbs2",
                "tp4 mbs2",
                "cp2 tp2 sp mbs2",
                "pp4 mbs1",
                "cp4 ulysses2 mbs2",
                "tp2 dp2 mbs1 recompute=selective",
            )
        ),
    ],
)
def test_plans_train_like_the_unsplit_models_and_as_counted(grid: str) -> None:
    job, plan = training_job(seq_len=TOKENS, global_batch=BATCH), planned(grid)
    assert_equal(prove_plan(BESIDE, job, plan))
    same(problem_of(plan, model=BESIDE, job=job))


@pytest.mark.proof
def test_a_teacher_of_experts() -> None:
    job, plan = (
        training_job(seq_len=64, global_batch=BATCH),
        planned("tp2 sp dp2 ep4 mbs1", model=OF_EXPERTS),
    )
    assert_equal(prove_plan(OF_EXPERTS, job, plan))
    same(problem_of(plan, model=OF_EXPERTS, job=job))


def test_training_changes_the_model_and_never_the_teacher() -> None:
    """Two steps on four devices end where one device ends; the teacher's parameters are what they
    were."""
    small = Small(
        body=(
            f"lane main samples {BATCH} in 2\n  stages {STAGE} on 0\n    all = t2 b2\norder"
            " 1f1b(main)\n"
        ),
        whole=lambda: BESIDE,
        zero="zero all: all/1/1\n",
    )
    reports, members = run_here(small, small.known(), steps=2)
    others, alone = run_here(small, small.alone(), steps=2)
    for one, other in zip(reports, others, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-9)
    source = seeded(small.model, seed=0)
    for member in (*members.values(), *alone.values()):
        for key, boxes in member.store.held.items():
            for held in boxes.values():
                place = torch.meshgrid(
                    *(torch.cat([torch.arange(a, b) for a, b in dim]) for dim in held.box),
                    indexing="ij",
                )
                unchanged = torch.equal(held.value, source(key)[place].to(held.value.dtype))
                assert unchanged is is_of_teacher(small.model, key), key


def test_published_weights_beside_a_teacher_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="teacher") as caught:
        open_weights(tmp_path, model=BESIDE, dtype=torch.float32)
    assert caught.value.hint


def is_of_teacher(model: Model, key: Key) -> bool:
    return model.blocks[model.runs[key[0]].block].is_of_teacher or key[3].startswith("teacher.")


def test_the_teacher_alone_keeps_nothing_and_has_no_gradient() -> None:
    job = training_job(seq_len=TOKENS, global_batch=2)
    step = run_step(
        BESIDE,
        job,
        single_device_plan(BESIDE, job),
        batch=random_batch(BESIDE, job, seed=0),
        source=seeded(BESIDE, seed=0),
    )
    (store,) = step.stores.values()
    for key, boxes in store.held.items():
        assert all(
            (held.gradient is None) is is_of_teacher(BESIDE, key) for held in boxes.values()
        ), key


def test_a_model_beside_itself_learns_nothing() -> None:
    """Two logits that are the same have no divergence, and no gradient."""
    logits, labels = torch.randn(2, 3, 7, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.int64)
    value, back = divergence(logits, logits, labels)
    assert float(value.abs().max()) < 1e-12
    assert float(back.abs().max()) < 1e-12


def test_the_divergence_is_that_of_pytorch() -> None:
    generator = torch.Generator().manual_seed(3)
    own, other = (torch.randn(2, 5, 11, dtype=torch.float64, generator=generator) for _ in range(2))
    labels = torch.tensor([[0, 1, -1, 3, 4], [0, -1, 2, 3, 4]])
    asked = own.clone().requires_grad_()
    each = kl_div(
        log_softmax(asked, -1), log_softmax(other, -1), reduction="none", log_target=True
    ).sum(-1)
    wanted = torch.where(labels >= 0, each, 0)
    wanted.sum().backward()
    value, back = divergence(own, other, labels)
    torch.testing.assert_close(value[..., 0], wanted.detach())
    torch.testing.assert_close(back, asked.grad)


def divergence(
    own: torch.Tensor, other: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and gradient of own logits on one device."""
    problem = problem_of(
        planned("mbs8"), model=BESIDE, job=training_job(seq_len=TOKENS, global_batch=BATCH)
    )
    loss = problem.model.blocks[-1].operators[-1]

    class Place:
        settings = Settings()
        operator, groups = loss, {}

    def ended(task):  # type: ignore[no-untyped-def]
        try:
            next(task)
        except StopIteration as end:
            return end.value
        raise AssertionError("one device asks nobody")

    (value,), saved = ended(TeacherDivergence().forward(Place(), ((own,), (other,), (labels,)), {}))
    (back,), *none = ended(
        TeacherDivergence().input_grad(Place(), saved, (torch.ones_like(value),), {})
    )
    assert none == [None, None]
    return value, back


def plain_flops(model: Model, *, trained: bool) -> tuple[int, int]:
    """FLOPs of the products of a decoder's step in PyTorch, forward and backward, as PyTorch counts
    them; cores are left out."""
    forward = backward = 0
    for run in model.runs:
        for operator in model.blocks[run.block].operators:
            for parameter in (
                p
                for p in operator.parameters
                if operator.kind.value == "linear" and len(p.extents) == 2
            ):
                weight = torch.zeros([e.size for e in parameter.extents], requires_grad=trained)
                x = torch.zeros(TOKENS, parameter.extents[0].size, requires_grad=trained)
                with FlopCounterMode(display=False) as counted:
                    y = x @ weight
                forward += run.count * counted.get_total_flops()
                if trained:
                    with FlopCounterMode(display=False) as counted:
                        y.backward(torch.zeros_like(y))
                    backward += run.count * counted.get_total_flops()
    return forward, backward


def test_flops_are_three_forwards_of_the_model_and_one_of_its_teacher() -> None:
    """Products as PyTorch runs them; cores are the same function of both, whose backward counts
    twice its forward."""
    student, teacher = dense(layers=2), dense(layers=3)

    def counted(model: Model) -> float:
        job = job_from_flags(seq_len=TOKENS, global_batch=1)
        return model_flops(
            Problem(
                model=model, cluster=parse_cluster("h100:1"), job=job, runtime=load_runtime(DEFAULT)
            )
        )[0]

    alone, its = counted(student), counted(teacher)
    assert alone % 3 == its % 3 == 0
    assert counted(BESIDE) == alone + its / 3
    forward, backward = plain_flops(student, trained=True)
    once, none = plain_flops(teacher, trained=False)
    assert (backward, none) == (2 * forward, 0)
    cores = (counted(student) - 3 * forward) / 3 / 2  # of a layer
    assert counted(BESIDE) == 3 * forward + once + cores * (3 * 2 + 3)


def test_a_step_beside_a_teacher_is_shortened() -> None:
    model = with_teacher(dense(layers=8), dense(layers=12))
    job = training_job(seq_len=TOKENS, global_batch=BATCH)
    plan = plan_of(parse_grid("tp2 dp2 mbs1 recompute=full"), model=model, global_batch=BATCH)
    small, short, found = shorter_step(model, job, plan, most=100)
    assert num_operators((small, short, found)) < num_operators((model, job, plan)) / 2
    assert {run.name: run.count for run in small.runs}["teacher_layers"] == 1
    assert found.lanes[0].stages[0].keeps
    same(problem_of(found, model=small, job=replace(short, sequences=job.sequences)))
