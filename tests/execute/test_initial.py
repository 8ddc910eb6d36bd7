"""First values: the same under every plan, made by part, with the spread that is said."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.checkpoints import draw_initial_parameter_values as initial_values
from shardwright.execute.checkpoints.draw_initial_parameter_values import (
    InitialValues,
    residual_branches,
)
from shardwright.execute.device_state.stored_parameter_parts import box_slice, whole_shape
from shardwright.execute.training.device_training_state import create_device_state
from shardwright.execute.weights.parameter_slices_of_stored_tensors import stored_parameters
from shardwright.model.families.huggingface_config import model_from_config
from tests.execute.huggingface_layouts import LAYOUTS
from tests.execute.small_plans import PLANS
from tests.execute.trained import train


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_part_is_the_slice_of_the_whole(name: str) -> None:
    model = model_from_config(LAYOUTS[name], name=name)
    source = InitialValues(model=model, seed=3, dtype=torch.float64)
    for key, _ in stored_parameters(model):
        whole = source(key)
        assert tuple(whole.shape) == whole_shape(model, key)
        assert torch.isfinite(whole).all()
        box = tuple(((0, n // 4), (n // 2, n)) if n >= 4 else ((0, n),) for n in whole.shape)
        assert torch.equal(source.part(key, box), box_slice(whole, box))


def test_weights_are_normal_and_the_ends_of_branches_narrower() -> None:
    model = model_from_config(
        {**LAYOUTS["llama"], "hidden_size": 512, "intermediate_size": 512, "attention_bias": True},
        name="wide",
    )
    source = InitialValues(model=model, seed=5, dtype=torch.float64)
    assert residual_branches(model) == 4
    seen = {}
    for key, parameter in stored_parameters(model):
        if key[1] == 0:
            seen[parameter.name] = source(key).flatten()
    assert all((seen[name] == 1).all() for name in ("norm1.weight", "norm2.weight", "norm.weight"))
    assert (seen["qkv.bias"] == 0).all()
    for name, std in {
        "qkv.weight": 0.02,
        "up.weight": 0.02,
        "down.weight": 0.01,
        "proj.weight": 0.01,
        "embed.weight": 0.02,
    }.items():
        values = seen[name] / std
        count = len(values)
        # Six standard errors of mean, spread and fourth moment of a normal sample.
        assert abs(float(values.mean())) < 6 * count**-0.5
        assert abs(float(values.var()) - 1) < 6 * (2 / count) ** 0.5
        assert abs(float((values**4).mean()) - 3) < 6 * (96 / count) ** 0.5
    pairs = np.corrcoef([seen["up.weight"].numpy(), seen["up.weight.1"].numpy()])[0, 1]
    neighbours = np.corrcoef(seen["up.weight"][:-1].numpy(), seen["up.weight"][1:].numpy())[0, 1]
    assert max(abs(pairs), abs(neighbours)) < 6 * len(seen["up.weight"]) ** -0.5


def test_what_is_made_at_a_time_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_from_config(LAYOUTS["mixtral"], name="mixtral")
    source = InitialValues(model=model, seed=3, dtype=torch.float64)
    whole = {key: source(key) for key, _ in stored_parameters(model)}
    monkeypatch.setattr(initial_values, "AT_ONCE", 50)
    assert all(torch.equal(source(key), values) for key, values in whole.items())


def test_layers_and_seeds_differ() -> None:
    model = model_from_config(LAYOUTS["llama"], name="llama")
    keys = [key for key, parameter in stored_parameters(model) if parameter.name == "up.weight"]
    one, other = (InitialValues(model=model, seed=seed, dtype=torch.float64) for seed in (1, 2))
    assert len(keys) == 2
    assert not torch.isclose(one(keys[0]), one(keys[1])).any()
    assert not torch.isclose(one(keys[0]), other(keys[0])).any()


def test_state_spaces_begin_within_their_bounds() -> None:
    for name in ("mamba", "mamba2"):
        model = model_from_config(LAYOUTS[name], name=name)
        source = InitialValues(model=model, seed=1, dtype=torch.float64)
        found = {parameter.name: source(key) for key, parameter in stored_parameters(model)}
        steps = torch.nn.functional.softplus(
            found["scan.dt_bias" if name == "mamba2" else "dt_proj.bias"]
        )
        assert ((steps > 0.99e-3) & (steps < 0.101)).all()
        rates = found["scan.a_log"].exp()
        if name == "mamba":
            torch.testing.assert_close(
                rates,
                torch.arange(1.0, rates.shape[1] + 1, dtype=torch.float64).expand(rates.shape),
            )
        assert ((rates >= 1) & (rates <= 16)).all()
        assert (found["scan.d"] == 1).all()
        assert (found["conv.weight"].abs() <= 0.5).all()


def test_plans_begin_alike_and_learn() -> None:
    losses = []
    for name in ("tp2 then dp2", "hybrid zero-3"):
        small = PLANS[name]
        known = small.known()
        source = InitialValues(model=small.model, seed=0, dtype=torch.float64)
        members = {d: create_device_state(d, known, source=source) for d in known.devices}
        losses.append([r.loss for r in train(members, known, [small.batches(0)] * 3)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-10)
    assert losses[0][0] == pytest.approx(log(PLANS["tp2 then dp2"].model.vocab), abs=0.2)
    assert losses[0] == sorted(losses[0], reverse=True)
