"""TensorRT-LLM's PyTorch backend: prompts and decode in one batch, as a capacity scheduler lets requests in."""

from __future__ import annotations

from typing import Final

from shardwright.runtime.engines.engine import Admission, Batching, Eviction, ExpertExchange, MemoryRule
from shardwright.runtime.engines.facts import engine, named, stated
from shardwright.runtime.engines.options import sets, switches, words
from shardwright.runtime.engines.rules import Captures, Choice, Kind, SumLimit
from shardwright.units import MEGA

_REPOSITORY: Final = "https://github.com/NVIDIA/TensorRT-LLM/blob"
_V1_0: Final = f"{_REPOSITORY}/v1.0.0"
_ARGUMENTS: Final = f"{_V1_0}/tensorrt_llm/llmapi/llm_args.py"
_SERVE: Final = f"{_V1_0}/tensorrt_llm/commands/serve.py"

# customAllReduceUtils.h: a buffer of at most 16 MB for 2 ranks, 8 MB for more, else NCCL; allreduceOp.cpp decides between the two.
_OWN: Final = (
    SumLimit(kind=Kind.FUSED, ranks=2, most_bytes=16 * MEGA),
    SumLimit(kind=Kind.FUSED, ranks=4, most_bytes=8 * MEGA),
    SumLimit(kind=Kind.FUSED, ranks=8, most_bytes=8 * MEGA),
)
_RANGES: Final = ((1, 32, 1), (32, 33, 1), (64, 65, 1), (128, 129, 1))

_SETTINGS: Final = (
    sets("token_budget", "--max_num_tokens", _SERVE, "token_budget", checked=False),
    sets("sequences", "--max_batch_size", _SERVE, "max_sequences", checked=False),
    sets("context", "--max_seq_len", _SERVE, "context_tokens", checked=False),
    sets("memory", "kv_cache_config.free_gpu_memory_fraction", _ARGUMENTS, "memory_fraction", checked=False),
    sets("block", "kv_cache_config.tokens_per_block", _ARGUMENTS, "block_tokens", checked=False),
    sets("kv", "kv_cache_config.dtype", _ARGUMENTS, "kv_format", checked=False),
    switches("prefix_cache", "kv_cache_config.enable_block_reuse", _ARGUMENTS, "prefix_cache", checked=False),
    switches("chunked_prefill", "enable_chunked_prefill", _ARGUMENTS, "chunked_prefill", checked=False),
    words(
        "admission",
        "scheduler_config.capacity_scheduler_policy",
        _ARGUMENTS,
        checked=False,
        guaranteed_no_evict={"admission": Admission.WHOLE, "eviction": Eviction.RESERVE},
        max_utilization={"admission": Admission.PROMPT, "eviction": Eviction.PAUSE},
    ),
    switches("graphs", "cuda_graph_config", _ARGUMENTS, "graphs", checked=False),
    sets("graph_sizes", "cuda_graph_config.batch_sizes", _ARGUMENTS, "captured", checked=False),
    sets("graph_max", "cuda_graph_config.max_batch_size", _ARGUMENTS, "largest_captured", checked=False),
    words(
        "graph_padding",
        "cuda_graph_config.enable_padding",
        _ARGUMENTS,
        checked=False,
        on={
            "pads": True,
            "captures": Captures(ranges=((1, 2, 1), (2, 3, 1), (4, 5, 1), (8, 129, 8), (192, 0, 64)), largest=128, ends=True),
        },
        off={"pads": False, "captures": Captures(ranges=_RANGES, largest=128, doubles_from=256, ends=True)},
    ),
    switches("piecewise", "torch_compile_config.enable_piecewise_cuda_graph", _ARGUMENTS, "piecewise", checked=False),
    switches("async", "disable_overlap_scheduler", _ARGUMENTS, "asynchronous", checked=False),
    sets("stream_interval", "stream_interval", _ARGUMENTS, "stream_interval", checked=False),
    switches("attention_dp", "enable_attention_dp", _ARGUMENTS, "attention_dp", checked=False),
    sets("attention", "attn_backend", _ARGUMENTS, "attention_kernel", checked=False),
    sets("experts", "moe_config.backend", _ARGUMENTS, "expert_kernel", checked=False),
    sets("guesses", "speculative_config.num_nextn_predict_layers", _ARGUMENTS, "guesses", checked=False),
)

V1_0: Final = engine(
    named("tensorrt-llm-1.0", "1.0.0", engine="tensorrt-llm", released="2025-09"),
    stated(
        f"{_V1_0}/tensorrt_llm/_torch/pyexecutor/scheduler.py",
        batching=Batching.IN_FLIGHT,
        admission=Admission.WHOLE,
        eviction=Eviction.RESERVE,
        off="mixes_decode estimate knows_ends prompt_tokens",
        polling=1,
        note="capacity scheduler GUARANTEED_NO_EVICT, then a micro-batch scheduler under max_num_tokens",
    ),
    stated(
        _SERVE,
        token_budget=8192,
        max_sequences=2048,
        off="sizes shared_budget context_tokens",
        note="BuildConfig's max_num_tokens and max_batch_size; a rank with attention of its own has them for itself",
    ),
    stated(
        _ARGUMENTS,
        off="chunked_prefill kv_from_checkpoint graphs_in_share reserve kernel_blocks",
        on="prefix_cache",
        block_tokens=32,
        kv_format="auto",
        memory_fraction=0.9,
        memory_rule=MemoryRule.FREE,
    ),
    stated(
        _ARGUMENTS,
        on="graphs captured_requests",
        off="captured pads largest_captured piecewise piecewise_captures piecewise_tokens piecewise_latent_tokens piecewise_alone",
        captures=Captures(ranges=_RANGES, largest=128, doubles_from=256, ends=True),
        note="CudaGraphConfig: 1 to 31, 32, 64, 128 and powers of two, no padding",
    ),
    stated(
        _ARGUMENTS,
        on="asynchronous asynchronous_guesses",
        stream_interval=1,
        note="disable_overlap_scheduler is off; the one-model MTP runs with it",
    ),
    stated(
        f"{_V1_0}/cpp/tensorrt_llm/thop/allreduceOp.cpp",
        sums=_OWN,
        on="fused_all_reduce",
        off="custom_all_reduce_bytes multimem fused_tokens fused_architectures fused_generations",
    ),
    stated(_ARGUMENTS, off="attention_dp expert_parallel", exchange=ExpertExchange.GATHERED, note="moe_expert_parallel_size 1"),
    stated(
        _ARGUMENTS,
        attention_kernel="TRTLLM",
        attention_choices=(),
        expert_kernel="",
        expert_choices=(Choice(name="CUTLASS"),),
    ),
    stated(
        f"{_V1_0}/tensorrt_llm/_torch/modules/attention.py", off="absorbed_prefill expanded_tokens absorbed_below guesses", on="multi_token"
    ),
    settings=_SETTINGS,
)

VERSIONS: Final = (V1_0,)
"""Described versions, the oldest first."""
