"""DeepSeek-V3 as Transformers saves it: a configuration that names a prediction module, and files
that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")

from shardwright.execute.training.device_training_state import create_device_state, prepare_training
from shardwright.execute.weights.checkpoint_to_hugging_face_weights import write_checkpoint_weights
from shardwright.execute.weights.read_weights import open_weights
from shardwright.job.training_job import TrainingJob
from shardwright.model.requested_model_with_teacher import requested_model
from tests.execute.huggingface_layouts import CONFIGS
from tests.execute.published_configs import batch_of, made, sequences_of
from tests.execute.saved import save
from tests.execute.test_published_training import (
    RULE,
    SAMPLES,
    TOKENS,
    TOLERANCE,
    opened,
    split,
    steps_of,
)
from tests.execute.trained import train


def test_it_trains_as_in_transformers_and_is_opened_again(tmp_path: Path) -> None:
    published = made({**CONFIGS["deepseek v3"], "num_nextn_predict_layers": 1})
    published.save_pretrained(tmp_path / "first")
    config = tmp_path / "first" / "config.json"
    model = requested_model(str(config), train="without:mtp")
    weights = open_weights(tmp_path / "first", model=model, dtype=torch.float64)
    assert "of which its files have nothing" in weights.remarks[0]

    ids = torch.randint(
        0, model.vocab, (2, SAMPLES, TOKENS + 1), generator=torch.Generator().manual_seed(1)
    )
    batches = [batch_of(published, one) for one in ids]
    wanted = steps_of(published, batches)
    job = TrainingJob(sequences=sequences_of(model, tokens=TOKENS), global_batch=SAMPLES)
    known = prepare_training(model, job, split(model), rule=RULE)
    members = {
        device: create_device_state(device, known, source=weights) for device in known.devices
    }
    assert [report.loss for report in train(members, known, batches)] == pytest.approx(
        wanted, abs=TOLERANCE
    )

    kept = save(members, known, tmp_path / "run")
    full = requested_model(str(config))
    write_checkpoint_weights(
        kept, model=full, config=config, folder=tmp_path / "last", dtype="", base=tmp_path / "first"
    )
    trained = dict(opened(tmp_path / "last", "DeepseekV3ForCausalLM").named_parameters())
    for key, parameter in published.named_parameters():
        torch.testing.assert_close(trained[key], parameter, rtol=0, atol=TOLERANCE)
