"""SGLang's tables: batch limits by memory, reserved memory, graph sizes, all-reduces, flags."""

from __future__ import annotations

from typing import Final

from shardwright.runtime.serving_engines.default_rules_by_device import (
    AllReduceKind,
    AllReduceRange,
    BackendChoice,
    Captures,
    Reserve,
    SizeRow,
)
from shardwright.runtime.serving_engines.engine_options import (
    kv_format_setting,
    option_settings,
    word_setting,
)
from shardwright.runtime.serving_engines.serving_engine import ExpertExchange
from shardwright.units import GIB, KIB, MIB

REPOSITORY: Final = "https://github.com/sgl-project/sglang/blob"
V0_5_9_TREE: Final = f"{REPOSITORY}/v0.5.9/python/sglang/srt"
_ARGUMENTS: Final = f"{V0_5_9_TREE}/server_args.py"

# max_running_requests is 512 x cached tokens / context, at least 2048 and at most 4096: 2048 but
# for caches of four contexts and more.
SEQUENCES: Final = 2048
ROWS: Final = (
    SizeRow(below_gib=20, token_budget=2048, max_sequences=SEQUENCES, largest_captured=8),
    SizeRow(
        below_gib=35,
        token_budget=2048,
        max_sequences=SEQUENCES,
        largest_captured=80,
        narrow_captured=24,
        narrow_tp=4,
    ),
    SizeRow(
        below_gib=60,
        token_budget=4096,
        max_sequences=SEQUENCES,
        largest_captured=160,
        narrow_captured=32,
        narrow_tp=4,
    ),
    SizeRow(
        below_gib=160,
        token_budget=8192,
        max_sequences=SEQUENCES,
        largest_captured=512,
        narrow_captured=256,
        narrow_tp=4,
    ),
    SizeRow(token_budget=16384, max_sequences=SEQUENCES, largest_captured=512),
)
RESERVE: Final = Reserve(
    fixed=512 * MIB,
    a_chunk=3 * MIB // 2,
    least_chunk=2048,
    a_captured=2 * MIB,
    a_device=GIB // 8,
    a_rank_captured=3 * MIB,
    a_rank_large_captured=3 * MIB // 2,
    large_captured=300,
    a_piece=8 * MIB,
    least=10 * GIB,
    least_above_gib=60,
    guessing=2 * GIB,
)
CAPTURES: Final = Captures(
    ranges=((1, 2, 1), (2, 3, 1), (4, 13, 4), (16, 257, 8), (272, 512, 16), (512, 0, 32)),
    guessing_ranges=((1, 9, 1), (10, 33, 2), (40, 65, 4), (72, 257, 8), (272, 0, 16)),
)
PIECES: Final = Captures(
    ranges=(
        (4, 33, 4),
        (48, 257, 16),
        (288, 513, 32),
        (576, 1025, 64),
        (1280, 4097, 256),
        (4608, 0, 512),
    ),
)
# sgl-kernel's custom_all_reduce.cuh decides between one and two shots; below 8 MiB either is taken,
# where NVLink joins all.
OWN: Final = (
    AllReduceRange(kind=AllReduceKind.ONE_SHOT, ranks=2, most_bytes=8 * MIB),
    AllReduceRange(kind=AllReduceKind.ONE_SHOT, ranks=4, most_bytes=512 * KIB - 1),
    AllReduceRange(kind=AllReduceKind.ONE_SHOT, ranks=8, most_bytes=256 * KIB - 1),
    AllReduceRange(kind=AllReduceKind.TWO_SHOT, ranks=4, most_bytes=8 * MIB),
    AllReduceRange(kind=AllReduceKind.TWO_SHOT, ranks=8, most_bytes=8 * MIB),
)
SYMMETRIC: Final = (
    AllReduceRange(kind=AllReduceKind.MULTIMEM, ranks=2, most_bytes=64 * MIB),
    AllReduceRange(kind=AllReduceKind.MULTIMEM, ranks=4, most_bytes=64 * MIB),
    AllReduceRange(kind=AllReduceKind.MULTIMEM, ranks=8, most_bytes=128 * MIB),
)
# FlashInfer takes one shot up to 128 tokens where nothing is said; SGLang fuses up to 2048.
FUSED: Final = (
    AllReduceRange(kind=AllReduceKind.ONE_SHOT, fused=True, most_tokens=128, most_bytes=GIB),
    AllReduceRange(kind=AllReduceKind.TWO_SHOT, fused=True, most_tokens=2048, most_bytes=GIB),
)
FUSED_MODELS: Final = (
    "DeepseekV3ForCausalLM",
    "GptOssForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "Qwen3MoeForCausalLM",
)
KIMI: Final = "KimiK25ForConditionalGeneration"
ATTENTION: Final = (
    BackendChoice(
        name="trtllm_mla", generation=10, latent=True, architectures=("DeepseekV3ForCausalLM", KIMI)
    ),
    BackendChoice(name="flashinfer", generation=10, latent=True),
    BackendChoice(name="fa3", generation=9),
    BackendChoice(name="trtllm_mha", generation=10, latent=False),
    BackendChoice(name="flashinfer", latent=False),
    BackendChoice(name="triton", latent=True),
)
EARLY_ATTENTION: Final = (
    BackendChoice(name="flashinfer", generation=10, latent=True),
    BackendChoice(name="trtllm_mha", generation=10, architectures=("GptOssForCausalLM",)),
    BackendChoice(name="fa3", generation=9),
    BackendChoice(name="flashinfer", latent=False),
    BackendChoice(name="triton", latent=True),
)

