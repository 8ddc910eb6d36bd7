"""Published families train as in Transformers: steps of AdamW under a split plan, from
scratch, written out and read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
from torch.nn import functional

from shardwright.execute.checkpoints.read_checkpoint import SavedSource, read_checkpoint
from shardwright.execute.device_state.stored_parameter_parts import box_slice, seeded
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.device_training_state import create_device_state, prepare_training
from shardwright.execute.training.weight_decay_exemptions import VECTORS
from shardwright.execute.weights.family_parameter_names import FAMILY_NAMES
from shardwright.execute.weights.read_weights import open_weights
from shardwright.execute.weights.write_weights import save_weights
from shardwright.job.training_job import TrainingJob
from shardwright.model.families.huggingface_config import load_config
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorKind
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.published_configs import (
    batch_of,
    in_double,
    logits_of,
    sequences_of,
    without_use,
)
from tests.execute.published_families import ALL, first_of_each, published_name
from tests.execute.saved import save
from tests.execute.trained import train
from tests.tiers import in_both, many

STEPS, SAMPLES, TOKENS = many(2, 5), 4, 8
RULE = AdamW(rate=3e-3, eps=1e-4, clip=0.5, no_decay=(VECTORS,))
"""Epsilon keeps what has no gradient but roundings (biases of keys) where it is."""
TOLERANCE = 1e-6
"""Of losses, and of parameters after the last step: Transformers turns by angles in float32."""

FIRST_IN_SINGLE, IN_SINGLE = 1e-5, 1e-4
"""Of the first loss in float32, and of five steps."""


def split(model: Model) -> Plan:
    """Pipeline, tensor, sequence, expert and data parallelism with sharded states, of two layers on
    four devices."""
    counts = {run.name: run.count for run in model.runs}
    layers = sum(count for name, count in counts.items() if name.startswith("layers"))
    first, last = f"embed+{layers - 1}", "1+head"
    if "encoder" in counts:
        first, last = (
            f"encoder_embed+encoder:{counts['encoder']}+encoder_norm+embed+decoder:1",
            f"decoder:{counts['decoder'] - 1}+head",
        )
    if "vision_embed" in counts:
        tower = [
            name
            for name in counts
            if name.partition(".")[0] in ("vision_embed", "vision", "deep", "projector")
        ]
        named = [
            f"{name}:{counts[name]}" if name.partition(".")[0] == "vision" else name
            for name in tower
        ]
        first = "+".join([*named, first])
    routed = any(o.kind is OperatorKind.ROUTE for block in model.blocks for o in block.operators)
    experts = "    router = s2\n    experts = e2\n" if routed else ""
    return parse_plan(
        f"plan small devices 4\nzero all: all/1/1\nlane main samples {SAMPLES} in 2\n  stages"
        f" {first}, {last} on 0, 2\n    all = t2\n    stream = s2\n{experts}order 1f1b(main)\n"
    )


def steps_of(published: Any, batches: list[dict[str, torch.Tensor]]) -> list[float]:
    """Losses of Transformers' model under PyTorch's AdamW, before each step and after the last."""
    # A bias of every expert is a vector of each.
    spared = {
        name: p.dim() == 1 or name.endswith("_bias") for name, p in published.named_parameters()
    }
    vectors, others = (
        [p for name, p in published.named_parameters() if spared[name] is one]
        for one in (True, False)
    )
    groups = [
        {"params": others, "weight_decay": RULE.decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RULE.rate, betas=RULE.betas, eps=RULE.eps)
    losses = []
    for batch in batches:
        value = loss_of(published, batch)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(published.parameters(), RULE.clip)
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


def loss_of(published: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(
        logits_of(published, batch).flatten(0, 1), batch["labels"].flatten()
    )


def opened(folder: Path, architecture: str, *, dtype: torch.dtype = torch.float64) -> Any:
    """Transformers' model of a folder, none of whose tensors is missing or unknown, but for those
    that no output reads."""
    model, found = getattr(transformers, architecture).from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    missing = {name for name in found["missing_keys"] if not without_use(model, name)}
    assert not any((missing, found["unexpected_keys"], found["mismatched_keys"])), found
    return model.eval()


def tried() -> list[Any]:
    """One of every sixteenth family; in a proof all, with every form of positions, routing and
    activation.

    The fields of the families between are tried in `test_config_fields`.
    """
    some = sorted(first_of_each(), key=lambda name: str(ALL[name]["architectures"]))[::16]
    return [pytest.param(name, marks=() if name in some else pytest.mark.proof) for name in ALL]


def test_forty_families_are_tried() -> None:
    assert {published_name(ALL[name]["architectures"][0]) for name in first_of_each()} == set(
        FAMILY_NAMES
    )
    assert len(first_of_each()) >= 40


@pytest.mark.proof
@pytest.mark.parametrize("name", ALL)
def test_in_single_precision_they_are_close(tmp_path: Path, name: str) -> None:
    """As people run it: Transformers' own float32 beside a split plan's, opened again from the
    files of both."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(ALL[name]))
    model, architecture = load_config(config), ALL[name]["architectures"][0]
    source = seeded(model, seed=3, dtype=torch.float32)
    save_weights(source, model=model, config=config, folder=tmp_path / "first", dtype=torch.float32)
    published = opened(tmp_path / "first", architecture, dtype=torch.float32)
    ids = torch.randint(
        0, model.vocab, (STEPS, SAMPLES, TOKENS + 1), generator=torch.Generator().manual_seed(1)
    )
    batches = [batch_of(published, one) for one in ids]
    wanted = steps_of(published, batches)

    job = TrainingJob(sequences=sequences_of(model, tokens=TOKENS), global_batch=SAMPLES)
    known = prepare_training(model, job, split(model), rule=RULE, dtype=torch.float32)
    weights = open_weights(tmp_path / "first", model=model, dtype=torch.float32)
    members = {
        device: create_device_state(device, known, source=weights) for device in known.devices
    }
    found = [report.loss for report in train(members, known, batches)]
    assert found[0] == pytest.approx(wanted[0], abs=FIRST_IN_SINGLE)
    assert found == pytest.approx(wanted, abs=IN_SINGLE)

    frozen = SavedSource(
        saved=read_checkpoint(save(members, known, tmp_path / "run"), model=model), frozen=weights
    )
    save_weights(frozen, model=model, config=config, folder=tmp_path / "last", dtype=torch.float32)
    trained = opened(tmp_path / "last", architecture, dtype=torch.float32)
    with torch.no_grad():
        assert float(loss_of(trained, batches[0])) == pytest.approx(
            float(loss_of(published, batches[0])), abs=IN_SINGLE
        )


