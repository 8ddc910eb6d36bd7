"""Biases of routers' choices that a step moves towards equal loads: by hand, the same under every
plan, kept with checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DataError, StrategyError
from shardwright.execute.checkpoints.read_checkpoint import read_checkpoint
from shardwright.execute.checkpoints.resume_device_state import resume_device
from shardwright.execute.device_state.stored_parameter_parts import Key, seeded
from shardwright.execute.numerics.base.run_precision import RunPrecision, uniform_precision
from shardwright.execute.numerics.base.top_k_experts import chosen_experts
from shardwright.execute.numerics.experts import (
    routing_permutation_and_expert_linear as expert_layer,
)
from shardwright.execute.proof.prove_plan import random_batch
from shardwright.execute.training import router_bias_updates
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.device_training_state import (
    DeviceState,
    PreparedTraining,
    create_device_state,
    prepare_training,
)
from shardwright.execute.training.router_bias_updates import updated_bias
from shardwright.execute.weights.checkpoint_to_hugging_face_weights import write_checkpoint_weights
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.find_routers_with_balancing_loss_or_biases import selection_biases
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.published_families import ALL
from tests.execute.saved import save
from tests.execute.test_load_balancing import PLANS
from tests.execute.trained import train
from tests.tiers import chosen, examples, many

LENGTH = 8
RATE = 0.05
JOB = TrainingJob(sequences=(SequenceLength(name="text", tokens=LENGTH),), global_batch=8)
DEEPSEEK = next(
    config for config in ALL.values() if config["architectures"] == ["DeepseekV3ForCausalLM"]
)


@cache
def small(layers: int = 4, predictors: int = 0) -> Model:
    """A DeepSeek-V3 of which every layer has experts."""
    config = {
        **DEEPSEEK,
        "num_hidden_layers": layers,
        "first_k_dense_replace": 0,
        "num_nextn_predict_layers": predictors,
    }
    return model_from_config(config, name="small")


def begun(
    model: Model, plan: Plan, *, rate: float | None = RATE, precision: RunPrecision | None = None
) -> tuple[PreparedTraining, dict[int, DeviceState]]:
    known = prepare_training(
        model, JOB, plan, rule=AdamW(rate=1e-2), bias_rate=rate, precision=precision
    )
    return known, {
        d: create_device_state(d, known, source=seeded(model, seed=1)) for d in known.devices
    }


def biases(members: Mapping[int, DeviceState], known: PreparedTraining) -> dict[Key, Any]:
    """By key, which all holders have alike."""
    found: dict[Key, Any] = {}
    for key in known.biases:
        held = [
            one.value
            for d in known.bias_holders(key)
            for one in members[d].store.held[key].values()
        ]
        assert all(torch.equal(held[0], other) for other in held)
        found[key] = held[0]
    return found


@examples(100)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.floats(0.0, 1.0))
def test_a_step_moves_each_bias_towards_the_mean_load(loads: list[int], rate: float) -> None:
    bias = torch.arange(len(loads), dtype=torch.float64)
    found = updated_bias(bias, torch.tensor(loads, dtype=torch.float64), rate=rate)
    mean = sum(loads) / len(loads)
    for number, load in enumerate(loads):
        moved = (
            rate
            if load * len(loads) < sum(loads)
            else -rate
            if load * len(loads) > sum(loads)
            else 0.0
        )
        assert float(found[number]) == number + moved
        assert (load < mean) <= (float(found[number]) >= number)


def test_an_update_by_hand() -> None:
    """The worked one of its docstring."""
    found = updated_bias(
        torch.zeros(4), torch.tensor([5.0, 1.0, 3.0, 3.0], dtype=torch.float64), rate=0.1
    )
    assert found.tolist() == pytest.approx([-0.1, 0.1, 0.0, 0.0])


def test_loads_are_of_the_choice_of_the_whole_step() -> None:
    """Of every microbatch's forward pass, counted by hand. The four calls behind those are of
    backward."""
    model = small(1)
    (key,) = selection_biases(model)
    known, members = begun(model, single_device_plan(model, JOB, microbatches=4))
    before = biases(members, known)[key].clone()
    seen: list[Any] = []

    def watched(*given: Any, **named: Any) -> Any:
        shares, chosen = chosen_experts(*given, **named)
        seen.append(chosen)
        return shares, chosen

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(expert_layer, "chosen_experts", watched)
        train(members, known, [random_batch(model, JOB, seed=0)])
    loads = torch.bincount(torch.cat([one.flatten() for one in seen[:4]]), minlength=len(before))
    topk = seen[0].shape[-1]
    assert int(loads.sum()) == 8 * LENGTH * topk
    signs = [
        (-1) ** (int(load) * len(before) > int(loads.sum()))
        * (int(load) * len(before) != int(loads.sum()))
        for load in loads
    ]
    assert biases(members, known)[key].tolist() == pytest.approx(
        [float(b) + RATE * s for b, s in zip(before, signs, strict=True)]
    )


QUICK = ("ep and tp", "two lanes", "pp, recomputed", "slices, one of a token")
"""Plans that `make test` tries: of each way to divide the tokens of a step. Another test resumes
under ZeRO-3."""
STEPS = many(2, 3)


@cache
def unsplit(layers: int) -> tuple[list[float], dict[Key, Any], dict[Key, Any]]:
    """Of the unsplit model: losses of its steps, its biases before and after."""
    model = small(layers)
    known, members = begun(model, single_device_plan(model, JOB))
    before = biases(members, known)
    reports = train(members, known, [random_batch(model, JOB, seed=seed) for seed in range(STEPS)])
    return [one.loss for one in reports], before, biases(members, known)


@pytest.mark.parametrize("name", chosen(PLANS, QUICK))
def test_a_plan_moves_biases_as_the_unsplit_model(name: str) -> None:
    """Two steps or more: to the last bit of every bias, and with the same losses. One router's
    choice depends on the biases before it."""
    plan, layers = parse_plan(PLANS[name]), 2 if "embed+2+head" in PLANS[name] else 4
    model = small(layers)
    known, members = begun(model, plan)
    reports = train(members, known, [random_batch(model, JOB, seed=seed) for seed in range(STEPS)])
    losses, before, wanted = unsplit(layers)
    assert [one.loss for one in reports] == pytest.approx(losses, abs=1e-9)
    found = biases(members, known)
    assert set(found) == set(wanted)
    for key, bias in found.items():
        assert torch.equal(bias, wanted[key]), key
        assert not torch.equal(bias, before[key])


def test_biases_change_the_loss_and_nothing_else_does() -> None:
    """At a rate of 0, and without, losses are those of frozen biases."""
    model = small(2)
    batches = [random_batch(model, JOB, seed=seed) for seed in range(3)]
    losses = {}
    for rate in (None, 0.0, 0.5):
        known, members = begun(model, single_device_plan(model, JOB), rate=rate)
        losses[rate] = [one.loss for one in train(members, known, batches)]
    assert losses[None] == losses[0.0]
    assert losses[None][0] == losses[0.5][0]
    assert losses[None][1] != losses[0.5][1]


def test_biases_of_prediction_modules_move() -> None:
    model = small(1, predictors=1)
    known, members = begun(model, single_device_plan(model, JOB))
    assert len(known.biases) == 2
    before = biases(members, known)
    train(members, known, [random_batch(model, JOB, seed=0)])
    assert all(not torch.equal(bias, before[key]) for key, bias in biases(members, known).items())


def test_small_moves_are_not_lost_where_parameters_have_sixteen_bits() -> None:
    """2 ** -12 beside 1 is nothing in bf16; biases are kept in float32, as Transformers keeps
    them."""
    model, rate = small(1), 2.0**-12
    known, members = begun(
        model,
        single_device_plan(model, JOB),
        rate=rate,
        precision=uniform_precision(torch.bfloat16),
    )
    (before,) = biases(members, known).values()
    assert before.dtype is torch.float32
    train(members, known, [random_batch(model, JOB, seed=0)])
    (moved,) = biases(members, known).values()
    assert set((moved - before).abs().tolist()) <= {0.0, rate}
    assert not torch.equal(moved, before)


def test_equal_loads_come_of_it() -> None:
    """The busiest expert's share of the tokens falls towards the mean."""
    model = small(1)
    batch = random_batch(model, JOB, seed=0)

    def worst(rate: float) -> float:
        known, members = begun(model, single_device_plan(model, JOB), rate=rate)
        known = replace(known, rule=AdamW(rate=0.0))
        loads: list[Any] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                router_bias_updates,
                "updated_bias",
                lambda bias, load, rate: loads.append(load) or updated_bias(bias, load, rate=rate),
            )
            train(members, known, [batch] * 12)
        return float(min(load.max() / load.mean() for load in loads[6:]))

    assert worst(0.05) < worst(1e-9) - 0.1


