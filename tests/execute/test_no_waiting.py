"""In a step nothing asks the device for a number, so that an accelerator never waits for the host,
but at its end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.proof.prove_plan import random_batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
)
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from tests.execute.published_images import LLAVA, QWEN3_VL
from tests.execute.published_sizes import Config
from tests.execute.small_plans import PLANS, Small
from tests.execute.trained import train
from tests.tiers import cases

ASK = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
    torch.ops.aten._unique2.default,
)
"""Operators whose result, or its size, the host waits for."""
AT_THE_END = 3
"""The loss, the norm and whether to stop."""


class Asked(TorchDispatchMode):
    """Counts what the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ASK:
            self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))


def waits(small: Small) -> Counter[str]:
    known = small.known()
    members = small.members(known)
    train(members, known, [small.batches(0)])
    with Asked() as asked:
        train(members, known, [small.batches(1)])
    return asked.found


@pytest.mark.parametrize(
    "name",
    cases(["ring", "recomputed early", "zb-v", "tied", "hybrid zero-3", "two lanes"], 2),
)
def test_a_dense_step_asks_at_its_end_alone(name: str) -> None:
    small = PLANS[name]
    found = waits(small)
    assert sum(found.values()) <= AT_THE_END * small.devices, found
    assert found, "the loss is asked for"


@pytest.mark.parametrize(
    ("config", "tokens"), [(LLAVA, 5), (QWEN3_VL, 16)], ids=["llava", "qwen3-vl"]
)
def test_where_image_tokens_lie_in_a_text_is_known_before_it_goes_to_the_device(
    config: Config, tokens: int
) -> None:
    """Tokens in any places, and in the one row that a text turns by."""
    model = model_from_config(config, name="small")
    lengths = (SequenceLength(name="text", tokens=12), SequenceLength(name="image", tokens=tokens))
    job = TrainingJob(sequences=lengths, global_batch=2)
    batch, source = random_batch(model, job, seed=0), seeded(model, seed=0)
    with Asked() as asked:
        run_step(model, job, single_device_plan(model, job), batch=batch, source=source)
    assert asked.found == {}


def test_routed_tokens_are_counted() -> None:
    """What an exchange of them sends is known when they are."""
    assert sum(waits(PLANS["experts"]).values()) > AT_THE_END * PLANS["experts"].devices
