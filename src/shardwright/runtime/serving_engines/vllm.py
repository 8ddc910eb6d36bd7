"""vLLM by version: decode of all running requests, then chunks of prompts, under a token budget."""

from __future__ import annotations

from typing import Final

from shardwright.runtime.serving_engines.default_rules_by_device import (
    AllReduceKind,
    AllReduceRange,
    BackendChoice,
    Captures,
    SizeRow,
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
from shardwright.units import MIB

_REPOSITORY: Final = "https://github.com/vllm-project/vllm/blob"
_V0_12: Final = f"{_REPOSITORY}/v0.12.0/vllm"
_ARGUMENTS: Final = f"{_V0_12}/engine/arg_utils.py"

_SIZES: Final = (
    SizeRow(generation=8, token_budget=2048, max_sequences=256),
    SizeRow(below_gib=70, token_budget=2048, max_sequences=256),
    SizeRow(token_budget=8192, max_sequences=1024),
)
# csrc/custom_all_reduce.cuh decides between one and two shots, all_reduce_utils.py up to which size
# either is taken.
_OWN: Final = (
    AllReduceRange(kind=AllReduceKind.ONE_SHOT, ranks=2, generation=9, most_bytes=64 * MIB),
    AllReduceRange(kind=AllReduceKind.ONE_SHOT, ranks=2, generation=10, most_bytes=2 * MIB),
    AllReduceRange(kind=AllReduceKind.ONE_SHOT, ranks=4, most_bytes=MIB // 2 - 1),
    AllReduceRange(kind=AllReduceKind.TWO_SHOT, ranks=4, generation=9, most_bytes=32 * MIB),
    AllReduceRange(kind=AllReduceKind.TWO_SHOT, ranks=4, generation=10, most_bytes=2 * MIB),
    AllReduceRange(kind=AllReduceKind.ONE_SHOT, ranks=8, most_bytes=MIB // 4 - 1),
    AllReduceRange(kind=AllReduceKind.TWO_SHOT, ranks=8, generation=9, most_bytes=MIB // 4),
    AllReduceRange(kind=AllReduceKind.TWO_SHOT, ranks=8, generation=10, most_bytes=MIB),
)
# symm_mem.py: the switch adds for 8 ranks, on Hopper for 4; others scatter and gather in symmetric
# buffers.
_SYMMETRIC: Final = (
    AllReduceRange(kind=AllReduceKind.MULTIMEM, ranks=8, generation=9, most_bytes=64 * MIB),
    AllReduceRange(kind=AllReduceKind.MULTIMEM, ranks=8, generation=10, most_bytes=128 * MIB),
    AllReduceRange(kind=AllReduceKind.MULTIMEM, ranks=4, generation=9, most_bytes=32 * MIB),
    AllReduceRange(kind=AllReduceKind.TWO_SHOT, ranks=4, generation=10, most_bytes=32 * MIB),
    AllReduceRange(kind=AllReduceKind.TWO_SHOT, ranks=2, generation=10, most_bytes=8 * MIB),
)
_FUSED: Final = tuple(
    AllReduceRange(kind=kind, fused=True, ranks=ranks, generation=generation, most_bytes=limit)
    for generation, ranks, one_shot, most in (
        (9, 2, 32 * MIB, 64 * MIB),
        (9, 4, 2 * MIB, 2 * MIB),
        (9, 8, MIB // 2, MIB // 2),
        (10, 2, 32 * MIB, 64 * MIB),
        (10, 4, 4 * MIB, 32 * MIB),
        (10, 8, MIB, MIB),
    )
    for kind, limit in ((AllReduceKind.ONE_SHOT, one_shot), (AllReduceKind.TWO_SHOT, most))
)

_RANGES: Final = ((1, 3, 1), (4, 5, 1), (8, 256, 8), (256, 0, 16))
_ATTENTION: Final = (
    BackendChoice(name="flash_attn_mla", latent=True),
    BackendChoice(name="flashinfer", generation=10, latent=False),
    BackendChoice(name="flash_attn", latent=False),
)
_MXFP4: Final = (
    BackendChoice(name="flashinfer-mxfp4-bf16", generation=10, weights=("mxfp4",)),
    BackendChoice(name="triton", generation=9, weights=("mxfp4",)),
)
_EXPERTS: Final = (
    *_MXFP4,
    BackendChoice(name="flashinfer-trtllm", generation=10, weights=("fp8", "nvfp4")),
    BackendChoice(name="flashinfer-cutlass", generation=9, spread=True, weights=("fp8",)),
    BackendChoice(name="triton", generation=9, weights=("fp8",)),
    BackendChoice(name="marlin", weights=("nvfp4", "int4")),
    BackendChoice(name="triton"),
)

_SETTINGS: Final = (
    *option_settings(
        _ARGUMENTS,
        {
            "token_budget": "--max-num-batched-tokens",
            "sequences": "--max-num-seqs",
            "context": "--max-model-len",
            "memory": "--gpu-memory-utilization",
            "block": "--block-size",
        },
    ),
    kv_format_setting("--kv-cache-dtype", _ARGUMENTS),
    *option_settings(
        _ARGUMENTS,
        {
            "prefix_cache": "--enable-prefix-caching, --no-enable-prefix-caching",
            "chunked_prefill": "--enable-chunked-prefill, --no-enable-chunked-prefill",
            "graphs": "--enforce-eager",
        },
    ),
    option_setting(
        "full_graphs",
        "--compilation-config cudagraph_mode=PIECEWISE",
        f"{_V0_12}/config/compilation.py",
    ),
    *option_settings(
        _ARGUMENTS,
        {
            "graph_sizes": "--cudagraph-capture-sizes",
            "graph_max": "--max-cudagraph-capture-size",
        },
    ),
    option_setting(
        "piecewise",
        "--compilation-config cudagraph_mode=FULL_DECODE_ONLY",
        f"{_V0_12}/config/compilation.py",
    ),
    *option_settings(
        _ARGUMENTS,
        {
            "async": "--async-scheduling, --no-async-scheduling",
            "stream_interval": "--stream-interval",
        },
    ),
    option_setting(
        "fused_sums",
        "--compilation-config pass_config.fuse_allreduce_rms",
        f"{_V0_12}/config/compilation.py",
    ),
    word_setting(
        "own_sums",
        "--disable-custom-all-reduce",
        _ARGUMENTS,
        on={"sums": (*_FUSED, *_OWN, *_SYMMETRIC)},
        off={"sums": (*_FUSED, *_SYMMETRIC)},
    ),
    *option_settings(
        f"{_V0_12}/envs.py",
        {
            "multimem": "VLLM_ALLREDUCE_USE_SYMM_MEM",
            "symmetric": "VLLM_USE_NCCL_SYMM_MEM",
        },
    ),
    option_setting("expert_parallel", "--enable-expert-parallel", _ARGUMENTS),
    word_setting(
        "exchange",
        "--all2all-backend",
        f"{_V0_12}/config/parallel.py",
        allgather_reducescatter={"exchange": ExpertExchange.GATHERED},
        naive={"exchange": ExpertExchange.GATHERED},
        pplx={"exchange": ExpertExchange.ALL_TO_ALL},
        deepep_high_throughput={"exchange": ExpertExchange.DEEPEP, "graphs": False},
        deepep_low_latency={"exchange": ExpertExchange.DEEPEP},
        flashinfer_all2allv={"exchange": ExpertExchange.ONE_SIDED},
    ),
    option_setting(
        "attention", "VLLM_ATTENTION_BACKEND, --attention-backend", f"{_V0_12}/platforms/cuda.py"
    ),
    option_setting("experts", "VLLM_USE_FLASHINFER_MOE_*", f"{_V0_12}/envs.py"),
    option_setting(
        "guesses",
        "--speculative-config num_speculative_tokens",
        f"{_V0_12}/config/speculative.py",
        checked=False,
    ),
)

V0_12: Final = engine(
    identity_fields("vllm-0.12", "0.12.0", engine="vllm", released="2025-12"),
    read(
        f"{_V0_12}/v1/core/sched/scheduler.py",
        batching=Batching.MIXED,
        admission=Admission.CHUNK,
        eviction=Eviction.PREEMPT,
        off=(
            "mixes_decode estimate knows_ends prompt_tokens wait_iterations wait_share"
            " balance_iterations guessing_sequences tuned_sizes stage_sequences stages_wait"
        ),
        polling=1,
        conservative=1.0,
        note=(
            "schedule: running requests first, each as many tokens as it lacks, then waiting ones"
            " while tokens, requests and blocks last; where a block is lacking the running request"
            " that came last is preempted and computed anew"
        ),
    ),
    read(
        _ARGUMENTS,
        sizes=_SIZES,
        off="token_budget max_sequences shared_budget",
        note=(
            "get_batch_defaults of the OpenAI server: 8192 and 1024 on devices of 70 GiB and more"
            " that are no A100, else 2048 and 256; each data-parallel rank has its own"
        ),
    ),
    read(
        _ARGUMENTS,
        off="context_tokens",
        on="chunked_prefill prefix_cache",
        note="on for all generative models that support them",
    ),
    read(
        f"{_V0_12}/platforms/cuda.py",
        block_tokens=16,
        kernel_blocks=(
            ("cutlass_mla", (128,)),
            ("flashmla", (64,)),
            ("flash_attn_mla", (64,)),
            ("flashinfer_mla", (32, 64)),
        ),
        note=(
            "16; 128 for CUTLASS_MLA, 64 elsewhere with latent attention (FlashMLA's, whichever"
            " kernel then runs)"
        ),
    ),
    read(
        f"{_V0_12}/config/cache.py",
        kv_format="auto",
        off="kv_from_checkpoint",
        note="auto = the model's dtype",
    ),
    read(
        f"{_V0_12}/v1/worker/gpu_worker.py",
        memory_rule=MemoryRule.TOTAL,
        memory_fraction=0.9,
        off="graphs_in_share reserve",
        note=(
            "gpu_memory_utilization x total - weights - what else is allocated - peak of a dry run;"
            " graphs come on top"
        ),
    ),
    stated(
        f"{_V0_12}/v1/sample/ops/topk_topp_sampler.py",
        logit_bytes=27,
        note=(
            "_dummy_sampler_run of max_num_seqs requests with top-k and top-p: logits in 16 and 32"
            " bits, sorted values and their 64-bit places, their probabilities, a mask, and what"
            " they are scattered to; read in texts about it. Later versions choose in a Triton"
            " kernel that holds less; the first of them was not found"
        ),
    ),
    read(
        f"{_V0_12}/config/vllm.py",
        captures=Captures(ranges=_RANGES, largest=512, a_sequence=2),
        on="graphs full_graphs pads piecewise",
        off=(
            "captured captured_requests largest_captured piecewise_captures piecewise_captured"
            " piecewise_tokens piecewise_latent_tokens piecewise_alone"
        ),
        note=(
            "_set_cudagraph_sizes: 1, 2, 4, multiples of 8 below 256, then of 16 up to min(2"
            " max_num_seqs, 512), in tokens; FULL_AND_PIECEWISE: one graph for decode, pieces"
            " between attention cores for batches with prompts, both at these sizes"
        ),
    ),
    read(
        f"{_V0_12}/config/scheduler.py",
        off="asynchronous asynchronous_guesses",
        stream_interval=1,
        note="async_scheduling is off where it is not asked for, and refuses stages",
    ),
    read(
        f"{_V0_12}/distributed/device_communicators/all_reduce_utils.py",
        sums=(*_FUSED, *_OWN, *_SYMMETRIC),
        off="custom_all_reduce_bytes symmetric",
        on="multimem",
        note=(
            "CUSTOM_ALL_REDUCE_MAX_SIZES, then SYMM_MEM_ALL_REDUCE_MAX_SIZES (symm_mem.py;"
            " VLLM_ALLREDUCE_USE_SYMM_MEM is on), then NCCL, in the order of"
            " cuda_communicator.all_reduce; one shot below 512 KiB for 4 ranks, 256 KiB for 8"
        ),
    ),
    read(
        f"{_V0_12}/config/vllm.py",
        off="fused_all_reduce fused_architectures fused_generations",
        note="fuse_allreduce_rms is False at every optimisation level",
    ),
    read(
        f"{_V0_12}/config/parallel.py",
        on="attention_dp",
        off="expert_parallel",
        exchange=ExpertExchange.GATHERED,
        rack_exchange=ExpertExchange.GATHERED,
        note=(
            "data-parallel ranks with experts over all of them; experts are cut like dense layers"
            " unless --enable-expert-parallel; allgather_reducescatter"
        ),
    ),
    read(
        f"{_V0_12}/platforms/cuda.py",
        attention_kernel="",
        attention_choices=(
            BackendChoice(name="cutlass_mla", generation=10, latent=True),
            *_ATTENTION,
        ),
        note=(
            "_get_backend_priorities; a model with attention sinks, or a cache in fp8, may be"
            " refused by the first"
        ),
    ),
    read(
        f"{_V0_12}/model_executor/layers/quantization/mxfp4.py",
        expert_kernel="",
        expert_choices=(*_MXFP4, BackendChoice(name="triton")),
        note=(
            "get_mxfp4_backend; other formats are fused_moe's Triton kernels unless an environment"
            " variable says otherwise"
        ),
    ),
    read(
        f"{_V0_12}/v1/attention/backends/mla/common.py",
        off="absorbed_prefill absorbed_below",
        expanded_tokens=65536,
        note=(
            "prompts expand keys and values; cached context in pieces of at most 64 Ki tokens"
            " (determine_chunked_prefill_workspace_size)"
        ),
    ),
    stated(f"{_V0_12}/config/speculative.py", off="guesses", on="multi_token", note="method mtp"),
    settings=_SETTINGS,
)

_V0_11: Final = f"{_REPOSITORY}/v0.11.2/vllm"
V0_11: Final = derive(
    V0_12,
    identity_fields("vllm-0.11", "0.11.2", released="2025-11"),
    read(
        f"{_V0_11}/config/scheduler.py",
        off="asynchronous asynchronous_guesses",
        note="async_scheduling False",
    ),
    read(
        f"{_V0_11}/config/compilation.py",
        off="fused_all_reduce fused_architectures fused_generations",
        note="enable_fi_allreduce_fusion False; the sizes are those of 0.12",
    ),
)

_V0_15: Final = f"{_REPOSITORY}/v0.15.1/vllm"
V0_15: Final = derive(
    V0_12,
    identity_fields("vllm-0.15", "0.15.1", released="2026-02"),
    read(
        f"{_V0_15}/config/vllm.py",
        on="asynchronous asynchronous_guesses",
        note=(
            "async_scheduling on where nothing is said: not with guesses of other kinds than"
            " EAGLE's and MTP's"
        ),
    ),
    read(
        f"{_V0_15}/config/vllm.py",
        captures=Captures(ranges=_RANGES, largest=512, a_sequence=2, guessed=True),
        note="min(2 max_num_seqs x (guesses + 1), 512)",
    ),
    read(
        f"{_V0_15}/engine/arg_utils.py",
        on="kv_from_checkpoint",
        note="resolve_kv_cache_dtype_string: kv_cache_quant_algo of the checkpoint",
    ),
    read(
        f"{_V0_15}/platforms/cuda.py",
        attention_choices=(
            BackendChoice(name="flashinfer_mla", generation=10, latent=True),
            *_ATTENTION,
        ),
        note="_get_backend_priorities",
    ),
    read(
        f"{_V0_15}/model_executor/layers/fused_moe/oracle/fp8.py",
        expert_choices=_EXPERTS,
        note=(
            "priority of the backends that support a layer: FlashInfer's TensorRT-LLM kernels on"
            " Blackwell, on Hopper Triton for blocks of 128 and FlashInfer's CUTLASS where experts"
            " are spread"
        ),
    ),
)

_V0_16: Final = f"{_REPOSITORY}/v0.16.0/vllm"
V0_16: Final = derive(
    V0_15,
    identity_fields("vllm-0.16", "0.16.0", released="2026-02"),
    read(
        f"{_V0_16}/config/vllm.py",
        on="asynchronous asynchronous_guesses",
        off="fused_all_reduce",
        captures=Captures(ranges=_RANGES, largest=512, a_sequence=2, guessed=True),
        note="as 0.15",
    ),
)

_V0_18: Final = f"{_REPOSITORY}/v0.18.0/vllm"
V0_18: Final = derive(
    V0_16,
    identity_fields("vllm-0.18", "0.18.0", released="2026-03"),
    read(
        f"{_V0_18}/config/vllm.py",
        on="fused_all_reduce",
        fused_generations=(9, 10),
        note=(
            "enable_allreduce_rms_fusion: tp > 1 on Hopper and Blackwell with FlashInfer, no data"
            " parallelism and no stages"
        ),
    ),
)

VERSIONS: Final = (V0_11, V0_12, V0_15, V0_16, V0_18)
"""Described versions, the oldest first."""
