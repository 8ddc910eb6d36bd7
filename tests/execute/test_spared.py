"""Weight decay that spares kinds of parameters: as PyTorch's AdamW with two groups, the same under
every plan."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.device_state.stored_parameter_parts import parameter_of, seeded
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
)
from shardwright.execute.training.device_training_state import (
    PreparedTraining,
    create_device_state,
    prepare_training,
)
from shardwright.execute.training.weight_decay_exemptions import EMBEDDINGS, VECTORS, is_exempt
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.text.grid_notation import parse_grid
from tests.execute.huggingface_layouts import CONFIGS
from tests.execute.trained import train
from tests.tiers import cases

TOKENS, STEPS = 8, 3
RULE = AdamW(rate=0.01, decay=0.5, no_decay=(VECTORS, EMBEDDINGS))
GRIDS = ("tp2 sp1 mbs1", "dp2 zero3 mbs1", "pp2 dp2 zero1 mbs1 schedule=1f1b", "dp4 zero2 mbs1")


@cache
def model_called(name: str) -> Model:
    return model_from_config(CONFIGS[name], name=name.replace(" ", "-"))


def batches(model: Model) -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(
        0, model.vocab, (STEPS, 4, TOKENS + 1), generator=torch.Generator().manual_seed(1)
    )
    return [{"text": one[:, :-1], "labels": one[:, 1:]} for one in ids]


JOB = TrainingJob(sequences=(SequenceLength(name="text", tokens=TOKENS),), global_batch=4)


def trained(
    known: PreparedTraining, model: Model
) -> tuple[list[float], dict[object, torch.Tensor]]:
    members = {
        device: create_device_state(device, known, source=seeded(model, seed=2))
        for device in known.devices
    }
    losses = [report.loss for report in train(members, known, batches(model))]
    held = {
        key: next(iter(boxes.values())).value
        for key, boxes in members[known.devices[0]].store.held.items()
    }
    return losses, held


@pytest.mark.parametrize("name", ["llama tied", "gpt2", "qwen3 moe", "mamba2"])
@pytest.mark.parametrize("spared", [(), (VECTORS,), (VECTORS, EMBEDDINGS)])
def test_an_update_is_pytorchs_with_two_groups(name: str, spared: tuple[str, ...]) -> None:
    """Of the gradients of the same step: every parameter of the unsplit model after one."""
    model, rule = model_called(name), AdamW(rate=0.01, decay=0.5, clip=0.0, no_decay=spared)
    source, plan = seeded(model, seed=2), single_device_plan(model, JOB)
    (store,) = run_step(model, JOB, plan, batch=batches(model)[0], source=source).stores.values()
    known = prepare_training(model, JOB, plan, rule=rule)
    own = create_device_state(0, known, source=source)
    train({0: own}, known, batches(model)[:1])
    seen = set()
    for key, boxes in store.held.items():
        (before,) = boxes.values()
        if before.gradient is None:
            continue
        kept = is_exempt(parameter_of(model, key), spared)
        seen.add(kept)
        value = torch.nn.Parameter(source(key).clone())
        value.grad = before.gradient
        decay = 0.0 if kept else rule.decay
        torch.optim.AdamW(
            [value], lr=rule.rate, betas=rule.betas, eps=rule.eps, weight_decay=decay
        ).step()
        (after,) = own.store.held[key].values()
        torch.testing.assert_close(after.value, value.detach(), rtol=0, atol=1e-12)
    assert seen == ({False, True} if spared else {False})


@cache
def alone_under(rule: AdamW) -> list[float]:
    """Losses of the unsplit model."""
    model = model_called("llama")
    return trained(prepare_training(model, JOB, single_device_plan(model, JOB), rule=rule), model)[
        0
    ]


@pytest.mark.parametrize("grid", cases(GRIDS, 2))
def test_plans_spare_the_same(grid: str) -> None:
    """Pieces of flat buckets have parameters of both kinds."""
    model = model_called("llama")
    alone, every = (alone_under(rule) for rule in (RULE, AdamW(rate=RULE.rate, decay=RULE.decay)))
    split, _ = trained(
        prepare_training(
            model, JOB, plan_of(parse_grid(grid), model=model, global_batch=4), rule=RULE
        ),
        model,
    )
    assert split == pytest.approx(alone, abs=1e-10)
    assert alone[2] != pytest.approx(every[2], abs=1e-6)


def test_what_is_spared() -> None:
    """A router's row for each expert is a matrix; it has one dimension only of an expert's own."""
    model = model_called("qwen2 moe")
    parameters = {p.name: p for b in model.blocks for o in b.operators for p in o.parameters}
    vectors = {name for name, p in parameters.items() if is_exempt(p, (VECTORS,))}
    tables = {name for name, p in parameters.items() if is_exempt(p, (EMBEDDINGS,))}
    assert vectors
    assert all("norm" in name or "bias" in name for name in vectors)
    assert len(tables) == 1
    assert not any(is_exempt(p, ()) for p in parameters.values())
