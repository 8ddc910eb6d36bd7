"""TensorRT-LLM's PyTorch backend by version: in-flight batching of prompts and decode.

A capacity scheduler admits requests. Sources that were read are the released documentation, or
public forks at a commit of the time: the repository's tags were not at hand.
"""

from __future__ import annotations

from typing import Final

from shardwright.runtime.serving_engines.default_rules_by_device import (
    AllReduceKind,
    AllReduceRange,
    BackendChoice,
    Captures,
)
from shardwright.runtime.serving_engines.engine_from_sourced_statements import (
    derive,
    engine,
    identity_fields,
    read,
    stated,
)
from shardwright.runtime.serving_engines.engine_options import (
    kv_format_setting,
    option_setting,
    option_settings,
    word_setting,
)
from shardwright.runtime.serving_engines.serving_engine import (
    Admission,
    Batching,
    Eviction,
    ExpertExchange,
    MemoryRule,
)
from shardwright.units import MEGA, MIB

_REPOSITORY: Final = "https://github.com/NVIDIA/TensorRT-LLM/blob"
_V1_0: Final = f"{_REPOSITORY}/v1.0.0"
_V1_2: Final = f"{_REPOSITORY}/v1.2.0rc6"
# llm_args.py of late 2025 (between 1.2.0rc5 and 1.2.0rc7) and of early 2026 (1.3.0rc1).
_ARGUMENTS: Final = "https://github.com/venkywonka/TensorRT-LLM/blob/35d73ef02f19b9e027e6b8a77fba5a0e64381e78/tensorrt_llm/llmapi/llm_args.py"
_ARGUMENTS_1_3: Final = "https://github.com/mikeiovine/TensorRT-LLM/blob/1b1598c0c25ff230a26e1fde71ad5494b68be14a/tensorrt_llm/llmapi/llm_args.py"

_EXECUTOR: Final = (
    f"{_REPOSITORY}/9521caf4696c1fb79b0f946f0d980f8f0ebd3e64"
    "/tensorrt_llm/_torch/pyexecutor/py_executor.py"
)

_UNPADDED: Final = Captures(
    ranges=((1, 33, 1), (64, 65, 1), (128, 129, 1)), largest=128, doubles_from=256, ends=True
)
_PADDED: Final = Captures(
    ranges=((1, 3, 1), (4, 5, 1), (8, 129, 8)), largest=128, doubles_from=256, ends=True
)
_PIECES: Final = Captures(
    ranges=(
        (1, 3, 1),
        (4, 5, 1),
        (8, 9, 1),
        (16, 17, 1),
        (32, 33, 1),
        (64, 65, 1),
        (128, 129, 1),
        (256, 3073, 256),
    )
)

# allreduceOp.cpp of 1.0: the library above 128 tokens, but for two ranks; below the buffer that
# customAllReduceUtils.h lays out.
_SUMS_1_0: Final = (
    AllReduceRange(
        kind=AllReduceKind.ONE_SHOT, fused=True, ranks=2, most_tokens=128, most_bytes=16 * MEGA
    ),
    AllReduceRange(kind=AllReduceKind.TWO_SHOT, fused=True, ranks=2, most_bytes=16 * MEGA),
    AllReduceRange(
        kind=AllReduceKind.ONE_SHOT, fused=True, ranks=4, most_tokens=128, most_bytes=8 * MEGA
    ),
    AllReduceRange(
        kind=AllReduceKind.ONE_SHOT, fused=True, ranks=8, most_tokens=128, most_bytes=8 * MEGA
    ),
)
# customAllReduceUtils.h: AllReduceBestStrategyTableSM90 and SM100, sums with residual and norm
# behind them: (generation, ranks, width from, width below, most tokens in one shot, in two shots),
# the same for all tokens up to the next power of two.
_TABLE: Final = (
    (9, 2, 1024, 4096, 4095, 0),
    (9, 2, 4096, 0, 8191, 0),
    (9, 4, 2048, 8192, 511, 2047),
    (9, 4, 8192, 0, 255, 0),
    (9, 8, 2048, 4096, 255, 2047),
    (9, 8, 4096, 8192, 127, 0),
    (9, 8, 8192, 0, 63, 0),
    (10, 2, 1024, 8192, 4095, 0),
    (10, 2, 8192, 0, 8191, 0),
    (10, 4, 2048, 4096, 2047, 4095),
    (10, 4, 4096, 8192, 1023, 4095),
    (10, 4, 8192, 0, 511, 4095),
    (10, 8, 2048, 4096, 1023, 8191),
    (10, 8, 4096, 8192, 511, 8191),
    (10, 8, 8192, 0, 255, 8191),
)
_SUMS_1_2: Final = tuple(
    AllReduceRange(
        kind=kind,
        fused=True,
        ranks=ranks,
        generation=generation,
        least_hidden=width,
        below_hidden=below,
        most_tokens=tokens,
        most_bytes=64 * MIB,
    )
    for generation, ranks, width, below, one_shot, two_shot in _TABLE
    for kind, tokens in ((AllReduceKind.ONE_SHOT, one_shot), (AllReduceKind.TWO_SHOT, two_shot))
    if tokens
)

