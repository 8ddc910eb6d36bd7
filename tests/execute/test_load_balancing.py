"""The load-balancing loss of experts: Transformers' on one device, the same under every plan with
the same microbatches."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.proof.model_with_divided_widths import narrower_model
from shardwright.execute.proof.prove_plan import prove_plan, random_batch
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    StepResult,
    run_step,
    single_device_plan,
    step_differences,
)
from shardwright.execute.training.device_training_state import create_device_state, prepare_training
from shardwright.execute.training.evaluation import evaluation_task
from shardwright.execute.transport.in_process_transport import run_in_process
from shardwright.execute.weights.read_weights import open_weights
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.blocks.multi_token_prediction import without_predictors
from shardwright.model.families.fields.router_loss_and_noise_fields import BALANCED, NOISY
from shardwright.model.families.huggingface_config import load_config, model_from_config
from shardwright.model.find_routers_with_balancing_loss_or_biases import balanced_routers
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.published_configs import batch_of, in_double, made, sequences_of
from tests.execute.published_families import ALL
from tests.execute.published_gradients import gradient_differences, published_loss
from tests.execute.small_plans import FOUND
from tests.execute.trained import train
from tests.strategy.zoo_models import sparse
from tests.tiers import cases, chosen, in_proof

COEFFICIENT = 0.7
LENGTH = 8
MIXTRAL = next(
    config for config in ALL.values() if config["architectures"] == ["MixtralForCausalLM"]
)
TRIED = {
    config["architectures"][0]: config
    for config in reversed(ALL.values())
    if "expert" in str(config)
}


def balanced(config: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The configuration with the loss, in the section of its language model."""
    own = {"output_router_logits": True, "router_aux_loss_coef": COEFFICIENT, **fields}
    if "text_config" in config:
        return {**config, "text_config": {**config["text_config"], **own}}
    return {**config, **own}


@pytest.mark.parametrize("architecture", cases(sorted(TRIED), 6))
def test_loss_and_gradients_are_those_of_transformers(tmp_path: Path, architecture: str) -> None:
    """Of every class with experts: those that add the loss, and those that do not."""
    published = made(balanced(TRIED[architecture])).train()
    published.save_pretrained(tmp_path / "weights")
    ids = torch.randint(0, 19, (2, LENGTH + 1), generator=torch.Generator().manual_seed(3))
    model = load_config(tmp_path / "weights" / "config.json")
    assert model.settings.load_balancing == (COEFFICIENT if model.architecture in BALANCED else 0.0)
    batch = batch_of(published, ids)
    with in_double(architecture):
        wanted = published_loss(published, batch)
        wanted.backward()
    job = TrainingJob(sequences=sequences_of(model, tokens=LENGTH), global_batch=2)
    weights = open_weights(tmp_path / "weights", model=model, dtype=torch.float64)
    result = run_step(model, job, single_device_plan(model, job), batch=batch, source=weights)
    assert float(result.loss) == pytest.approx(float(wanted.detach()), abs=1e-6)
    for key, difference, largest in gradient_differences(
        published, model, result, folder=tmp_path / "gradients"
    ):
        assert difference <= 1e-6 * (1 + largest), key


def test_every_class_with_the_loss_is_known() -> None:
    """Classes of Transformers that call the function of the loss are those of the table, with their
    coefficients."""
    import inspect

    from tests.execute.test_padding_classes import published_names

    for architecture, name in published_names().items():
        published = getattr(transformers, name)
        source = inspect.getsource(inspect.getmodule(published))
        config = published.config_class().get_text_config()
        adds = "load_balancing_loss_func(" in source and "router_aux_loss_coef" in source
        assert adds is (architecture in BALANCED), architecture
        if adds:
            assert BALANCED[architecture] == config.router_aux_loss_coef
        assert ("self.jitter_noise > 0" in source) is (architecture in NOISY), architecture


@lru_cache(maxsize=8)
def small(layers: int = 2, coefficient: float = COEFFICIENT) -> Model:
    config = {**MIXTRAL, "num_hidden_layers": layers, "num_local_experts": 4}
    return model_from_config(balanced(config, router_aux_loss_coef=coefficient), name="small")


@lru_cache(maxsize=2)
def plain(layers: int) -> Model:
    """The same without the loss."""
    model = small(layers)
    return replace(model, settings=replace(model.settings, load_balancing=0.0))


