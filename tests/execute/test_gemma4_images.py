"""Gemma 4's tower and its text: any cut trains as one device, what cannot be cut is refused by
name, and every mechanism counts."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from shardwright.errors import DataError, StrategyError
from shardwright.execute.checkpoints.draw_initial_parameter_values import InitialValues
from shardwright.execute.interpreter import operator_inputs_on_device as layer_inputs
from shardwright.execute.numerics.attention import unfused_attention
from shardwright.execute.numerics.images import patch_embedding, patch_pooling
from shardwright.execute.numerics.images.operators_over_merged_tokens import (
    fold_elements,
    unfold_elements,
)
from shardwright.execute.numerics.images.patch_grid_and_position_interpolation import rows_by_axis
from shardwright.execute.numerics.norms import norm_operator
from shardwright.execute.numerics.positions import rotary_operator
from shardwright.execute.numerics.positions.rotary_angles import rotate_pairs, rotate_parts
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.proof.model_with_divided_widths import narrower_model
from shardwright.execute.proof.prove_plan import prove_plan
from shardwright.execute.training.open_image_arrays_and_cut_patches import (
    image_patches,
    open_images,
)
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.blocks.pooled_projector import pooled_operators
from shardwright.model.catalog.load_model_by_name import catalog_entry
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import PositionAxes
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.flips import Ending, verdict
from tests.execute.lockstep import alone, place_of
from tests.execute.published_configs import PUBLISHED
from tests.execute.test_merged_patches import GATHER, PATCHES, RING, TOWER, assert_same, job_of
from tests.tiers import cases, in_both, in_proof

CONFIG = PUBLISHED["gemma4 of images"]
CUTS = TOWER[:6]
TEXT = (
    f"all = s2\n    {RING}",
    "all = t2\n    stream = s2",
    "all = b2",
    f"all = s2\n    {GATHER}",
    "all = t2\n    stream = d2",
)


@cache
def small_gemma(*, hidden: int = 64) -> Model:
    text = {**CONFIG["text_config"], "hidden_size": hidden}
    vision = {
        **CONFIG["vision_config"],
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 48,
    }
    return model_from_config(
        {**CONFIG, "text_config": text, "vision_config": vision}, name="small-gemma"
    )


def two_stages(tower: str, text: str) -> str:
    return (
        "plan pooled devices 8\nlane main samples 8 in 2\n"
        f"  stages vision_embed+vision:2+projector on 0\n    {tower}\n"
        f"  stages embed+3+head on 4\n    {text}\norder 1f1b(main)\n"
    )


@in_both
@pytest.mark.parametrize(
    ("tower", "text"),
    list(product(CUTS, TEXT)) if in_proof() else [*zip(CUTS, (*TEXT, TEXT[0]), strict=True)][::3],
)
def test_pooled_tokens_come_from_any_cut_of_a_tower_to_any_cut_of_a_text(
    tower: str, text: str
) -> None:
    job = job_of(image=64 if "s2" in tower else PATCHES)
    found = prove_plan(small_gemma(), job, parse_plan(two_stages(tower, text)))
    assert found.equal, (found.loss_difference, found.worst)


@pytest.mark.parametrize("text", cases(TEXT[:4], 2))
def test_a_text_whose_width_is_no_multiple_of_the_patches_of_a_token(text: str) -> None:
    model = small_gemma(hidden=66)
    found = prove_plan(model, job_of(), parse_plan(two_stages(TOWER[1], text)))
    assert found.equal, (found.loss_difference, found.worst)
    (out,) = (
        o for b in model.blocks if b.name == "projector" for o in b.operators if o.name == "out"
    )
    assert out.writes[0].size == 17


def of_few_layers() -> Model:
    """The published widths and heads: nine patches to a token, of a text whose width they do not
    divide."""
    config = catalog_entry("gemma-4-31b").config
    kinds = ["sliding_attention", "full_attention"]
    text = {
        **config["text_config"],
        "num_hidden_layers": 2,
        "layer_types": kinds,
        "use_bidirectional_attention": "vision",
    }
    vision = {**config["vision_config"], "num_hidden_layers": 2, "standardize": True}
    return model_from_config({**config, "text_config": text, "vision_config": vision}, name="few")


@pytest.mark.proof
@pytest.mark.parametrize("text", TEXT[:2])
def test_the_published_widths_of_few_layers(text: str) -> None:
    lengths = {"text": 1024, "image": 48 * 48}
    job = TrainingJob(
        sequences=tuple(SequenceLength(name=n, tokens=t) for n, t in lengths.items()),
        global_batch=8,
    )
    plan = two_stages(TOWER[0], text).replace("embed+3+head", "embed+2+head")
    found = prove_plan(of_few_layers(), job, parse_plan(plan))
    assert found.equal, (found.loss_difference, found.worst)


def test_a_small_model_has_what_is_held_of_a_token_of_its_own_width() -> None:
    """Of 5,376 elements nine patches have 598 each, which no power of two above two divides; of an
    eighth 75."""
    (out,) = (
        o
        for b in narrower_model(of_few_layers()).blocks
        if b.name == "projector"
        for o in b.operators
        if o.name == "out"
    )
    assert (out.parameters[0].extents[-1].size, out.writes[0].size) == (672, 75)


def test_elements_that_do_not_lie_evenly_over_patches_are_not_cut() -> None:
    with pytest.raises(
        StrategyError, match=r"elements 0 to 32 of tokens, which do not lie evenly over 4 patches"
    ) as caught:
        assert_same(small_gemma(hidden=66), job_of(), two_stages(TOWER[1], TEXT[4]))
    assert caught.value.rule == "execute.width"


@pytest.mark.parametrize(
    "asked",
    cases(
        ["frozen:vision_embed,vision,projector", "frozen:vision_embed,vision", "lora:r4:attn,mlp"],
        1,
    ),
)
def test_its_tower_may_be_frozen_or_have_adapters(asked: str) -> None:
    found = prove_plan(
        trained(small_gemma(), asked), job_of(), parse_plan(two_stages(TOWER[0], TEXT[1]))
    )
    assert found.equal, (found.loss_difference, found.worst)


def test_tower_and_text_in_one_stage_train_alike() -> None:
    text = (
        "plan pooled devices 2\nzero all: all/all/all gather=use reduce=microbatch\nlane main"
        " samples 8 in 2\n  stages vision_embed+vision:2+projector+embed+3+head on 0\n    all ="
        f" s2\n    {GATHER}\n    recompute 0-: full\norder gpipe(main)\n"
    )
    assert_same(small_gemma(), job_of(image=16), text)


def test_zeros_fill_up_the_rows_of_a_token() -> None:
    tokens = torch.arange(1.0, 7.0).view(1, 1, 6)
    held = fold_elements(tokens, 4)
    assert held.tolist() == [[[1, 5], [2, 6], [3, 0], [4, 0]]]
    assert torch.equal(unfold_elements(held, 4, width=6), tokens)


def test_a_worked_mean_of_neighbours() -> None:
    operator, _, _ = pooled_operators(
        width=2, hidden=4, source="input", merge=2, mean_factor=2.0, shift_and_scale=True
    )
    place = place_of(operator, length=2, samples=1)
    weights = {"pool.shift": torch.tensor([1.0, 0.0]), "pool.scale": torch.tensor([1.0, 3.0])}
    (found,), _ = alone(
        numerics_of(operator).forward(
            place, ((torch.tensor([[[1.0, 2.0], [3.0, 6.0]]]),),), weights
        )
    )
    assert unfold_elements(found, 2, width=2).tolist() == [[[3.0, 24.0]]]


def test_a_patch_has_a_row_of_the_table_of_columns_and_one_of_that_of_rows() -> None:
    numbers, weights = rows_by_axis(torch.tensor([[0, 2], [1, 0]]), (2, 3), PositionAxes(rows=5))
    assert numbers.tolist() == [[2, 5], [0, 6]]
    assert weights.tolist() == [[1.0, 1.0]] * 2
    with pytest.raises(
        DataError, match="an image of 2 x 6 patches, of which the model knows 5 positions"
    ):
        rows_by_axis(torch.tensor([[0, 2]]), (2, 6), PositionAxes(rows=5))


def test_halves_of_a_head_turn_apart() -> None:
    """By no angle the first pair of each, by a quarter of a circle the second: of nine elements the
    last stands."""
    cos, sin = torch.tensor([[[1.0, 0.0, 1.0, 0.0]]]), torch.tensor([[[0.0, 1.0, 0.0, 1.0]]])
    heads = torch.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]]])
    assert rotate_parts(heads, cos, sin, width=9, parts=2).tolist() == [
        [[1.0, -4.0, 3.0, 2.0, 5.0, -8.0, 7.0, 6.0, 9.0]]
    ]


def test_numbers_of_features_begin_as_nothing() -> None:
    model = small_gemma()
    values = InitialValues(model=model, seed=1, dtype=torch.float64)
    at = next(i for i, run in enumerate(model.runs) if run.name == "projector")
    assert values((at, 0, "pool", "pool.shift")).tolist() == [0.0] * 32
    assert values((at, 0, "pool", "pool.scale")).tolist() == [1.0] * 32


def test_elements_of_a_patch_are_the_channels_of_its_pixels() -> None:
    """Ours stand block by block, those of its processor's files row by row."""
    images = np.random.default_rng(1).random((2, 3, 12, 12))
    theirs = np.zeros((2, 16, 27))
    for down, across, i, j, channel in product(range(4), range(4), range(3), range(3), range(3)):
        theirs[:, 4 * down + across, 9 * i + 3 * j + channel] = images[
            :, channel, 3 * down + i, 3 * across + j
        ]
    model = small_gemma()
    assert np.array_equal(image_patches(images, model=model), image_patches(theirs, model=model))
    assert np.array_equal(image_patches(theirs, model=model)[:, :5], theirs[:, [0, 1, 4, 5, 2]])


