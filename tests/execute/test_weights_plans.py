"""Published weights under a plan: each device reads what it holds; trained ones leave through a
checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from shardwright.execute.checkpoints.read_checkpoint import SavedSource, read_checkpoint
from shardwright.execute.device_state.stored_parameter_parts import whole_shape
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.device_training_state import (
    PreparedTraining,
    create_device_state,
    prepare_training,
)
from shardwright.execute.weights import read_weights
from shardwright.execute.weights.parameter_slices_of_stored_tensors import stored_parameters
from shardwright.execute.weights.read_numerical_settings_from_config import stored_settings
from shardwright.execute.weights.read_weights import open_weights
from shardwright.execute.weights.write_weights import save_weights
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import load_config
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.huggingface_layouts import checkpoint
from tests.execute.saved import save
from tests.execute.trained import train
from tests.tiers import chosen

PLANS = {
    "llama tied": """plan small devices 4
zero all: all/1/1
lane main samples 4 in 2
  stages embed+1, 1+head on 0, 2
    all = t2
    stream = s2
order 1f1b(main)
""",
    "phi3 partial": """plan small devices 2
lane main samples 4 in 2
  stages embed+2+head on 0
    all = t2
    stream = s2
order gpipe(main)
""",
    "deepseek v3": """plan small devices 2
lane main samples 4 in 1
  stages embed+2+head on 0
    all = t2
    stream = s2
    router = s2
    experts = e2
order 1f1b(main)
""",
}


PLANS["deepseek v3 yarn"] = PLANS["deepseek v3"]
PLANS["deepseek v3 halves"] = PLANS["deepseek v3"]


@pytest.mark.parametrize("name", chosen(PLANS, ["llama tied", "deepseek v3 halves"]))
def test_devices_read_what_they_hold_and_train_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    checkpoint(name, tmp_path / "weights")
    model = load_config(tmp_path / "weights" / "config.json")
    job = TrainingJob(sequences=(SequenceLength(name="text", tokens=8),), global_batch=4)
    ids = torch.randint(0, model.vocab, (2, 4, 9), generator=torch.Generator().manual_seed(1))
    batches = [{"text": one[:, :-1], "labels": one[:, 1:]} for one in ids]
    source = open_weights(tmp_path / "weights", model=model, dtype=torch.float64)
    settings = stored_settings(tmp_path / "weights", model=model)
    fetched: list[int] = []
    original = read_weights._to_our_dims

    def counted(values: torch.Tensor, *others: Any) -> torch.Tensor:
        fetched.append(values.numel())
        return original(values, *others)

    monkeypatch.setattr(read_weights, "_to_our_dims", counted)

    def trained(
        known: PreparedTraining,
    ) -> tuple[list[float], dict[int, Any], list[tuple[int, int]]]:
        members, amounts = {}, []
        for device in known.devices:
            fetched.clear()
            members[device] = create_device_state(device, known, source=source)
            held = sum(
                h.value.numel()
                for boxes in members[device].store.held.values()
                for h in boxes.values()
            )
            amounts.append((sum(fetched), held))
        return [r.loss for r in train(members, known, batches)], members, amounts

    alone, whole, _ = trained(
        prepare_training(model, job, single_device_plan(model, job), settings=settings)
    )
    known = prepare_training(model, job, parse_plan(PLANS[name]), settings=settings)
    losses, members, amounts = trained(known)
    assert losses == pytest.approx(alone, abs=1e-10)
    assert alone[0] != pytest.approx(alone[1], abs=1e-6)
    everything = sum(
        torch.Size(whole_shape(model, key)).numel()
        for key, parameter in stored_parameters(model)
        if parameter.trainable
    )
    for read_elements, held in amounts:
        assert read_elements == held
        assert held < 0.8 * everything

    saved = read_checkpoint(save(members, known, tmp_path / "run"), model=model)
    files = save_weights(
        SavedSource(saved=saved, frozen=source),
        model=model,
        config=tmp_path / "weights" / "config.json",
        folder=tmp_path / "trained",
        dtype=torch.float64,
    )
    assert len(files) == 1
    again = open_weights(tmp_path / "trained", model=model, dtype=torch.float64)
    (one,) = whole.values()
    for key, parameter in stored_parameters(model):
        if parameter.trainable:
            (held,) = one.store.held[key].values()
            torch.testing.assert_close(again(key), held.value, rtol=0, atol=1e-10)
            assert not torch.equal(again(key), source(key))
        else:
            assert torch.equal(again(key), source(key))