HEAD = "plan small devices 4\n"
ONE = (
    HEAD
    + "{zero}lane main samples 8 in {microbatches}\n  stages embed+{layers}+head on 0\n{split}order"
    " gpipe(main)\n"
)


def one(split: str, *, microbatches: int = 2, layers: int = 2, zero: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in split.split("; "))
    return ONE.format(split=lines, microbatches=microbatches, layers=layers, zero=zero)


def piped(
    order: str,
    stages: str,
    *,
    split: str = "all = .",
    devices: int = 4,
    microbatches: int = 4,
    slices: str = "",
) -> str:
    lines = "".join(f"    {line}\n" for line in split.split("; "))
    return (
        f"plan small devices {devices}\nlane main samples 8 in {microbatches}{slices}\n  stages"
        f" {stages}\n{lines}order {order}(main)\n"
    )


FOUR = "embed+1, 1*2, 1+head on 0..3"
PLANS = {
    "dp": one("all = b4"),
    "dp, many microbatches": one("all = b2", microbatches=4),
    "tp": one("all = t4"),
    "tp and sequence": one("all = t4; stream = s4; router = s4"),
    "cp": one("all = s4; core = h4"),
    "ep": one("all = b4; experts = e4"),
    "ep and tp": one("all = b2 t2; stream = b2 s2; router = b2 s2; experts = b2 e2"),
    "zero-3": one("all = b4", zero="zero all: all/all/all gather=use reduce=microbatch\n"),
    "pp": piped("1f1b", FOUR),
    "pp, recomputed": piped("1f1b", FOUR, split="all = .; recompute 0-: full"),
    "pp, halves of backward": piped("zb-h1", FOUR),
    "pp, interleaved": piped(
        "interleaved-1f1b", "embed+1, 1*2, 1+head on (0, 2)*2", split="all = b2; experts = e2"
    ),
    "pp, v": piped("zb-v", "embed+1, 1*2, 1+head on 0..1, 1..0", devices=2),
    "a found order": "plan small devices 4\n" + FOUND,
    "two lanes": (
        "plan small devices 4\nlane down samples 4 in 4\n  stages embed+1, 1*2, 1+head on 0..3\n   "
        " all = .\nlane up samples 4 in 4\n  stages embed+1, 1*2, 1+head on 3..0\n    all ="
        " .\norder chimera(down, up)\n"
    ),
    "pp and dp and ep": piped("1f1b", "embed+2, 2+head on 0, 2", split="all = b2; experts = e2"),
    "slices": piped(
        "terapipe",
        "embed+2, 2+head on 0, 2",
        split="all = s2z via ring",
        microbatches=2,
        slices=" slices 2:1",
    ),
    "slices, one of a token": piped(
        "terapipe",
        "embed+2, 2+head on 0, 2",
        split="all = t2; stream = s2; router = s2",
        microbatches=2,
        slices=" slices 7:1",
    ),
    "routers in the first stage alone": piped("1f1b", "embed+4, head on 0, 2", split="all = b2"),
}


JOB = TrainingJob(sequences=(SequenceLength(name="text", tokens=LENGTH),), global_batch=8)


def step(model: Model, plan: Plan) -> StepResult:
    return run_step(
        model, JOB, plan, batch=random_batch(model, JOB, seed=0), source=seeded(model, seed=1)
    )


@lru_cache(maxsize=8)
def unsplit_step(model: Model, microbatches: int) -> StepResult:
    return step(model, single_device_plan(model, JOB, microbatches=microbatches))


def steps(model: Model, plan: Plan) -> tuple[StepResult, StepResult]:
    """Of the plan, and of the unsplit model with its microbatches."""
    return step(model, plan), unsplit_step(model, sum(lane.microbatches for lane in plan.lanes))


QUICK = (
    "cp",
    "ep and tp",
    "pp, recomputed",
    "pp, halves of backward",
    "two lanes",
    "slices, one of a token",
    "routers in the first stage alone",
)
"""Plans that `make test` tries: of each way to divide the tokens of a step, and orders that
run layers otherwise than once forward and once backward, or in two lanes."""


