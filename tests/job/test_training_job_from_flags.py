"""Flags to a training job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.dtype import Dtype
from shardwright.errors import ShardwrightError, UsageError
from shardwright.job.training_job_from_flags import job_from_flags
from tests.jobs import training_job
from tests.tiers import examples


def test_defaults_are_the_everyday_job() -> None:
    assert job_from_flags(seq_len=8192, global_batch=2048) == training_job(
        seq_len=8192, global_batch=2048
    )


def test_fp8_computes_in_fp8_over_bf16() -> None:
    job = job_from_flags(seq_len=16, global_batch=1, precision="FP8", gradient_wire="bf16")
    assert (job.compute, job.parameter, job.activation, job.gradient_wire) == (
        Dtype.FP8,
        Dtype.BF16,
        Dtype.BF16,
        Dtype.BF16,
    )
    assert job.optimizer.state_bytes == 12


@pytest.mark.parametrize(
    ("word", "plain"),
    [("nvfp4", "fp4"), ("NVFP4", "fp4"), ("bfloat16", "bf16"), ("float16", "fp16")],
)
def test_other_names_of_a_recipe(word: str, plain: str) -> None:
    one, other = (
        job_from_flags(seq_len=16, global_batch=1, precision=name) for name in (word, plain)
    )
    assert one == other


@pytest.mark.parametrize(
    ("word", "nearest"),
    [("mxfp4", "fp4, which is NVFP4"), ("MXFP8", "--pin fp8=mx"), ("int8", "fp8")],
)
def test_a_format_that_nobody_trains_in_names_the_nearest_recipe(word: str, nearest: str) -> None:
    with pytest.raises(
        UsageError, match=f"no training recipe computes in {word.lower()}"
    ) as caught:
        job_from_flags(seq_len=16, global_batch=1, precision=word)
    assert nearest in caught.value.hint


def test_fp32_has_no_master_copy() -> None:
    job = job_from_flags(seq_len=16, global_batch=1, precision="fp32")
    assert job.optimizer.master is None
    assert job.optimizer.state_bytes == 8


def test_sequences_beside_text() -> None:
    job = job_from_flags(
        seq_len=512,
        global_batch=4,
        encoder_len=1024,
        image_tokens=576,
        needed=("text", "encoder", "image", ""),
    )
    assert [(s.name, s.tokens) for s in job.sequences] == [
        ("text", 512),
        ("encoder", 1024),
        ("image", 576),
    ]
    assert job.tokens_per_step == 2048


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"seq_len": 0}, "--seq-len 0"),
        ({"seq_len": -1}, "--seq-len"),
        ({"seq_len": 10**60}, "too large"),
        ({"global_batch": 0}, "--global-batch"),
        ({"precision": "bf61"}, "did you mean bf16"),
        ({"gradient_wire": "int8"}, "--gradient-wire"),
        ({"encoder_len": -5}, "--encoder-len"),
        ({"needed": ("encoder",)}, "--encoder-len"),
        ({"needed": ("video",)}, "video"),
    ],
)
def test_nonsense_is_one_line_of_usage_error(flags: dict[str, object], word: str) -> None:
    given_flags: dict[str, object] = {"seq_len": 1024, "global_batch": 8, **flags}
    with pytest.raises(UsageError) as caught:
        job_from_flags(**given_flags)  # type: ignore[arg-type]
    assert word in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 2


@examples(50, 500)
@given(st.integers(), st.integers(), st.text(max_size=60), st.text(max_size=60))
def test_any_flags_give_a_job_or_an_error_of_ours(
    seq_len: int, global_batch: int, precision: str, wire: str
) -> None:
    try:
        job = job_from_flags(
            seq_len=seq_len, global_batch=global_batch, precision=precision, gradient_wire=wire
        )
    except ShardwrightError:
        return
    assert job.sequence_length == seq_len > 0
    assert job.global_batch == global_batch > 0
