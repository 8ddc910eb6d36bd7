"""Qwen3-VL under any cut: every device turns its tokens by the image's place in the whole text; its
files, and weights in either order."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from shardwright.errors import DataError, ModelError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.proof.prove_plan import prove_plan, random_batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
    step_differences,
)
from shardwright.execute.training.open_image_arrays_and_cut_patches import image_patches
from shardwright.execute.training.token_batches import open_tokens
from shardwright.execute.weights.parameter_slices_of_stored_tensors import stored_parameters
from shardwright.execute.weights.read_weights import open_weights
from shardwright.execute.weights.write_weights import save_weights
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import load_config, model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import TextRotary
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.counts import (
    lowered_flops,
    lowered_messages,
    lowered_moves,
    lowered_parameters,
    lowered_sums,
    problem_of,
    ran,
    traced_messages,
    traced_moves,
    traced_sums,
)
from tests.execute.published_configs import PUBLISHED
from tests.execute.published_images import QWEN3_VL
from tests.execute.published_sizes import Config
from tests.tiers import cases

TOKEN = QWEN3_VL["image_token_id"]
TOWER = "vision_embed+vision.0:1+vision.1:2+deep.0+deep.1+projector"


def small(**text: object) -> Config:
    vision = {
        **QWEN3_VL["vision_config"],
        "hidden_size": 32,
        "num_heads": 4,
        "intermediate_size": 48,
        "out_hidden_size": 64,
    }
    more = {"hidden_size": 64, "num_hidden_layers": 4, "head_dim": 16, **text}
    return {**QWEN3_VL, "text_config": {**QWEN3_VL["text_config"], **more}, "vision_config": vision}


def model_of(**text: object) -> Model:
    return model_from_config(small(**text), name="small-qwen")


def job_of(*, text: int = 32, image: int = 64, samples: int = 8) -> TrainingJob:
    lengths = {"text": text, "image": image}
    return TrainingJob(
        sequences=tuple(SequenceLength(name=n, tokens=t) for n, t in lengths.items()),
        global_batch=samples,
    )


def two_stages(tower: str, text: str) -> str:
    return (
        f"plan qwen devices 8\nlane main samples 8 in 2\n  stages {TOWER}+embed+1 on 0\n   "
        f" {tower}\n  stages 3+head on 4\n    {text}\norder 1f1b(main)\n"
    )


CUTS = (
    ("all = t2\n    stream = s2", "all = s2\n    core = s2 via ring"),
    (
        "all = s2\n    core = s2 via gather",
        "all = t2 s2\n    stream = s4\n    core = t2 s2 via ring",
    ),
    ("all = b2", "all = s4z\n    core = s4z via gather"),
    ("all = b4", "all = b2 s2z\n    core = b2 s2z via gather"),
    ("all = s2\n    core = s2 via ring", "all = t4\n    stream = s4"),
)


@pytest.mark.parametrize(("tower", "text"), cases(CUTS, 1))
def test_a_split_step_is_that_of_one_device(tower: str, text: str) -> None:
    """The first layer that adds features lies before a border of stages, the second behind it."""
    model, job, plan = model_of(), job_of(), parse_plan(two_stages(tower, text))
    batch, source = random_batch(model, job, seed=1), seeded(model, seed=1)
    places = batch["text"] == TOKEN
    assert places.sum(1).tolist() == [16] * 8
    assert len({int(row) for row in places.int().argmax(1)}) > 2
    whole = run_step(model, job, single_device_plan(model, job), batch=batch, source=source)
    parts = run_step(model, job, plan, batch=batch, source=source)
    assert float(parts.loss - whole.loss) == pytest.approx(0.0, abs=1e-12)
    assert max(difference for *_, difference in step_differences(parts, whole)) < 1e-12
    assert prove_plan(model, job, plan).equal


def test_a_text_without_an_image_turns_by_its_places() -> None:
    """As where nothing is known of rows and columns."""
    model, job = model_of(), job_of(samples=2)
    batch, source = random_batch(model, job, seed=1), seeded(model, seed=1)
    plain = {**batch, "text": batch["text"].masked_fill(batch["text"] == TOKEN, TOKEN + 1)}
    by_time = model_of(rope_parameters={"rope_theta": 100.0, "mrope_section": [6, 0, 0]})
    assert by_time.settings.turns == TextRotary(rows=0, columns=0)
    losses = [
        [
            float(run_step(one, job, single_device_plan(one, job), batch=given, source=source).loss)
            for one in (model, by_time)
        ]
        for given in (plain, batch)
    ]
    assert losses[0][0] == losses[0][1]
    assert abs(losses[1][0] - losses[1][1]) > 1e-6


@pytest.mark.parametrize(
    ("tower", "text"), cases([*product(("all = t2", "all = b4"), ("all = b2", "all = t4"))], 2)
)
def test_what_goes_round_is_counted_as_it_runs(tower: str, text: str) -> None:
    """Features of the last tower layer, one row of the text's width for four patches, reach the
    second layer behind the border."""
    asked = problem_of(parse_plan(two_stages(tower, text)), model=model_of(), job=job_of())
    found = ran(asked)
    assert traced_moves(found.records) == lowered_moves(asked)
    assert traced_messages(found.records) == lowered_messages(asked)
    assert traced_sums(found.records) == lowered_sums(asked)
    assert found.parameters == lowered_parameters(asked)
    others = {what: count for what, count in found.flops.items() if "patch" not in what}
    assert others == {
        what: count for what, count in lowered_flops(asked).items() if "patch" not in what
    }


def files_of(folder: Path, images: np.ndarray, *, gap: bool = False) -> dict[str, Path]:
    """Four windows of seven tokens, each with four places; `gap`: in the last one they are not one
    row."""
    window = [0, TOKEN, TOKEN, TOKEN, TOKEN, 7, 8]
    last = [0, TOKEN, TOKEN, 7, TOKEN, TOKEN, 8] if gap else window
    files = {"text": folder / "text.npy", "image": folder / "image.npy"}
    np.save(files["text"], np.array([*window * 3, *last, 0], dtype=np.uint8))
    np.save(files["image"], images)
    return files


def test_pixels_are_patches_of_equal_frames_block_by_block(tmp_path: Path) -> None:
    """Patches of a file are as its processor makes them: elements by channel, frame, row and
    column."""
    model, job = model_from_config(QWEN3_VL, name="q"), job_of(text=7, image=16, samples=2)
    pixels = np.random.default_rng(3).standard_normal((4, 3, 12, 12))
    batch = open_tokens(files_of(tmp_path, pixels), model=model, job=job).batch(1)
    for number, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]):
        patch = pixels[2, :, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
        wanted = np.stack([patch, patch], axis=1).reshape(-1)
        assert np.array_equal(batch["image"][0, number].numpy(), wanted)
    patches = image_patches(pixels, model=model)
    again = open_tokens(files_of(tmp_path, patches), model=model, job=job)
    assert torch.equal(again.batch(1)["image"], batch["image"])


def test_places_that_are_not_one_row_are_refused_before_the_first_step(tmp_path: Path) -> None:
    model, job = model_from_config(QWEN3_VL, name="q"), job_of(text=7, image=16, samples=2)
    files = files_of(tmp_path, np.zeros((4, 3, 12, 12)), gap=True)
    with pytest.raises(DataError, match=r"token 5\) of window 3 are not one row"):
        open_tokens(files, model=model, job=job)


def test_experts_are_read_in_either_order_of_their_dims(tmp_path: Path) -> None:
    """Published files have (in, out), Transformers writes (out, in); any other shape is refused."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(PUBLISHED["qwen3 vl moe"]))
    model = load_config(config)
    source = seeded(model, seed=3)
    save_weights(source, model=model, config=config, folder=tmp_path / "one", dtype=torch.float64)
    path = tmp_path / "one" / "model.safetensors"
    tensors = safetensors.load_file(path)
    experts = [name for name in tensors if "experts" in name]
    assert {tuple(tensors[name].shape) for name in experts} == {(4, 32, 24), (4, 12, 32)}
    safetensors.save_file(tensors | {name: tensors[name].mT.contiguous() for name in experts}, path)
    weights = open_weights(tmp_path / "one", model=model, dtype=torch.float64)
    for key, _ in stored_parameters(model):
        assert torch.equal(weights(key), source(key)), key
    key = next(key for key, _ in stored_parameters(model) if key[3] == "experts.up.weight.1")
    assert torch.equal(
        weights.part(key, (((1, 3),), ((5, 9),), ((2, 7),))), source(key)[1:3, 5:9, 2:7]
    )
    safetensors.save_file(tensors | {experts[0]: tensors[experts[0]][:, :-1].contiguous()}, path)
    with pytest.raises(DataError, match="has shape"):
        open_weights(tmp_path / "one", model=model, dtype=torch.float64)


def test_what_a_text_turns_by_is_read_or_refused() -> None:
    rope = {"rope_type": "default", "rope_theta": 50.0}
    assert model_of(rope_parameters=rope).settings.turns == TextRotary(rows=20, columns=20)
    assert model_of(
        rope_scaling={"mrope_section": [3, 2, 1]}, rope_theta=9.0
    ).settings.turns == TextRotary(rows=2, columns=1)
    with pytest.raises(ModelError, match="mrope_section must list three numbers"):
        model_of(rope_parameters={**rope, "mrope_section": [1, 2]})
    longer = {"rope_type": "dynamic", "factor": 2.0, "mrope_section": [3, 2, 1]}
    assert (
        "rotary positions of kind dynamic of a text with images"
        in model_of(rope_parameters=longer).differs
    )
