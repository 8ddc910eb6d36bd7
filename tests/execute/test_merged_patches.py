"""Patches that become one image token: a tower of any cut before a text of any cut trains as on one
device, or is refused by name."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.interpreter.prepared_step import Batch
from shardwright.execute.numerics.images.operators_over_merged_tokens import (
    fold_elements,
    merge_neighbours,
    split_neighbours,
    unfold_elements,
)
from shardwright.execute.proof.prove_plan import prove_plan, random_batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
    step_differences,
)
from shardwright.execute.training.prepare_work_shared_by_devices import prepare_step
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.blocks.vision_tower_and_projector import ProjectorShape, projector_operators
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.published_images import KIMI
from tests.tiers import cases, in_both, in_proof

RING, GATHER = "core = s2 via ring", "core = s2 via gather"
TOWER = (
    "all = t2\n    stream = s2",
    "all = b2",
    f"all = s2\n    {RING}",
    f"all = s2\n    {GATHER}",
    "all = t4",
    "all = b2 s2\n    core = b2 s2 via ring",
    "all = t2\n    stream = d2",
)
TEXT = (
    f"all = s2\n    {RING}\n    router = s2\n    experts = e2",
    "all = t2\n    stream = s2\n    router = s2\n    experts = e2",
    "all = b2",
    "all = t2",
)
PATCHES = 36


@cache
def small_kimi(*, hidden: int = 64) -> Model:
    text = {
        **KIMI["text_config"],
        "hidden_size": hidden,
        "num_hidden_layers": 2,
        "n_routed_experts": 8,
    }
    vision = {
        **KIMI["vision_config"],
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "patch_size": 4,
    }
    return model_from_config(
        {**KIMI, "text_config": text, "vision_config": vision, "projection_hidden_size": 32},
        name="small-kimi",
    )


def job_of(*, image: int = PATCHES, samples: int = 8) -> TrainingJob:
    lengths = {"text": 16, "image": image}
    return TrainingJob(
        sequences=tuple(SequenceLength(name=n, tokens=t) for n, t in lengths.items()),
        global_batch=samples,
    )


def two_stages(tower: str, text: str) -> str:
    return (
        "plan merged devices 8\nlane main samples 8 in 2\n"
        f"  stages vision_embed+vision:2+projector on 0\n    {tower}\n"
        f"  stages embed+2+head on 4\n    {text}\norder 1f1b(main)\n"
    )


def assert_same(model: Model, job: TrainingJob, text: str) -> None:
    """A step of a plan and of one device, with all sequences as long as they are."""
    batch: Batch = random_batch(model, job, seed=1)
    source = seeded(model, seed=1)
    whole = run_step(model, job, single_device_plan(model, job), batch=batch, source=source)
    parts = run_step(model, job, parse_plan(text), batch=batch, source=source)
    assert float(parts.loss - whole.loss) == pytest.approx(0.0, abs=1e-12)
    assert max(difference for *_, difference in step_differences(parts, whole)) < 1e-12


def test_elements_of_a_token_lie_over_its_patches() -> None:
    tokens = torch.arange(2 * 3 * 8.0).view(2, 3, 8)
    held = fold_elements(tokens, 4)
    assert held.shape == (2, 12, 2)
    assert held[0, :4].tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert torch.equal(unfold_elements(held, 4, width=8), tokens)
    assert torch.equal(
        unfold_elements(fold_elements(tokens[..., :7], 4), 4, width=7), tokens[..., :7]
    )
    # Half of the elements of a token are half of what each patch has.
    assert torch.equal(fold_elements(tokens[..., 4:], 4), held[..., 1:])
    patches = torch.arange(2 * 12 * 2.0).view(2, 12, 2)
    assert merge_neighbours(patches, 4)[0, 1].tolist() == [8, 9, 10, 11, 12, 13, 14, 15]
    assert torch.equal(split_neighbours(merge_neighbours(patches, 4), 4), patches)


@in_both
@pytest.mark.parametrize(
    ("tower", "text"),
    list(product(TOWER, TEXT))
    if in_proof()
    else [(TOWER[number], TEXT[number % 4]) for number in (0, 3)],
)
def test_merged_tokens_come_from_any_cut_of_a_tower_to_any_cut_of_a_text(
    tower: str, text: str
) -> None:
    model, job = small_kimi(), job_of(image=64 if "s2" in tower else PATCHES)
    found = prove_plan(model, job, parse_plan(two_stages(tower, text)))
    assert found.equal, (found.loss_difference, found.worst)


@pytest.mark.parametrize("cut", cases(["up", "act", "down", "norm", "merge"], 2))
def test_a_projector_may_be_cut_between_its_operators(cut: str) -> None:
    """Devices of both sides have other parts of the tensor between them."""
    operators = [f"projector.{name}" for name in ("vision_norm", "norm", "up", "act", "down")] + [
        "embed.lookup",
        "embed.merge",
    ]
    at = next(i for i, name in enumerate(operators) if name.endswith(f".{cut}")) + 1
    first, behind = (
        ["vision_embed", "vision:2", *operators[:at]],
        [*operators[at:], "layers.0:1", "layers.1:1", "head"],
    )
    text = (
        "plan merged devices 8\nlane main samples 8 in 2\n"
        f"  stages {'+'.join(first)} on 0\n    all = t4\n"
        f"  stages {'+'.join(behind)} on 4\n    all = b2 t2\norder gpipe(main)\n"
    )
    found = prove_plan(small_kimi(), job_of(), parse_plan(text))
    assert found.equal, (found.loss_difference, found.worst)


@pytest.mark.parametrize(
    "asked",
    cases(
        [
            "frozen:vision_embed,vision,projector",
            "frozen:vision_embed,vision",
            "lora:r4:attn,mlp",
            "frozen:embed",
        ],
        1,
    ),
)
def test_a_merging_tower_may_be_frozen_or_have_adapters(asked: str) -> None:
    found = prove_plan(
        trained(small_kimi(), asked), job_of(), parse_plan(two_stages(TOWER[0], TEXT[1]))
    )
    assert found.equal, (found.loss_difference, found.worst)


def test_a_merging_tower_and_its_text_in_one_stage_train_alike() -> None:
    text = (
        "plan merged devices 2\nzero all: all/all/all gather=use reduce=microbatch\nlane main"
        " samples 8 in 2\n  stages vision_embed+vision:2+projector+embed+2+head on 0\n    all ="
        f" s2\n    {GATHER}\n    recompute 0-: full\norder gpipe(main)\n"
    )
    assert_same(small_kimi(), job_of(image=16), text)


def test_a_cut_through_a_token_is_refused_by_name() -> None:
    """Thirty-six patches in two are eighteen, four tokens and a half."""
    text = two_stages(f"all = s2\n    {RING}", TEXT[0])
    with pytest.raises(
        StrategyError,
        match=r"up makes one token of 4 patches, of which a device has only some: 0 to 17 of 36",
    ) as caught:
        assert_same(small_kimi(), job_of(), text)
    assert caught.value.rule == "execute.neighbours"
    # The same tower whose projector has whole images.
    assert_same(small_kimi(), job_of(), two_stages(f"all = s2\n    {RING}\n    mlp = x2", TEXT[0]))


def test_images_without_rows_and_columns_are_refused_by_name() -> None:
    model = small_kimi()
    for patches, other in ((12, 16), (9, 16), (2, 4)):
        job = job_of(image=patches)
        with pytest.raises(
            StrategyError,
            match=f"an image of {patches} patches is no square of whole blocks of 2 x 2",
        ) as caught:
            prepare_step(model, job, single_device_plan(model, job))
        assert caught.value.rule == "execute.grid"
        assert f"of {other} patches" in str(caught.value.hint)


def joined_norm(model: Model) -> Model:
    """The model with a norm over the elements of all patches of a token, as of features of inner
    layers."""
    operators = projector_operators(
        ProjectorShape(inner=128, norm=128),
        width=32,
        hidden=model.hidden,
        source="vision_norm",
        merge=4,
    )
    blocks = tuple(
        replace(b, operators=(b.operators[0], *operators)) if b.name == "projector" else b
        for b in model.blocks
    )
    return replace(model, blocks=blocks)


@pytest.mark.parametrize("tower", cases(TOWER[:6], 1))
def test_a_norm_over_all_patches_of_a_token(tower: str) -> None:
    model = joined_norm(small_kimi())
    found = prove_plan(
        model,
        job_of(image=64 if "s2" in tower else PATCHES),
        parse_plan(two_stages(tower, TEXT[1])),
    )
    assert found.equal, (found.loss_difference, found.worst)
    with pytest.raises(StrategyError) as caught:
        prove_plan(model, job_of(), parse_plan(two_stages(TOWER[6], TEXT[1])))
    assert caught.value.rule == "execute.width"


def folded_norm(model: Model) -> Model:
    """The model with a norm of merged tokens, between the two products."""
    block = next(b for b in model.blocks if b.name == "projector")
    width, gain = Extent(dim=Dim.HIDDEN, size=32), Extent(dim=Dim.HIDDEN, size=128)
    between = Operator(
        name="between",
        kind=OperatorKind.NORM,
        klass=OperatorClass.STREAM,
        inputs=("first",),
        reads=(width,),
        writes=(width,),
        parameters=(Parameter(name="between.weight", extents=(gain,)),),
        keeps=("first",),
        folds=4,
    )
    first = projector_operators(
        ProjectorShape(inner=128), width=32, hidden=128, source="vision_norm", merge=4
    )
    last = projector_operators(
        ProjectorShape(inner=128),
        width=32,
        hidden=model.hidden,
        source="between",
        merge=4,
        prefix="last.",
    )
    made = (
        *first[:-1],
        replace(first[-1], name="first"),
        between,
        replace(last[0], joins=1),
        *last[1:],
    )
    blocks = tuple(
        replace(b, operators=(block.operators[0], *made)) if b.name == "projector" else b
        for b in model.blocks
    )
    return replace(model, blocks=blocks)


@pytest.mark.parametrize("tower", cases(TOWER[:6], 1))
def test_a_norm_of_merged_tokens(tower: str) -> None:
    model = folded_norm(small_kimi())
    found = prove_plan(
        model,
        job_of(image=64 if "s2" in tower else PATCHES),
        parse_plan(two_stages(tower, TEXT[1])),
    )
    assert found.equal, (found.loss_difference, found.worst)


@pytest.mark.parametrize("tower", cases(TOWER[:6], 1))
def test_a_text_as_wide_as_no_multiple_of_the_patches_of_a_token(tower: str) -> None:
    model = small_kimi(hidden=66)
    assert next(b for b in model.blocks if b.name == "projector").output_width == 17
    found = prove_plan(
        model,
        job_of(image=64 if "s2" in tower else PATCHES),
        parse_plan(two_stages(tower, TEXT[1])),
    )
    assert found.equal, (found.loss_difference, found.worst)


def test_operators_of_a_projector_say_what_they_join_and_what_lies_over_patches() -> None:
    block = next(b for b in joined_norm(small_kimi()).blocks if b.name == "projector")
    assert [(o.name, o.joins, o.folds) for o in block.operators] == [
        ("vision_norm", 1, 1),
        ("norm", 4, 1),
        ("up", 4, 4),
        ("act", 1, 1),
        ("down", 1, 4),
    ]
    assert block.output_width == 64 // 4
