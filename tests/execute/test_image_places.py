"""Places of images that nothing can be written over are refused before a step computes anything."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import DataError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.interpreter import chunk_passes
from shardwright.execute.numerics.images.check_image_placeholder_tokens import require_one_run
from shardwright.execute.proof.prove_plan import random_batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
)
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from tests.execute.published_images import KIMI, QWEN3_VL
from tests.execute.published_sizes import Config

JOB = TrainingJob(
    sequences=(SequenceLength(name="text", tokens=12), SequenceLength(name="image", tokens=16)),
    global_batch=2,
)
LAST = np.array([0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0], dtype=np.bool_)


def refused(config: Config, places: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of a batch whose first text has these places, where no layer runs."""
    model = model_from_config(config, name="small")
    image = model.settings.image
    assert image is not None
    batch = random_batch(model, JOB, seed=0)
    text = batch["text"].masked_fill(batch["text"] == image.token, image.token - 1)
    text[:, 3:7] = image.token
    assert (text == image.token).sum(1).tolist() == [image.written(16)] * 2
    text[0] = (
        text[0]
        .masked_fill(text[0] == image.token, image.token - 1)
        .masked_fill(torch.from_numpy(places), image.token)
    )
    monkeypatch.setattr(chunk_passes, "run_forward", None)
    with pytest.raises(DataError) as raised:
        run_step(
            model,
            JOB,
            single_device_plan(model, JOB),
            batch={**batch, "text": text},
            source=seeded(model, seed=0),
        )
    return raised.value.message


def test_a_text_with_more_places_than_its_image_has_tokens_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = refused(KIMI, np.arange(12) % 2 == 0, monkeypatch)
    assert message == "a text has 6 places of images (token 5), its image 4"


def test_a_text_that_turns_by_its_image_has_one_row_of_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "are not one row of 2 x 2" in refused(QWEN3_VL, np.arange(12) % 3 == 0, monkeypatch)


@pytest.mark.parametrize(("at", "places"), [((0, 5), 4), ((2,), 3), ((2,), 5), ((0, 4), 2)])
def test_places_that_are_not_one_row_of_an_image_are_refused(
    at: tuple[int, ...], places: int
) -> None:
    image = model_from_config(QWEN3_VL, name="small").settings.image
    assert image is not None
    found = np.zeros(12, dtype=np.bool_)
    for start in at:
        found[start : start + places] = True
    require_one_run(np.stack([LAST, np.zeros_like(LAST)]), image, grid=(2, 2))
    with pytest.raises(DataError, match="not one row of 2 x 2"):
        require_one_run(np.stack([LAST, found]), image, grid=(2, 2))