def test_files_of_images(tmp_path: Path) -> None:
    model, path = small_gemma(), tmp_path / "images.npy"
    np.save(path, np.zeros((8, 3, 12, 12)))
    assert open_images(path, model=model, job=job_of(image=16)).shape == (8, 3, 12, 12)
    np.save(path, np.zeros((8, 36, 27)))
    assert open_images(path, model=model, job=job_of(image=36)).shape == (8, 36, 27)
    np.save(path, np.zeros((8, 3, 12, 24)))
    with pytest.raises(DataError, match="not squares of whole blocks of 2 x 2"):
        open_images(path, model=model, job=job_of(image=32))
    np.save(path, np.zeros((8, 3, 24, 24)))
    with pytest.raises(
        DataError,
        match="images of 8 x 8 patches, of which the model knows 7 positions along a side",
    ):
        open_images(path, model=model, job=job_of(image=64))


def causal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        unfused_attention,
        "same_image_mask",
        lambda place, runs, positions, window: torch.zeros((1, 1, 1), dtype=torch.bool),
    )


def pixels_as_they_are(patch: pytest.MonkeyPatch) -> None:
    rows = layer_inputs.own_rows
    patch.setattr(
        layer_inputs,
        "own_rows",
        lambda whole, *at: rows(whole, *at) / 2 + 0.5 if whole.dim() == 3 else rows(whole, *at),
    )


