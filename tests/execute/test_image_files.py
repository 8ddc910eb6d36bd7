"""Batches from files of images beside tokens, and what is refused before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional

from shardwright.errors import DataError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.training import write_and_open_token_files as token_files
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.device_training_state import create_device_state, prepare_training
from shardwright.execute.training.open_image_arrays_and_cut_patches import image_patches
from shardwright.execute.training.token_batches import TokenBatches, open_tokens
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.published_images import KIMI, LLAVA
from tests.execute.trained import train
from tests.tiers import random_of

TOKENS, IMAGES, PLACES = 7, 6, 4
TOKEN = LLAVA["image_token_index"]
MODEL = model_from_config(LLAVA, name="small-llava")


def _job(*, image: int = PLACES + 1, samples: int = 2) -> TrainingJob:
    lengths = {"text": TOKENS, "image": image}
    return TrainingJob(
        sequences=tuple(SequenceLength(name=n, tokens=t) for n, t in lengths.items()),
        global_batch=samples,
    )


def _text(*, places: int = PLACES) -> np.ndarray:
    """Windows with their places of image tokens behind the first token."""
    window = [0, *(TOKEN,) * places, *range(6, 6 + TOKENS - 1 - places)]
    return np.array([*window * IMAGES, 0], dtype=np.uint8)


def _pixels(dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(5).standard_normal((IMAGES, 3, 8, 8)).astype(dtype)


def _opened(
    folder: Path,
    images: np.ndarray,
    *,
    text: np.ndarray | None = None,
    job: TrainingJob | None = None,
) -> TokenBatches:
    files = {"text": folder / "text.npy", "image": folder / "image.npy"}
    np.save(files["text"], _text() if text is None else text)
    np.save(files["image"], images)
    return open_tokens(files, model=MODEL, job=job or _job())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_pixels_are_cut_into_patches_behind_a_class_token(tmp_path: Path, dtype: str) -> None:
    pixels = _pixels(dtype)
    batches = _opened(tmp_path, pixels)
    assert batches.windows == IMAGES
    batch = batches.batch(1)
    wanted = functional.unfold(torch.from_numpy(pixels[2:4].astype("float64")), 4, stride=4).mT
    assert not batch["image"][:, 0].any()
    assert torch.equal(batch["image"][:, 1:].double(), wanted)
    assert batch["text"].tolist() == [[0, *(TOKEN,) * 4, 6, 7]] * 2
    assert batch["labels"].tolist() == [[-1, -1, -1, -1, 6, 7, 0]] * 2

    patches = (
        batches.batch(0)["image"][:, 1:].numpy(),
        batch["image"][:, 1:].numpy(),
        batches.batch(2)["image"][:, 1:].numpy(),
    )
    (tmp_path / "again").mkdir()
    again = _opened(tmp_path / "again", np.concatenate(patches))
    assert all(
        torch.equal(again.batch(step)["image"], batches.batch(step)["image"]) for step in range(3)
    )


def test_a_split_plan_learns_of_files_as_one_device_does(tmp_path: Path) -> None:
    batches, job = _opened(tmp_path, _pixels(), job=_job(samples=4)), _job(samples=4)
    split = parse_plan(
        "plan small devices 4\nzero all: all/1/1\nlane main samples 4 in 2\n  stages"
        " vision_embed+vision:2+projector, embed+2+head on 0, 2\n    all = t2\n    stream ="
        " s2\norder 1f1b(main)\n"
    )
    losses = []
    for plan in (single_device_plan(MODEL, job), split):
        known = prepare_training(MODEL, job, plan, rule=AdamW(rate=1e-2))
        members = {
            device: create_device_state(device, known, source=seeded(MODEL, seed=3))
            for device in known.devices
        }
        losses.append(
            [
                report.loss
                for report in train(members, known, [batches.batch(step) for step in range(4)])
            ]
        )
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    assert losses[0][-1] < losses[0][0] - 0.1


KIMI_MODEL = model_from_config(KIMI, name="small-kimi")
SIDE = 4
"""Rows and columns of patches of 3 x 3 pixels, four of which become a token."""


def _of_squares(
    folder: Path, images: np.ndarray, *, places: int = 4, patches: int = SIDE**2
) -> TokenBatches:
    files = {"text": folder / "text.npy", "image": folder / "image.npy"}
    np.save(files["text"], _text(places=places))
    np.save(files["image"], images)
    return open_tokens(files, model=KIMI_MODEL, job=_job(image=patches))


def test_patches_that_are_merged_stand_block_by_block(tmp_path: Path) -> None:
    pixels = (
        np.random.default_rng(5).standard_normal((IMAGES, 3, 3 * SIDE, 3 * SIDE)).astype("float32")
    )
    batch = _of_squares(tmp_path, pixels).batch(1)
    by_rows = functional.unfold(torch.from_numpy(pixels[2:4]), 3, stride=3).mT
    order = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
    assert torch.equal(batch["image"], by_rows[:, order])
    assert batch["text"].tolist() == [[0, *(TOKEN,) * 4, 6, 7]] * 2
    assert batch["labels"].tolist() == [[-1, -1, -1, -1, 6, 7, 0]] * 2

    # The model's own processor has patches row by row.
    (tmp_path / "again").mkdir()
    again = _of_squares(
        tmp_path / "again", functional.unfold(torch.from_numpy(pixels), 3, stride=3).mT.numpy()
    )
    assert torch.equal(again.batch(1)["image"], batch["image"])


def test_patches_of_several_frames_have_the_image_in_each() -> None:
    assert KIMI_MODEL.settings.image is not None
    image = replace(KIMI_MODEL.settings.image, frames=2, in_blocks=True)
    model = replace(KIMI_MODEL, settings=replace(KIMI_MODEL.settings, image=image))
    pixels = np.arange(3.0 * 12 * 12).reshape(1, 3, 12, 12)
    found = image_patches(pixels, model=model)
    once = image_patches(pixels, model=KIMI_MODEL)
    assert found.shape == (1, 16, 3 * 2 * 3 * 3)
    assert np.array_equal(found.reshape(1, 16, 3, 2, 9)[:, :, :, 0], once.reshape(1, 16, 3, 9))
    assert np.array_equal(found.reshape(1, 16, 3, 2, 9)[:, :, :, 1], once.reshape(1, 16, 3, 9))
    assert np.array_equal(image_patches(found, model=model), found)


@pytest.mark.parametrize(
    ("shape", "places", "patches", "said"),
    [
        (
            (IMAGES, 3, 6, 24),
            4,
            16,
            "images of 2 x 8 patches, not squares of whole blocks of 2 x 2",
        ),
        ((IMAGES, 3, 9, 9), 4, 16, "images of 3 x 3 patches, not squares of whole blocks of 2 x 2"),
        ((IMAGES, 12, 27), 3, 12, "images of 12 patches, not squares of whole blocks of 2 x 2"),
        ((IMAGES, 3, 24, 24), 4, 16, "has images of 64 tokens"),
        ((IMAGES, 16, 26), 4, 16, "not of whole patches of [3, 3, 3]"),
        (
            (IMAGES, 16, 27),
            5,
            16,
            "window 0 of 7 tokens has 5 places of image tokens (token 5), its image has 4",
        ),
    ],
)
def test_images_that_are_no_squares_of_blocks_are_refused(
    tmp_path: Path, shape: tuple[int, ...], places: int, patches: int, said: str
) -> None:
    with pytest.raises(DataError) as caught:
        _of_squares(tmp_path, np.zeros(shape), places=places, patches=patches)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "integers": (lambda folder: _opened(folder, _pixels().astype("uint8")), "4 dims of uint8"),
    "a row": (lambda folder: _opened(folder, np.zeros(9)), "1 dims of float64"),
    "channels": (
        lambda folder: _opened(folder, np.zeros((6, 1, 8, 8))),
        "images of [1, 8, 8], not of whole patches of [3, 4, 4]",
    ),
    "no whole patches": (
        lambda folder: _opened(folder, np.zeros((6, 3, 8, 7))),
        "not of whole patches",
    ),
    "elements": (lambda folder: _opened(folder, np.zeros((6, 4, 47))), "not of whole patches"),
    "another size": (lambda folder: _opened(folder, np.zeros((6, 3, 8, 12))), "images of 7 tokens"),
    "another job": (lambda folder: _opened(folder, _pixels(), job=_job(image=4)), "the job of 4"),
    "few": (lambda folder: _opened(folder, _pixels()[:1]), "has 1 images, a batch needs 2"),
    "no places": (
        lambda folder: _opened(folder, _pixels(), text=_text(places=0)),
        "window 0 of 7 tokens has 0 places",
    ),
    "too many places": (
        lambda folder: _opened(folder, _pixels(), text=_text(places=5)),
        "has 5 places of image tokens (token 5)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_images_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    asked, said = REFUSED[name]
    with pytest.raises(DataError) as caught:
        asked(tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert str(tmp_path) in str(caught.value)


def test_every_piece_of_a_text_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "CHUNK", 2 * TOKENS)
    text = _text()
    text[4 * TOKENS + 1] = 6
    with pytest.raises(DataError, match="window 4 of 7 tokens has 3 places"):
        _opened(tmp_path, _pixels(), text=text)


def _model_of_text() -> Model:
    return model_from_config(
        {**LLAVA["text_config"], "architectures": ["LlamaForCausalLM"]}, name="text"
    )


def test_images_are_for_models_that_read_them(tmp_path: Path) -> None:
    _opened(tmp_path, _pixels())
    with pytest.raises(DataError, match="reads no images"):
        open_tokens(
            {"text": tmp_path / "text.npy", "image": tmp_path / "image.npy"},
            model=_model_of_text(),
            job=_job(),
        )


def test_any_bytes_are_images_or_refused(tmp_path: Path) -> None:
    _opened(tmp_path, _pixels())
    whole, random = (tmp_path / "image.npy").read_bytes(), random_of("bytes of images")
    said: list[str] = []
    for number in range(60):
        size = random.choice((len(whole), random.randrange(len(whole)))) if number else 0
        changed = bytearray(whole[:size])
        for at in random.sample(range(min(size, 128)), min(size, random.randrange(4))):
            changed[at] = random.randrange(256)
        (tmp_path / "image.npy").write_bytes(bytes(changed))
        try:
            open_tokens(
                {"text": tmp_path / "text.npy", "image": tmp_path / "image.npy"},
                model=MODEL,
                job=_job(),
            ).batch(0)
        except DataError as error:
            said.append(str(error))
    assert said
    assert not any("\n" in one for one in said)