@pytest.mark.parametrize("name", chosen(PLANS, QUICK))
def test_a_plan_has_the_loss_of_the_unsplit_model_with_its_microbatches(name: str) -> None:
    plan = parse_plan(PLANS[name])
    layers = 2 if "embed+2+head" in PLANS[name] else 4
    model = small(layers)
    parts, whole = steps(model, plan)
    assert float(parts.loss) == pytest.approx(float(whole.loss), abs=1e-12)
    assert max(difference for *_, difference in step_differences(parts, whole)) < 1e-10
    microbatches = sum(lane.microbatches for lane in plan.lanes)
    without = step(plain(layers), plan) if in_proof() else unsplit_step(plain(layers), microbatches)
    assert float(parts.loss) > float(without.loss) + COEFFICIENT
    # The loss of one microbatch is another one: it is no sum over tokens.
    if sum(lane.microbatches for lane in plan.lanes) > 1:
        assert abs(float(unsplit_step(model, 1).loss) - float(parts.loss)) > 1e-4


@pytest.mark.parametrize("before", ["router", "route", "permute"])
def test_a_cut_inside_a_layer_leaves_the_loss(before: str) -> None:
    """The choice of experts, and what it chooses of, on devices of another stage."""
    model = small(1)
    (run,) = (run for run in model.runs if run.name.startswith("layer"))
    names = [f"{run.name}.{o.name}" for o in model.blocks[run.block].operators]
    place = names.index(f"{run.name}.{before}")
    stages = f"embed+{'+'.join(names[:place])}, {'+'.join(names[place:])}+head on 0, 2"
    parts, whole = steps(model, parse_plan(piped("1f1b", stages, split="all = b2")))
    assert float(parts.loss) == pytest.approx(float(whole.loss), abs=1e-12)
    assert max(difference for *_, difference in step_differences(parts, whole)) < 1e-10


def test_prediction_modules_are_not_balanced() -> None:
    """Of a model with one, the loss is that of the same layers without."""
    model = narrower_model(sparse(dense_layers=1, layers=1, predictors=1))
    chosen = replace(model, settings=replace(model.settings, load_balancing=COEFFICIENT))
    ((found,),) = {
        tuple(o.name for b in model.blocks for o in balanced_routers(b)) for model in (chosen,)
    }
    assert found == "route"
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=LENGTH),), global_batch=8)
    batch, source = random_batch(model, job, seed=0), seeded(model, seed=1)
    added = [
        float(run_step(one, job, single_device_plan(one, job), batch=batch, source=source).loss)
        for one in (chosen, model)
    ]
    without = without_predictors(model)
    balanced_without = replace(without, settings=chosen.settings)
    alone = [
        float(run_step(one, job, single_device_plan(one, job), batch=batch, source=source).loss)
        for one in (balanced_without, without)
    ]
    assert added[0] - added[1] == pytest.approx(alone[0] - alone[1], abs=1e-12)
    assert added[0] - added[1] > COEFFICIENT


def test_microbatches_have_the_mean_of_their_own_losses() -> None:
    """Gradient accumulation: each microbatch by itself, weighed by its samples."""
    model = small()
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=LENGTH),), global_batch=8)
    batch, source = random_batch(model, job, seed=0), seeded(model, seed=1)
    batch["labels"] = batch["labels"].clamp(min=0)
    together = run_step(
        model, job, single_device_plan(model, job, microbatches=4), batch=batch, source=source
    ).loss
    fewer = replace(job, global_batch=2)
    alone = [
        run_step(
            model,
            fewer,
            single_device_plan(model, fewer),
            batch={name: x[i : i + 2] for name, x in batch.items()},
            source=source,
        ).loss
        for i in range(0, 8, 2)
    ]
    assert float(together) == pytest.approx(float(sum(alone)) / 4, abs=1e-12)


@pytest.mark.parametrize(
    "kind",
    chosen(
        ["frozen:router", "frozen:embed,attn,router,experts", "lora:r2:attn"],
        ["frozen:embed,attn,router,experts"],
    ),
)
def test_what_is_frozen_has_no_gradient_and_the_same_loss(kind: str) -> None:
    model = trained(small(4), kind)
    plan = parse_plan(PLANS["pp and dp and ep"])
    parts, whole = steps(model, plan)
    assert float(parts.loss) == pytest.approx(float(whole.loss), abs=1e-12)
    assert max(difference for *_, difference in step_differences(parts, whole)) < 1e-10