def rows_and_columns_swapped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        patch_embedding,
        "rows_by_axis",
        lambda at, grid, table, dtype: rows_by_axis(at.flip(-1), grid, table, dtype=dtype),
    )


def whole_heads_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        rotary_operator,
        "rotate_parts",
        lambda x, cos, sin, width, parts: rotate_pairs(x, cos, sin, width=width),
    )


def sums_of_patches(patch: pytest.MonkeyPatch) -> None:
    fine = patch_pooling.at_least_float32
    patch.setattr(
        patch_pooling, "at_least_float32", lambda x: 4 * fine(x) if x.dim() == 3 else fine(x)
    )


def numbers_of_features_left_out(patch: pytest.MonkeyPatch) -> None:
    by_role = patch_pooling.parameters_by_role
    patch.setattr(
        patch_pooling,
        "parameters_by_role",
        lambda *share: {name: torch.ones_like(x) for name, x in by_role(*share).items()},
    )


def image_tokens_without_a_norm(patch: pytest.MonkeyPatch) -> None:
    forward = norm_operator.Norm.forward

    def wrong(self: Any, place: Any, inputs: Any, weights: Any) -> Any:
        outputs, saved = yield from forward(self, place, inputs, weights)
        return inputs[0] if place.operator.folds > 1 else outputs, saved

    patch.setattr(norm_operator.Norm, "forward", wrong)


MUTANTS = (
    causal,
    pixels_as_they_are,
    rows_and_columns_swapped,
    whole_heads_turn,
    sums_of_patches,
    numbers_of_features_left_out,
    image_tokens_without_a_norm,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_without_one_of_its_mechanisms_it_is_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Any
) -> None:
    pytest.importorskip("transformers", reason="Transformers is not installed")
    mutant(monkeypatch)
    rotary_operator._cached_angles.cache_clear()
    found = verdict(CONFIG, tmp_path)
    rotary_operator._cached_angles.cache_clear()
    assert found.ending is Ending.OTHER, found.said


def test_the_factor_of_the_mean_is_the_root_of_the_width() -> None:
    (pooling,) = (o for b in small_gemma().blocks for o in b.operators if o.pools)
    assert pooling.factors == (sqrt(32),)
