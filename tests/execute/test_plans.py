"""Plans on virtual devices: loss and every gradient equal the unsplit model's, which equal
torch.autograd over the whole graph."""

from itertools import product

import pytest
from hypothesis import HealthCheck, Phase, assume, given, reject

torch = pytest.importorskip("torch")

from shardwright.errors import StrategyError
from shardwright.execute.proof.fewer_layers_and_microbatches import num_operators
from shardwright.execute.proof.proof_result import PlanProof
from shardwright.execute.proof.prove_plan import prove_plan
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.prepare_work_shared_by_devices import prepare_step
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.short_plans import short, short_zoo_plan
from tests.strategy.plans import Case, plans
from tests.strategy.zoo_plans import ZooPlan, zoo, zoo_plan
from tests.tiers import chosen, examples, in_both, in_proof, many

ALWAYS = (
    "12-chimera",  # two lanes in opposite directions
    "14-survey3",  # not Cartesian: three devices
    "28-zero3",
    "32-full-n",  # recompute of some layers
    "42-zb-h1",
    "45-v-min",
    "48-hanayo",
    "49-survey-heads-hidden",
    "51-weighted-widths",
    "52-hidden",
    "57-encoder-decoder",
    "58-encoder-beside-decoder",
    "59-vision",
    "61-moe-mtp",
    "63-weighted-ring",
    "64-uneven-slices",
    "66-early-recompute",
    "67-overlapped-pairs",
    "68-vocabulary-in-stage",
    "70-spread-small",
    "71-lanes-of-trees",
)
"""One plan of every form that no other test of this folder proves; all of them, and none shorter
than it is, are proofs."""
ILLEGAL = "grad.overlap"
"""The rule that generated plans may break: uses of a parameter on unlike copies, which only
lowering tells (see docs/execution.md)."""
MOST_ILLEGAL = 0.25
"""Share of generated plans that may be so; 17.5 % are, and of 400 the bound is four deviations from
that."""
MANY = (200, 2000)
LARGEST = many(600, 10**9)
"""Operators of a generated plan that is executed, one way: time grows with them."""
SIZES_ALONE = ("qwen3.5-27b",)
"""Models of whose towers only the sizes are known."""


def small(plan: ZooPlan) -> bool:
    return (
        plan.trains and plan.plan.devices <= 8 and sum(run.count for run in plan.model.runs) <= 20
    )


def proof_of(plan: ZooPlan) -> PlanProof:
    return prove_plan(plan.model, plan.job, plan.plan)


def assert_equal(proof: PlanProof) -> None:
    assert proof.equal, f"loss {proof.loss_difference:+.1e}, {proof.worst[0]} {proof.worst[1]:.1e}"


@pytest.mark.parametrize("name", ALWAYS)
def test_plan_of_the_zoo_trains_like_the_unsplit_model(name: str) -> None:
    assert_equal(prove_plan(*short_zoo_plan(name)))


@pytest.mark.proof
@pytest.mark.parametrize("name", [z.name for z in zoo() if small(z)])
def test_every_small_plan_of_the_zoo_trains_like_the_unsplit_model(name: str) -> None:
    assert_equal(proof_of(zoo_plan(name)))


@pytest.mark.xfail(
    strict=True, reason="plans of more than 8 devices or 20 layers take one process minutes to days"
)
def test_all_plans_of_the_zoo_are_executed() -> None:
    assert not [z.name for z in zoo() if z.trains and not small(z)]


@pytest.mark.parametrize("name", SIZES_ALONE)
def test_towers_of_known_sizes_alone_are_refused_by_name(name: str) -> None:
    model = load_model(name)
    sequences = tuple(SequenceLength(name=one, tokens=8) for one in ("text", "image"))
    job = TrainingJob(sequences=sequences, global_batch=1)
    with pytest.raises(
        StrategyError, match=r"vision_embed\.patch reads features of image"
    ) as error:
        prepare_step(model, job, single_device_plan(model, job))
    assert error.value.rule == "execute.operator"


