"""The unsplit model as the interpreter runs it equals torch.autograd over the whole graph of a
textbook's operators."""

from collections.abc import Callable
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.device_state.stored_parameter_parts import Key, origin, seeded
from shardwright.execute.proof.model_with_divided_widths import narrower_model
from shardwright.execute.proof.prove_plan import random_batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
)
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from tests.execute.chain import Chain
from tests.strategy.zoo_models import dense, encoder_decoder, hybrid, sparse

MODELS: list[Callable[[], Model]] = [
    lambda: dense(layers=2, kv_heads=4),
    lambda: sparse(dense_layers=1, layers=2),
    lambda: encoder_decoder(layers=2),
    lambda: hybrid(layers=4),
]


@pytest.mark.parametrize("made", MODELS, ids=["dense", "sparse", "encoder-decoder", "hybrid"])
def test_unsplit_model_equals_autograd(made: Callable[[], Model]) -> None:
    model = narrower_model(made())
    text = SequenceLength(name="text", tokens=6)
    job = TrainingJob(sequences=(text, replace(text, name="encoder")), global_batch=2)
    batch = random_batch(model, job, seed=3)
    batch["encoder"] = batch["text"]
    source = seeded(model, seed=3)
    result = run_step(
        model, job, single_device_plan(model, job), batch=batch, source=source, settings=Settings()
    )
    chain, numbers = Chain(model), {run.name: i for i, run in enumerate(model.runs)}
    owners = {}
    weights = {}
    for operator, key, _ in chain.steps:
        found = {
            p.name: origin(model, numbers[key[0]], key[1], operator, p) for p in operator.parameters
        }
        owners |= {(key, name): one for name, one in found.items()}
        back = {
            name: tuple(one.order.index(i) for i in range(len(one.order)))
            for name, one in found.items()
        }
        weights[key] = {name: source(one.key).permute(back[name]) for name, one in found.items()}
    loss, grads = chain.reference(
        weights, batch["text"].unsqueeze(-1), batch["labels"].unsqueeze(-1)
    )
    tokens = job.global_batch * job.sequence_length
    torch.testing.assert_close(result.loss, loss / tokens, rtol=1e-13, atol=1e-13)
    wanted: dict[Key, torch.Tensor] = {}
    for key, named in grads.items():
        for name, gradient in named.items():
            if gradient is not None:
                one = owners[key, name]
                wanted[one.key] = wanted.get(one.key, 0) + gradient.permute(one.order) / tokens
    (store,) = result.stores.values()
    assert wanted.keys() <= store.held.keys()
    for owner, boxes in store.held.items():
        (held,) = boxes.values()
        if owner in wanted:
            torch.testing.assert_close(held.gradient, wanted[owner], rtol=0, atol=1e-11)
        else:
            assert held.gradient is None or not held.gradient.any()