@pytest.mark.parametrize(
    "later",
    ["zero-3", *(pytest.param(name, marks=pytest.mark.proof) for name in ("dp", "pp", "slices"))],
)
def test_a_checkpoint_has_the_biases_under_any_plan(tmp_path: Path, later: str) -> None:
    """Saved by one plan and gone on under another, as if it had not been interrupted."""
    model = small(2 if "embed+2+head" in PLANS[later] else 4)
    batches = [random_batch(model, JOB, seed=seed) for seed in range(4)]
    alone, whole = begun(model, single_device_plan(model, JOB))
    wanted = train(whole, alone, batches)
    known, members = begun(
        model, parse_plan(PLANS["ep"]) if later == "dp" else single_device_plan(model, JOB)
    )
    train(members, known, batches[:2])
    folder = save(members, known, tmp_path)
    found = read_checkpoint(folder, model=model)
    moved = biases(members, known)
    assert all(torch.equal(found.whole(key), bias) for key, bias in moved.items())
    known = prepare_training(
        model, JOB, parse_plan(PLANS[later]), rule=AdamW(rate=1e-2), bias_rate=RATE
    )
    again = {d: resume_device(d, known, found, source=seeded(model, seed=1)) for d in known.devices}
    assert all(torch.equal(bias, moved[key]) for key, bias in biases(again, known).items())
    assert [one.loss for one in train(again, known, batches[2:])] == pytest.approx(
        [one.loss for one in wanted[2:]], abs=1e-9
    )
    assert all(
        torch.equal(bias, biases(whole, alone)[key]) for key, bias in biases(again, known).items()
    )