SETTINGS: Final = (
    *option_settings(
        _ARGUMENTS,
        {
            "token_budget": "--chunked-prefill-size",
            "sequences": "--max-running-requests",
            "prompt_tokens": "--max-prefill-tokens",
            "context": "--context-length",
            "memory": "--mem-fraction-static",
            "block": "--page-size",
        },
    ),
    kv_format_setting("--kv-cache-dtype", _ARGUMENTS),
    *option_settings(
        _ARGUMENTS,
        {
            "prefix_cache": "--disable-radix-cache",
            "mixed_chunk": "--enable-mixed-chunk",
            "conservative": "--schedule-conservativeness",
            "balance_iterations": "--enable-prefill-delayer, --prefill-delayer-max-delay-passes",
            "graphs": "--disable-cuda-graph",
            "graph_sizes": "--cuda-graph-bs",
            "graph_max": "--cuda-graph-max-bs",
            "graph_padding": "--disable-cuda-graph-padding",
            "piecewise": "--enable-piecewise-cuda-graph",
            "piece_sizes": "--piecewise-cuda-graph-tokens",
            "piece_max": "--piecewise-cuda-graph-max-tokens",
            "async": "--disable-overlap-schedule",
            "polling": "--scheduler-recv-interval",
            "stream_interval": "--stream-interval",
        },
    ),
    word_setting(
        "fused_sums",
        "--enable-flashinfer-allreduce-fusion",
        _ARGUMENTS,
        on={"fused_all_reduce": True, "fused_architectures": (), "fused_generations": ()},
        off={"fused_all_reduce": False},
    ),
    word_setting(
        "own_sums",
        "--disable-custom-all-reduce",
        _ARGUMENTS,
        on={"sums": (*FUSED, *OWN, *SYMMETRIC)},
        off={"sums": (*FUSED, *SYMMETRIC)},
    ),
    *option_settings(
        _ARGUMENTS,
        {
            "multimem": "--enable-torch-symm-mem",
            "symmetric": "--enable-symm-mem",
            "attention_dp": "--enable-dp-attention",
            "expert_parallel": "--ep-size",
        },
    ),
    word_setting(
        "exchange",
        "--moe-a2a-backend",
        _ARGUMENTS,
        none={"exchange": ExpertExchange.GATHERED},
        deepep={"exchange": ExpertExchange.DEEPEP},
        mooncake={"exchange": ExpertExchange.DEEPEP},
        flashinfer={"exchange": ExpertExchange.ONE_SIDED},
    ),
    *option_settings(
        _ARGUMENTS,
        {
            "attention": "--attention-backend",
            "experts": "--moe-runner-backend",
            "guesses": "--speculative-num-steps",
        },
    ),
)
