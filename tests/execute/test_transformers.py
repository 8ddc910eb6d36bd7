"""Losses and gradients of Hugging Face families are those that Transformers computes, where it is
installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
from torch.nn import functional

from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
)
from shardwright.execute.weights.read_weights import open_weights
from shardwright.job.training_job import TrainingJob
from shardwright.model.families.huggingface_config import load_config
from tests.execute.huggingface_layouts import CONFIGS, checkpoint
from tests.execute.published_configs import (
    PUBLISHED,
    batch_of,
    in_double,
    logits_of,
    publish,
    sequences_of,
)
from tests.execute.published_families import first_of_each
from tests.execute.published_gradients import gradient_differences
from tests.tiers import in_both

TOKENS = 7
TOLERANCE = 1e-6
"""Transformers turns by angles in float32, whatever the model's numbers are."""


def _published(name: str, folder: Path) -> Any:
    """A model of Transformers, and its files in a folder."""
    if name in PUBLISHED:
        return publish(name, folder)
    checkpoint(name, folder)
    return getattr(transformers, CONFIGS[name]["architectures"][0]).from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )


ALIKE = {
    "qwen2 yarn",
    "deepseek v2 yarn",
    "qwen2 gelu",
    "gpt2 silu",
    "gpt2 squared",
    "deepseek v2 groups",
    "qwen2 moe scores",
    "deepseek v3 halves",
    "gpt-neox sequential",
    "llama dynamic, longer",
    "phi3 long",
    "llava of mistral",
    "minimax m3 alone",
    "minimax m3 as published",
    "gemma4 of usual turns",
    "llama4 of two experts",
}
"""Forms whose mechanism another family or form has too."""


def tried() -> list[Any]:
    """Forms that `test_published_training` leaves to proofs, without those `ALIKE`, and published
    layouts of experts; the others in a proof."""
    trained = first_of_each()
    experts = {
        name
        for name in trained
        if any("experts" in field for field in {**CONFIGS, **PUBLISHED}[name])
    }
    return [
        pytest.param(
            name,
            marks=()
            if (name in experts or name not in trained) and name not in ALIKE
            else pytest.mark.proof,
        )
        for name in (*CONFIGS, *PUBLISHED)
    ]


@in_both
@pytest.mark.parametrize("name", tried())
def test_loss_and_gradients_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    published = _published(name, tmp_path / "weights")
    ids = torch.randint(
        0,
        published.config.get_text_config().vocab_size,
        (2, TOKENS + 1),
        generator=torch.Generator().manual_seed(3),
    )
    model = load_config(tmp_path / "weights" / "config.json")
    assert not model.differs
    batch = batch_of(published, ids)
    with in_double(type(published).__name__):
        wanted = functional.cross_entropy(
            logits_of(published, batch).flatten(0, 1), ids[:, 1:].flatten()
        )
        wanted.backward()

    job = TrainingJob(sequences=sequences_of(model, tokens=TOKENS), global_batch=2)
    weights = open_weights(tmp_path / "weights", model=model, dtype=torch.float64)
    result = run_step(model, job, single_device_plan(model, job), batch=batch, source=weights)
    assert float(result.loss) == pytest.approx(float(wanted.detach()), abs=TOLERANCE)

    for key, difference, largest in gradient_differences(
        published, model, result, folder=tmp_path / "gradients"
    ):
        assert difference <= TOLERANCE * (1 + largest), key
    saved = load_config(tmp_path / "gradients" / "config.json")
    assert (saved.settings, saved.differs) == (model.settings, ())