def test_five_steps_balance_the_experts() -> None:
    """Training by the loss makes it smaller; without it nothing balances them."""
    model = small(1, 20.0)
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=LENGTH),), global_batch=8)
    plan = parse_plan(
        one("all = t2; stream = s2; router = s2; experts = e2", layers=1).replace(
            "devices 4", "devices 2"
        )
    )
    batch = random_batch(model, job, seed=0)

    def last(chosen: Model) -> float:
        known = prepare_training(chosen, job, plan, rule=AdamW(rate=1e-2))
        members = {
            d: create_device_state(d, known, source=seeded(model, seed=1)) for d in known.devices
        }
        train(members, known, [batch] * 5)
        known = prepare_training(model, job, plan, rule=AdamW(rate=0.0))
        again = {d: replace_known(members[d]) for d in known.devices}
        return train(again, known, [batch])[0].loss

    without = replace(model, settings=replace(model.settings, load_balancing=0.0))
    assert last(model) < last(without) - 0.1


def replace_known(own: Any) -> Any:
    """The same device, whose routers are balanced."""
    own.store.settings = small(1, 20.0).settings
    return own


def test_a_proof_has_the_loss() -> None:
    model = small(4)
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=LENGTH),), global_batch=8)
    found = prove_plan(model, job, parse_plan(PLANS["pp and dp and ep"]))
    assert abs(found.loss_difference) < 1e-10
    unlike = (
        "plan small devices 2\nlane a samples 4 in 2\n  stages embed+4+head on 0\n    all = .\n"
    )
    unlike += (
        "lane b samples 4 in 4\n  stages embed+4+head on 1\n    all = .\norder gpipe(a)\norder"
        " gpipe(b)\n"
    )
    with pytest.raises(StrategyError, match="lanes have microbatches of 1 and 2 samples"):
        prove_plan(model, job, parse_plan(unlike))
    assert max(found.gradients.values()) < 1e-8


def test_what_is_not_learnt_has_the_loss_of_tokens_alone() -> None:
    model, plan = small(4), parse_plan(PLANS["pp and dp and ep"])
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=LENGTH),), global_batch=8)
    batch = random_batch(model, job, seed=0)
    known = prepare_training(model, job, plan)
    members = {
        d: create_device_state(d, known, source=seeded(model, seed=1)) for d in known.devices
    }
    found = run_in_process(
        {d: evaluation_task(own, known, batch=batch) for d, own in members.items()}
    )
    without = replace(model, settings=replace(model.settings, load_balancing=0.0))
    tokens = run_step(
        without, job, single_device_plan(without, job), batch=batch, source=seeded(model, seed=1)
    ).loss
    assert list(found.values()) == pytest.approx([float(tokens)] * 4, abs=1e-12)


def test_noise_on_routers_is_refused_unless_it_is_switched_off() -> None:
    model = model_from_config({**MIXTRAL, "router_jitter_noise": 0.1}, name="small")
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=LENGTH),), global_batch=8)
    with pytest.raises(StrategyError, match=r"router_jitter_noise 0\.1") as refused:
        prepare_training(model, job, single_device_plan(model, job))
    assert refused.value.rule == "execute.noise"
    prepare_training(
        model,
        job,
        single_device_plan(model, job),
        settings=replace(model.settings, router_noise=0.0),
    )
    assert abs(prove_plan(model, job, parse_plan(PLANS["ep and tp"])).loss_difference) < 1e-10


def test_a_model_without_routers_has_no_such_loss() -> None:
    model = model_from_config(
        next(c for c in ALL.values() if c["architectures"] == ["LlamaForCausalLM"]), name="small"
    )
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=LENGTH),), global_batch=8)
    with pytest.raises(
        StrategyError, match="mean over equal routers, and small has none"
    ) as refused:
        prepare_training(
            model,
            job,
            single_device_plan(model, job),
            settings=replace(model.settings, load_balancing=0.1),
        )
    assert refused.value.rule == "execute.balance"


def test_a_section_of_images_says_nothing_of_routers(tmp_path: Path) -> None:
    """``output_router_logits`` beside ``text_config`` is not read by the class."""
    config = TRIED["Qwen3VLMoeForConditionalGeneration"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "output_router_logits": True}))
    assert load_config(tmp_path / "config.json").settings.load_balancing == 0.0
    assert model_from_config(balanced(config), name="small").settings.load_balancing == COEFFICIENT