_TUNING: Final = "https://github.com/NVIDIA/TensorRT-LLM/blob/04cba882084a25665e7f80f5bda71b35b9790b6f/tensorrt_llm/bench/build/tuning.py"
_SETTINGS: Final = (
    *option_settings(
        _ARGUMENTS,
        {
            "token_budget": "--max_num_tokens",
            "sequences": "--max_batch_size",
        },
    ),
    option_setting("tuned", "trtllm-bench", _TUNING),
    option_setting("context", "--max_seq_len", _ARGUMENTS),
    *option_settings(
        _ARGUMENTS_1_3,
        {
            "memory": "kv_cache_config.free_gpu_memory_fraction",
            "block": "kv_cache_config.tokens_per_block",
        },
    ),
    kv_format_setting("kv_cache_config.dtype", _ARGUMENTS_1_3),
    option_setting("prefix_cache", "kv_cache_config.enable_block_reuse", _ARGUMENTS_1_3),
    option_setting("chunked_prefill", "enable_chunked_prefill", _ARGUMENTS),
    word_setting(
        "admission",
        "scheduler_config.capacity_scheduler_policy",
        _ARGUMENTS_1_3,
        guaranteed_no_evict={"admission": Admission.WHOLE, "eviction": Eviction.RESERVE},
        max_utilization={"admission": Admission.PROMPT, "eviction": Eviction.PAUSE},
    ),
    *option_settings(
        _ARGUMENTS_1_3,
        {
            "wait_iterations": "batch_wait_timeout_iters",
            "wait_share": "batch_wait_max_tokens_ratio",
        },
    ),
    *option_settings(
        _ARGUMENTS,
        {
            "balance_iterations": "attention_dp_config.enable_balance, timeout_iters",
            "graphs": "cuda_graph_config",
            "graph_sizes": "cuda_graph_config.batch_sizes",
            "graph_max": "cuda_graph_config.max_batch_size",
        },
    ),
    word_setting(
        "graph_padding",
        "cuda_graph_config.enable_padding",
        _ARGUMENTS,
        on={"pads": True, "captures": _PADDED},
        off={"pads": False, "captures": _UNPADDED},
    ),
    *option_settings(
        _ARGUMENTS_1_3,
        {
            "piecewise": "torch_compile_config.enable_piecewise_cuda_graph",
            "piece_sizes": "torch_compile_config.capture_num_tokens",
            "async": "disable_overlap_scheduler",
            "stream_interval": "stream_interval",
        },
    ),
    word_setting(
        "own_sums",
        "allreduce_strategy AUTO, NCCL",
        _ARGUMENTS_1_3,
        on={"fused_all_reduce": True},
        off={"fused_all_reduce": False, "sums": ()},
    ),
    word_setting(
        "symmetric",
        "allreduce_strategy NCCL_SYMMETRIC",
        _ARGUMENTS_1_3,
        on={"symmetric": True, "sums": ()},
        off={"symmetric": False},
    ),
    *option_settings(
        _ARGUMENTS,
        {
            "attention_dp": "enable_attention_dp",
            "expert_parallel": "moe_expert_parallel_size, --ep_size",
        },
    ),
    word_setting(
        "exchange",
        "TRTLLM_FORCE_ALLTOALL_METHOD, TRTLLM_FORCE_COMM_METHOD",
        f"{_V1_2}/tensorrt_llm/_torch/modules/fused_moe/fused_moe_wide_ep.py",
        checked=False,
        notenabled={"exchange": ExpertExchange.GATHERED},
        mnnvl={"exchange": ExpertExchange.ONE_SIDED},
        deepep={"exchange": ExpertExchange.DEEPEP},
    ),
    option_setting("attention", "attn_backend", _ARGUMENTS_1_3),
    option_setting("experts", "moe_config.backend", _ARGUMENTS),
    option_setting(
        "guesses", "speculative_config.num_nextn_predict_layers", _ARGUMENTS, checked=False
    ),
)