@in_both
@pytest.mark.parametrize("name", tried())
def test_steps_of_a_split_plan_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(ALL[name]))
    model = load_config(config)
    assert not model.differs
    source, architecture = seeded(model, seed=3), ALL[name]["architectures"][0]
    save_weights(source, model=model, config=config, folder=tmp_path / "first", dtype=torch.float64)
    published = opened(tmp_path / "first", architecture)
    ids = torch.randint(
        0, model.vocab, (STEPS, SAMPLES, TOKENS + 1), generator=torch.Generator().manual_seed(1)
    )
    batches = [batch_of(published, one) for one in ids]
    with in_double(architecture):
        wanted = steps_of(published, batches)

    job = TrainingJob(sequences=sequences_of(model, tokens=TOKENS), global_batch=SAMPLES)
    known = prepare_training(model, job, split(model), rule=RULE)
    members = {
        device: create_device_state(device, known, source=source) for device in known.devices
    }
    assert [report.loss for report in train(members, known, batches)] == pytest.approx(
        wanted, abs=TOLERANCE
    )
    assert abs(wanted[0] - wanted[-1]) > 1e-3, "training changes the loss"

    # From the files a device has what it began with from scratch, so its steps are the same.
    weights = open_weights(tmp_path / "first", model=model, dtype=torch.float64)
    for device in known.devices:
        for key, boxes in create_device_state(device, known, source=weights).store.held.items():
            for box, held in boxes.items():
                torch.testing.assert_close(
                    held.value, box_slice(source(key), box), rtol=0, atol=1e-15
                )

    frozen = SavedSource(
        saved=read_checkpoint(save(members, known, tmp_path / "run"), model=model), frozen=source
    )
    save_weights(frozen, model=model, config=config, folder=tmp_path / "last", dtype=torch.float64)
    trained = dict(opened(tmp_path / "last", architecture).named_parameters())
    for key, parameter in (
        (name, p) for name, p in published.named_parameters() if not without_use(published, name)
    ):
        torch.testing.assert_close(
            trained[key],
            parameter,
            rtol=0,
            atol=TOLERANCE,
            msg=lambda said, key=key: f"{key}: {said}",
        )
