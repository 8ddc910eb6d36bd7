"""Tokens and sequences as people write them, and what names of clusters count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cli.parsing.parse_token_and_sequence_counts import read_batch, read_count
from shardwright.cli.parsing.shared_options import (
    JobFlags,
    PlatformFlags,
    read_choices,
    read_request,
)
from shardwright.errors import ClusterError, UsageError
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.catalog.load_model_by_name import load_model
from tests.tiers import examples


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8192", 8192),
        ("8,192", 8192),
        ("8k", 8192),
        ("8K", 8192),
        ("128k", 131072),
        ("1.5k", 1536),
        ("8k tokens", 8192),
    ],
)
def test_lengths(text: str, count: int) -> None:
    assert read_count(text, flag="--seq-len") == count


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "k", "8kk", "0.3k", "1e3", "8 k k", "eight", "8k words", "9" * 50]
)
def test_no_counts(text: str) -> None:
    with pytest.raises(UsageError, match="--seq-len") as caught:
        read_count(text, flag="--seq-len")
    assert "8k (8,192)" in caught.value.hint


@examples(25, 500)
@given(st.integers(1, 2**40))
def test_a_number_is_itself_in_every_spelling(number: int) -> None:
    assert {
        read_count(text, flag="--seq-len") for text in (str(number), f"{number:,}", f" {number:_} ")
    } == {number}


def test_a_batch_in_sequences_and_in_tokens() -> None:
    assert read_batch("512", "", seq_len=8192) == 512
    assert read_batch("2k", "", seq_len=8192) == 2048
    assert read_batch("4M tokens", "", seq_len=8192) == 512
    assert read_batch("4Mtok", "", seq_len=4096) == 1024
    assert read_batch("", "16M", seq_len=8192) == 2048
    assert read_batch("", "60,000 tokens", seq_len=6000) == 10


def test_tokens_that_are_no_whole_number_of_sequences_name_the_nearest() -> None:
    with pytest.raises(
        UsageError, match="4,194,304 tokens are no whole number of sequences of 6,000"
    ) as caught:
        read_batch("", "4M", seq_len=6000)
    assert (
        caught.value.hint
        == "699 sequences are 4,194,000 tokens; 700 sequences are 4,200,000 tokens"
    )
    with pytest.raises(UsageError) as caught:
        read_batch("100 tokens", "", seq_len=6000)
    assert caught.value.hint == "1 sequences are 6,000 tokens"


@pytest.mark.parametrize(("text", "tokens"), [("", ""), ("512", "4M")])
def test_a_batch_is_said_once(text: str, tokens: str) -> None:
    with pytest.raises(UsageError, match="--global-batch and --global-batch-tokens"):
        read_batch(text, tokens, seq_len=8192)


def test_flags_become_the_counts_of_a_request() -> None:
    job = JobFlags(seq_len="8k", global_batch_tokens="4M")
    request = read_request("m", "c", job=job, platform=PlatformFlags())
    assert (request.seq_len, request.global_batch) == (8192, 512)


@pytest.mark.parametrize(
    ("text", "devices", "said"),
    [
        (
            "tpu-v5p-256",
            128,
            (
                "128 x tpu-v5p, 32 nodes of 4, scale-up domains of 128 (v5p-256 counts TensorCores,"
                " 2 a chip)"
            ),
        ),
        ("v4-8", 4, "4 x tpu-v4, a node of 4 (v4-8 counts TensorCores, 2 a chip)"),
        (
            "v5litepod-16:2",
            32,
            "32 x tpu-v5e, 4 nodes of 8, scale-up domains of 16 (v5litepod-16 counts chips)",
        ),
        (
            "TPU_v6e_16",
            16,
            "16 x tpu-v6e, 4 nodes of 4, scale-up domains of 16 (v6e-16 counts chips)",
        ),
        ("gb200-nvl72:8", 8, "8 x gb200-nvl72, 2 nodes of 4, scale-up domains of 72"),
        ("h100:16", 16, "16 x h100-sxm, 2 nodes of 8"),
        ("aws-p5.48xlarge:2", 16, "16 x h100-sxm, 2 nodes of 8 (aws-p5.48xlarge counts instances)"),
        ("h100:8+a100:16", 24, "8 x h100-sxm, a node of 8 + 16 x a100-sxm-80gb, 2 nodes of 8"),
    ],
)
def test_a_cluster_says_what_its_words_count(text: str, devices: int, said: str) -> None:
    cluster = parse_cluster(text)
    assert (cluster.num_devices, cluster.described()) == (devices, said)


@pytest.mark.parametrize("text", ["v5p-255", "tpu-v4-0"])
def test_slices_of_half_a_chip_are_none(text: str) -> None:
    with pytest.raises(ClusterError, match="no TPU slice"):
        parse_cluster(text)


@pytest.mark.parametrize("text", ["tpu-7x-128", "v9-8", "v5p256"])
def test_names_of_slices_that_are_not_known_are_not_guessed(text: str) -> None:
    with pytest.raises(ClusterError, match="unknown accelerator"):
        parse_cluster(text)


def test_maverick_is_the_language_model_and_says_so() -> None:
    assert (
        load_model("llama-4-maverick").name
        == load_model("meta-llama/Llama-4-Maverick-17B-128E").name
        == "llama-4-maverick-text"
    )


def test_case_does_not_count_in_pins() -> None:
    pins = read_choices(["TP=4,8", "ZeRO1", "Recompute=Full"], flag="--pin")
    assert pins == (("tp", ("4", "8")), ("zero", ("1",)), ("recompute", ("full",)))
