"""What optimizer states take: in bf16 without a master copy, and in 8 bits."""

from __future__ import annotations

import pytest

from shardwright.api.simulate_strategy_and_verify_stored import simulate
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.search.search_request import Request

MODEL = "llama-3.2-1b"
PARAMETERS = load_model(MODEL).num_parameters


def items(runtime: str, precision: str, strategy: str, *, devices: int) -> dict[str, int]:
    request = Request(
        model=MODEL,
        cluster=f"h100-sxm:{devices}",
        seq_len=1024,
        global_batch=8,
        runtime=runtime,
        precision=precision,
    )
    return dict(simulate(request, strategy=strategy).stages[0].items)


def test_bf16_pure_keeps_no_master_copy() -> None:
    pure, mixed = (
        job_from_flags(seq_len=8, global_batch=1, precision=name) for name in ("bf16-pure", "bf16")
    )
    assert (pure.optimizer.master, pure.optimizer.state_bytes, mixed.optimizer.state_bytes) == (
        None,
        4,
        12,
    )
    assert (pure.compute, pure.parameter, pure.activation) == (
        mixed.compute,
        mixed.parameter,
        mixed.activation,
    )


@pytest.mark.parametrize(
    ("precision", "option", "each"),
    [("bf16", "", 12), ("bf16", " moments=8bit", 6), ("bf16-pure", "", 4)],
)
def test_states_of_replicas(precision: str, option: str, each: int) -> None:
    """AdamW: an fp32 master copy and two states; in 8 bits 4 + 1 + 1; in bf16 2 + 2."""
    found = items(f"deepspeed-0.16{option}", precision, "dp2 mbs1 zero0 recompute=full", devices=2)
    assert found["optimizer"] == each * PARAMETERS
    assert found["parameters"] == 2 * PARAMETERS


def test_gradients_in_bf16_take_half_under_fsdp() -> None:
    wide, narrow = (
        items(f"torchtitan-0.2{option}", "bf16-pure", "dp4 mbs1 zero3 recompute=full", devices=4)[
            "gradients"
        ]
        for option in ("", " grad_dtype=bf16")
    )
    assert wide == 2 * narrow
    assert narrow == pytest.approx(2 * PARAMETERS / 4, rel=1e-3)