V1_2: Final = engine(
    identity_fields("tensorrt-llm-1.2", "1.2.0rc6", engine="tensorrt-llm", released="2025-12"),
    stated(
        f"{_V1_2}/tensorrt_llm/_torch/pyexecutor/scheduler.py",
        batching=Batching.IN_FLIGHT,
        polling=1,
        conservative=1.0,
        off="mixes_decode estimate knows_ends prompt_tokens guessing_sequences tuned_sizes",
        note=(
            "a micro-batch scheduler fills max_num_tokens with decode and prompts that a capacity"
            " scheduler let in"
        ),
    ),
    read(
        _ARGUMENTS_1_3,
        admission=Admission.WHOLE,
        eviction=Eviction.RESERVE,
        note="SchedulerConfig: GUARANTEED_NO_EVICT, first come first served",
    ),
    read(
        _ARGUMENTS_1_3,
        off="wait_iterations wait_share balance_iterations",
        note="batch_wait_* 0; attention_dp_config.enable_balance False (its timeout_iters is 50)",
    ),
    read(
        _ARGUMENTS_1_3,
        token_budget=8192,
        max_sequences=2048,
        off="sizes shared_budget context_tokens",
        note="max_num_tokens, max_batch_size; a rank with attention of its own has them for itself",
    ),
    read(_ARGUMENTS, off="chunked_prefill", note="a prompt longer than max_num_tokens is refused"),
    read(
        _ARGUMENTS_1_3,
        on="prefix_cache",
        block_tokens=32,
        kv_format="auto",
        memory_fraction=0.9,
        note="KvCacheConfig: enable_block_reuse, tokens_per_block, dtype, free_gpu_memory_fraction",
    ),
    stated(
        f"{_V1_2}/tensorrt_llm/_torch/pyexecutor/_util.py",
        memory_rule=MemoryRule.FREE,
        on="graphs_in_share",
        off="reserve",
        logit_bytes=6,
        note=(
            "KvCacheCreator: (total - peak of a run of max_num_tokens prompts, what lies outside"
            " torch among it) x free_gpu_memory_fraction; read in a copy of that time"
        ),
    ),
    stated(
        f"{_V1_2}/tensorrt_llm/_torch/model_config.py",
        on="kv_from_checkpoint",
        note="kv_cache_quant_algo of the checkpoint's hf_quant_config.json where dtype is auto",
    ),
    read(
        _ARGUMENTS,
        on="graphs full_graphs captured_requests",
        off="captured pads largest_captured",
        captures=_UNPADDED,
        note=(
            "CudaGraphConfig: 1 to 32, 64, 128 and powers of two up to max_batch_size 128, no"
            " padding; only for batches of decode"
        ),
    ),
    read(
        _ARGUMENTS_1_3,
        off="piecewise piecewise_captured piecewise_tokens piecewise_latent_tokens piecewise_alone",
        piecewise_captures=_PIECES,
        note=(
            "TorchCompileConfig: powers of two up to 128, multiples of 256 up to 3072; prompts are"
            " launched kernel by kernel otherwise"
        ),
    ),
    read(
        _ARGUMENTS_1_3,
        on="asynchronous asynchronous_guesses",
        stream_interval=1,
        note="disable_overlap_scheduler False; MTP in one model runs with it",
    ),
    stated(
        _EXECUTOR,
        on="stages_wait stage_sequences",
        note=(
            "_forward_step_inter_pp: every rank but the last waits for its event before it goes on;"
            " max_batch_size of each of as many micro batches as there are stages; read in a copy"
            " of the time of 1.0"
        ),
    ),
    stated(
        f"{_V1_2}/cpp/tensorrt_llm/common/customAllReduceUtils.h",
        sums=_SUMS_1_2,
        off="custom_all_reduce_bytes multimem symmetric",
        note=(
            "64 MiB, then one shot, two shots or NCCL by a table; a tuner, where it is on, chooses"
            " by shape near it; read in a copy of that time"
        ),
    ),
    stated(
        f"{_V1_2}/tensorrt_llm/_torch/models/modeling_deepseekv3.py",
        on="fused_all_reduce",
        off="fused_architectures fused_generations",
        note="sums with residual and norm behind attention and experts",
    ),
    read(
        _ARGUMENTS,
        off="attention_dp expert_parallel",
        note="enable_attention_dp False, moe_expert_parallel_size unset: experts cut by tp",
    ),
    stated(
        f"{_V1_2}/tensorrt_llm/_torch/modules/fused_moe/fused_moe_wide_ep.py",
        exchange=ExpertExchange.GATHERED,
        rack_exchange=ExpertExchange.ONE_SIDED,
        note=(
            "select_alltoall_method_type: MNNVL where NVLink joins nodes, attention dp and ep > top"
            " k; else all-gather, reduce-scatter, unless DeepEP is asked for"
        ),
    ),
    read(
        _ARGUMENTS_1_3,
        attention_kernel="trtllm",
        off="attention_choices kernel_blocks",
        note="attn_backend",
    ),
    read(
        _ARGUMENTS,
        expert_kernel="",
        expert_choices=(BackendChoice(name="cutlass"),),
        note="MoeConfig.backend CUTLASS",
    ),
    stated(
        f"{_V1_2}/tensorrt_llm/_torch/modules/attention.py",
        off="absorbed_prefill expanded_tokens absorbed_below guesses",
        on="multi_token",
        note="MLA.forward_context expands prompts; MTPDecodingConfig",
    ),
    settings=_SETTINGS,
)