def test_moved_biases_are_written_as_transformers_keeps_them(tmp_path: Path) -> None:
    """In float32 beside weights in bf16, and so they are read by its class; nothing of the folder
    that the run began with is needed."""
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    pytest.importorskip("safetensors")
    model = small(1)
    known, members = begun(
        model,
        single_device_plan(model, JOB),
        rate=2.0**-12,
        precision=uniform_precision(torch.bfloat16),
    )
    train(members, known, [random_batch(model, JOB, seed=0)])
    config = {
        **DEEPSEEK,
        "num_hidden_layers": 1,
        "first_k_dense_replace": 0,
        "num_nextn_predict_layers": 0,
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "deepseek_v3"}))
    checkpoint = save(members, known, tmp_path)
    write_checkpoint_weights(
        checkpoint,
        model=model,
        config=tmp_path / "config.json",
        folder=tmp_path / "out",
        dtype="",
        base=None,
    )
    published = transformers.DeepseekV3ForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.bfloat16
    )
    (bias,) = biases(members, known).values()
    gate = published.model.layers[0].mlp.gate
    assert (gate.weight.dtype, gate.e_score_correction_bias.dtype) == (torch.float32, torch.float32)
    assert torch.equal(gate.e_score_correction_bias, bias)
    assert published.lm_head.weight.dtype is torch.bfloat16


def test_a_run_that_keeps_no_biases_does_not_go_on_from_moved_ones(tmp_path: Path) -> None:
    model = small(1)
    known, members = begun(model, single_device_plan(model, JOB))
    train(members, known, [random_batch(model, JOB, seed=0)])
    found = read_checkpoint(save(members, known, tmp_path), model=model)
    frozen = prepare_training(model, JOB, single_device_plan(model, JOB))
    with pytest.raises(DataError, match="has biases of routers that its run moved") as refused:
        resume_device(0, frozen, found, source=seeded(model, seed=1))
    assert "--router-bias-update" in refused.value.hint
    kept, _ = begun(model, single_device_plan(model, JOB), rate=0.0)
    again = {0: resume_device(0, kept, found, source=seeded(model, seed=1))}
    train(again, kept, [random_batch(model, JOB, seed=1)])
    assert all(
        torch.equal(bias, biases(members, known)[key]) for key, bias in biases(again, kept).items()
    )


def test_a_run_that_begins_to_move_them_takes_those_of_before(tmp_path: Path) -> None:
    model = small(1)
    known, members = begun(model, single_device_plan(model, JOB), rate=None)
    train(members, known, [random_batch(model, JOB, seed=0)])
    found = read_checkpoint(save(members, known, tmp_path), model=model)
    known, others = begun(model, single_device_plan(model, JOB))
    again = {0: resume_device(0, known, found, source=seeded(model, seed=1))}
    assert all(
        torch.equal(bias, biases(others, known)[key]) for key, bias in biases(again, known).items()
    )


def test_a_model_without_such_biases_is_refused() -> None:
    mixtral = model_from_config(
        next(c for c in ALL.values() if c["architectures"] == ["MixtralForCausalLM"]), name="small"
    )
    dense = model_from_config(
        next(c for c in ALL.values() if c["architectures"] == ["LlamaForCausalLM"]), name="small"
    )
    for model, hint in ((mixtral, "--load-balancing"), (dense, "without --router-bias-update")):
        with pytest.raises(
            StrategyError, match="no router of small has a bias of its choice"
        ) as refused:
            prepare_training(model, JOB, single_device_plan(model, JOB), bias_rate=RATE)
        assert (refused.value.rule, hint in refused.value.hint) == ("execute.bias", True)