RING, GATHER = "core = s2 via ring", "core = s2 via gather"
LANGUAGE = (
    "all = t2\n    stream = s2",
    f"all = s2\n    {RING}",
    "all = b2",
    "all = b2 s2z\n    core = b2 s2z via gather",
    "all = t2",
    "all = t2 s2\n    stream = s4\n    core = t2 s2 via ring",
    "all = t2\n    stream = d2",
)
TOWER = (
    "all = b2",
    "all = t2\n    stream = s2",
    f"all = s2\n    {RING}",
    f"all = s2\n    {GATHER}",
    "all = b2 s2\n    core = b2 s2 via ring",
    "all = s3\n    core = s3 via gather",
    "all = t4",
)


@in_both
@pytest.mark.parametrize(
    ("tower", "language"),
    list(
        product(TOWER, LANGUAGE)
        if in_proof()
        else [(TOWER[number], LANGUAGE[number]) for number in (3, 6)]
    ),
)
def test_image_tokens_come_from_any_cut_of_a_tower_to_any_cut_of_a_text(
    tower: str, language: str
) -> None:
    zoo_one = zoo_plan("59-vision")
    text = (
        "plan vision devices 8\nlane main samples 8 in 2\n"
        f"  stages vision_embed+vision:4+projector on 0\n    {tower}\n"
        f"  stages embed+layers:6+head on 4\n    {language}\norder 1f1b(main)\n"
    )
    assert_equal(prove_plan(zoo_one.model, zoo_one.job, parse_plan(text)))


@pytest.mark.parametrize("split", [f"s2\n    {GATHER}", "t2"])
def test_a_tower_and_its_text_in_one_stage_train_alike(split: str) -> None:
    one = zoo_plan("59-vision")
    items = "vision_embed+vision:4+projector+embed+layers:6+head"
    text = (
        "plan vision devices 2\nzero all: all/all/all gather=use reduce=microbatch\nlane main"
        f" samples 8 in 2\n  stages {items} on 0\n    all = {split}\n    recompute 0-: full\norder"
        " gpipe(main)\n"
    )
    assert_equal(prove_plan(one.model, one.job, parse_plan(text)))


@pytest.mark.parametrize(
    "asked",
    chosen(
        ["frozen:vision_embed,vision", "frozen:vision_embed,vision,projector", "lora:r4:attn,mlp"],
        ["lora:r4:attn,mlp"],
    ),
)
def test_a_tower_may_be_frozen_or_have_adapters(asked: str) -> None:
    one = zoo_plan("59-vision")
    assert_equal(prove_plan(trained(one.model, asked), one.job, one.plan))


@examples(25, 1000, suppress_health_check=list(HealthCheck))
@given(plans())
def test_generated_plan_trains_like_the_unsplit_model(case: Case) -> None:
    sequences = tuple(
        SequenceLength(name=name, tokens=case.seq_len) for name in ("text", "encoder")
    )
    question = short(
        (case.model, TrainingJob(sequences=sequences, global_batch=case.global_batch), case.plan)
    )
    assume(num_operators(question) <= LARGEST)
    try:
        found = prove_plan(*question)
    except StrategyError as error:
        if error.rule != ILLEGAL:
            raise
        reject()
    assert_equal(found)


@pytest.mark.proof
def test_generated_plans_are_refused_only_where_gradients_overlap() -> None:
    refused: list[str] = []

    @examples(*MANY, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(plans())
    def prepared(case: Case) -> None:
        sequences = tuple(
            SequenceLength(name=name, tokens=case.seq_len) for name in ("text", "encoder")
        )
        try:
            prepare_step(
                case.model,
                TrainingJob(sequences=sequences, global_batch=case.global_batch),
                case.plan,
            )
            refused.append("")
        except StrategyError as error:
            refused.append(error.rule)

    prepared()
    assert set(refused) <= {"", ILLEGAL}
    assert refused.count(ILLEGAL) <= MOST_ILLEGAL * len(refused)