_ARGUMENTS_1_1: Final = (
    "https://nvidia.github.io/TensorRT-LLM/1.1.0rc5/_modules/tensorrt_llm/llmapi/llm_args.html"
)
V1_0: Final = derive(
    V1_2,
    identity_fields("tensorrt-llm-1.0", "1.0.0", released="2025-09"),
    stated(
        f"{_V1_0}/cpp/tensorrt_llm/thop/allreduceOp.cpp",
        sums=_SUMS_1_0,
        note=(
            "selectImplementation: NCCL above 128 tokens for more than two ranks, above 8 MB (16 MB"
            " for two); read in a copy of that time"
        ),
    ),
    stated(
        _ARGUMENTS_1_1,
        off="wait_iterations wait_share",
        note="batch_wait_timeout_iters came with 1.1",
    ),
)

V1_3: Final = derive(
    V1_2,
    identity_fields("tensorrt-llm-1.3", "1.3.0rc1", released="2026-01"),
    stated(
        _ARGUMENTS_1_3,
        expert_choices=(
            BackendChoice(name="trtllm", generation=10, weights=("nvfp4", "mxfp4"), spread=None),
            BackendChoice(name="deepgemm", generation=10, weights=("fp8",)),
            BackendChoice(name="cutlass"),
        ),
        note="MoeConfig.backend AUTO: by model and device; which one it takes is from memory",
    ),
    read(_ARGUMENTS_1_3, captures=_UNPADDED, note="CudaGraphConfig as in 1.2"),
)

VERSIONS: Final = (V1_0, V1_2, V1_3)
"""Described versions, the oldest first."""
