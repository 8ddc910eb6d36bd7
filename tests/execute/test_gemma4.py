"""What Gemma 4's layers compute that others' do not: worked values, and that the published loss
needs each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("transformers", reason="Transformers is not installed")

from shardwright.execute.checkpoints.draw_initial_parameter_values import InitialValues
from shardwright.execute.numerics.attention import attention_by_key_block
from shardwright.execute.numerics.base import top_k_experts as top_k_choice
from shardwright.execute.numerics.experts import (
    routing_permutation_and_expert_linear as expert_layer,
)
from shardwright.execute.numerics.layers import linear, residual_sum
from shardwright.execute.numerics.norms import norm_operator
from shardwright.execute.numerics.positions import rotary_operator
from shardwright.execute.numerics.positions.rotary_angles import rotary_rates
from shardwright.execute.weights.parameter_slices_of_stored_tensors import stored_parameters
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.numerical_constants import ProportionalRotary, Settings
from tests.execute.flips import Ending, verdict
from tests.execute.published_configs import PUBLISHED

CONFIG = PUBLISHED["gemma4"]


def test_pairs_of_a_share_turn_as_in_a_whole_head_and_the_others_stand() -> None:
    settings = Settings(rope_base=16.0, longer=ProportionalRotary(share=0.5))
    assert rotary_rates(settings, 4, device=torch.device("cpu")).tolist() == [1.0, 0.5, 0.0, 0.0]
    slower = Settings(rope_base=16.0, longer=ProportionalRotary(share=0.8, factor=2.0))
    assert rotary_rates(slower, 4, device=torch.device("cpu")).tolist() == [0.5, 0.25, 0.125, 0.0]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.3, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("half", [1, 4, 5, 32])
def test_rates_are_those_of_transformers(share: float, half: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "proportional",
        "rope_theta": 50.0,
        "partial_rotary_factor": share,
        "factor": 3.0,
    }
    wanted, scale = ROPE_INIT_FUNCTIONS["proportional"](
        LlamaConfig(head_dim=2 * half, rope_parameters=rope), "cpu"
    )
    found = rotary_rates(
        Settings(rope_base=50.0, longer=ProportionalRotary(share=share, factor=3.0)),
        half,
        device=torch.device("cpu"),
    )
    torch.testing.assert_close(found.float(), wanted, rtol=1e-6, atol=0)
    assert scale == 1.0


def test_factors_of_a_layer_and_of_experts_begin_at_one() -> None:
    model = model_from_config(CONFIG, name="gemma")
    values = InitialValues(model=model, seed=1, dtype=torch.float64)
    ones = [
        key
        for key, _ in stored_parameters(model)
        if key[3].endswith(("residual2.weight", "expert_scale", "router_norm.weight"))
    ]
    assert len(ones) == 9
    for key in ones:
        assert bool((values(key) == 1.0).all())


def scores_over_the_root_of_the_width(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        attention_by_key_block, "score_scale", lambda shape, settings: shape.head_dim**-0.5
    )


def no_factor_of_a_layer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(residual_sum, "_scaled", lambda place, x, weights: x)


def no_norm_of_values(patch: pytest.MonkeyPatch) -> None:
    parts = norm_operator._parts
    patch.setattr(norm_operator, "_parts", lambda place: parts(place)[:2])


def values_are_normed_keys(patch: pytest.MonkeyPatch) -> None:
    forward = norm_operator.Norm.forward

    def wrong(self: Any, place: Any, inputs: Any, weights: Any) -> Any:
        outputs, saved = yield from forward(self, place, inputs, weights)
        return (*outputs[:2], outputs[1]) if len(outputs) == 3 and len(
            inputs[0]
        ) == 2 else outputs, saved

    patch.setattr(norm_operator.Norm, "forward", wrong)


def scores_of_experts_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(linear, "scale_by_factors", lambda place, values: values)


def experts_without_scales(patch: pytest.MonkeyPatch) -> None:
    chosen = top_k_choice.chosen_experts
    patch.setattr(
        expert_layer, "chosen_experts", lambda logits, own, **more: chosen(logits, {}, **more)
    )


def all_pairs_turn(patch: pytest.MonkeyPatch) -> None:
    rates = rotary_operator.rotary_rates
    patch.setattr(
        rotary_operator,
        "rotary_rates",
        lambda settings, half, **more: rates(Settings(rope_base=settings.rope_base), half, **more),
    )


MUTANTS = (
    scores_over_the_root_of_the_width,
    no_factor_of_a_layer,
    no_norm_of_values,
    values_are_normed_keys,
    scores_of_experts_as_they_are,
    experts_without_scales,
    all_pairs_turn,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_without_one_of_its_mechanisms_it_is_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Any
) -> None:
    mutant(monkeypatch)
    # Turns are kept by settings and positions: those of another test are not these.
    rotary_operator._cached_angles.cache_clear()
    found = verdict(CONFIG, tmp_path)
    rotary_operator._cached_angles.cache_clear()
    assert found.ending is Ending.OTHER, found.said
