"""SGLang: prompts alone in chunks, as long as any can be let in, else a token of each running request."""

from __future__ import annotations

from typing import Final

from shardwright.runtime.engines.engine import Admission, Batching, Eviction, ExpertExchange, MemoryRule
from shardwright.runtime.engines.facts import derive, engine, named, read, stated
from shardwright.runtime.engines.options import sets, switches, words
from shardwright.runtime.engines.rules import Captures, Choice, Estimate, Kind, Reserve, SizeRow, SumLimit
from shardwright.units import GIB, KIB, MIB

_REPOSITORY: Final = "https://github.com/sgl-project/sglang/blob"
_V0_5_9: Final = f"{_REPOSITORY}/v0.5.9/python/sglang/srt"
_ARGUMENTS: Final = f"{_V0_5_9}/server_args.py"

# max_running_requests is 512 x cached tokens / context, at least 2048 and at most 4096: 2048 but for caches of four contexts and more.
_SEQUENCES: Final = 2048
_ROWS: Final = (
    SizeRow(below_gib=20, token_budget=2048, max_sequences=_SEQUENCES, largest_captured=8),
    SizeRow(below_gib=35, token_budget=2048, max_sequences=_SEQUENCES, largest_captured=80, narrow_captured=24, narrow_tp=4),
    SizeRow(below_gib=60, token_budget=4096, max_sequences=_SEQUENCES, largest_captured=160, narrow_captured=32, narrow_tp=4),
    SizeRow(below_gib=160, token_budget=8192, max_sequences=_SEQUENCES, largest_captured=512, narrow_captured=256, narrow_tp=4),
    SizeRow(token_budget=16384, max_sequences=_SEQUENCES, largest_captured=512),
)
_RESERVE: Final = Reserve(
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
_CAPTURES: Final = Captures(
    ranges=((1, 2, 1), (2, 3, 1), (4, 13, 4), (16, 257, 8), (272, 512, 16), (512, 0, 32)),
    guessing_ranges=((1, 9, 1), (10, 33, 2), (40, 65, 4), (72, 257, 8), (272, 0, 16)),
)
_PIECES: Final = Captures(
    ranges=((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, 0, 512)),
)
# sgl-kernel's custom_all_reduce.cuh decides between one and two shots; below 8 MiB either is taken, where NVLink joins all.
_OWN: Final = (
    SumLimit(kind=Kind.ONE_SHOT, ranks=2, most_bytes=8 * MIB),
    SumLimit(kind=Kind.ONE_SHOT, ranks=4, most_bytes=512 * KIB - 1),
    SumLimit(kind=Kind.ONE_SHOT, ranks=8, most_bytes=256 * KIB - 1),
    SumLimit(kind=Kind.TWO_SHOT, ranks=4, most_bytes=8 * MIB),
    SumLimit(kind=Kind.TWO_SHOT, ranks=8, most_bytes=8 * MIB),
)
_SWITCH: Final = (
    SumLimit(kind=Kind.MULTIMEM, ranks=2, most_bytes=64 * MIB),
    SumLimit(kind=Kind.MULTIMEM, ranks=4, most_bytes=64 * MIB),
    SumLimit(kind=Kind.MULTIMEM, ranks=8, most_bytes=128 * MIB),
)
# 16 384 x 7168 bf16 numbers hold any 2048 tokens: tokens limit it, not bytes.
_FUSED: Final = (SumLimit(kind=Kind.FUSED, most_bytes=2048 * 16384 * 2),)

_SETTINGS: Final = (
    sets("token_budget", "--chunked-prefill-size", _ARGUMENTS, "token_budget"),
    sets("sequences", "--max-running-requests", _ARGUMENTS, "max_sequences"),
    sets("prompt_tokens", "--max-prefill-tokens", _ARGUMENTS, "prompt_tokens"),
    sets("context", "--context-length", _ARGUMENTS, "context_tokens"),
    sets("memory", "--mem-fraction-static", _ARGUMENTS, "memory_fraction"),
    sets("block", "--page-size", _ARGUMENTS, "block_tokens"),
    sets("kv", "--kv-cache-dtype", _ARGUMENTS, "kv_format"),
    switches("prefix_cache", "--disable-radix-cache", _ARGUMENTS, "prefix_cache"),
    switches("mixed_chunk", "--enable-mixed-chunk", _ARGUMENTS, "mixes_decode"),
    switches("graphs", "--disable-cuda-graph", _ARGUMENTS, "graphs"),
    sets("graph_sizes", "--cuda-graph-bs", _ARGUMENTS, "captured"),
    sets("graph_max", "--cuda-graph-max-bs", _ARGUMENTS, "largest_captured"),
    switches("graph_padding", "--disable-cuda-graph-padding", _ARGUMENTS, "pads"),
    switches("piecewise", "--enable-piecewise-cuda-graph", _ARGUMENTS, "piecewise"),
    switches("async", "--disable-overlap-schedule", _ARGUMENTS, "asynchronous"),
    sets("polling", "--scheduler-recv-interval", _ARGUMENTS, "polling"),
    sets("stream_interval", "--stream-interval", _ARGUMENTS, "stream_interval"),
    words(
        "fused_sums",
        "--enable-flashinfer-allreduce-fusion",
        _ARGUMENTS,
        on={"fused_all_reduce": True, "fused_architectures": ()},
        off={"fused_all_reduce": False},
    ),
    words(
        "own_sums", "--disable-custom-all-reduce", _ARGUMENTS, on={"sums": (*_FUSED, *_OWN, *_SWITCH)}, off={"sums": (*_FUSED, *_SWITCH)}
    ),
    switches("multimem", "--enable-torch-symm-mem", _ARGUMENTS, "multimem"),
    switches("attention_dp", "--enable-dp-attention", _ARGUMENTS, "attention_dp"),
    words(
        "exchange",
        "--moe-a2a-backend",
        _ARGUMENTS,
        none={"exchange": ExpertExchange.GATHERED},
        deepep={"exchange": ExpertExchange.DEEPEP},
        mooncake={"exchange": ExpertExchange.DEEPEP},
        flashinfer={"exchange": ExpertExchange.ONE_SIDED},
    ),
    sets("attention", "--attention-backend", _ARGUMENTS, "attention_kernel"),
    sets("experts", "--moe-runner-backend", _ARGUMENTS, "expert_kernel"),
    sets("guesses", "--speculative-num-steps", _ARGUMENTS, "guesses"),
)

V0_5_9: Final = engine(
    named("sglang-0.5.9", "0.5.9", engine="sglang", released="2026-02"),
    read(
        f"{_V0_5_9}/managers/scheduler.py",
        batching=Batching.PREFILL_FIRST,
        admission=Admission.ESTIMATED,
        eviction=Eviction.RETRACT,
        off="mixes_decode",
        note="get_next_batch_to_run: a batch of prompts where any can be let in, else decode; nobody is let in once batch_is_full",
    ),
    read(
        f"{_V0_5_9}/managers/schedule_policy.py",
        on="knows_ends",
        prompt_tokens=16384,
        note="PrefillAdder: whole prompts, the last one cut, up to chunked_prefill_size, and max_prefill_tokens beyond the first; "
        "add_one_req_ignore_eos where answers ignore the end and the radix cache is off",
    ),
    read(
        f"{_V0_5_9}/environ.py",
        estimate=Estimate(first=0.7, least=0.7 * 0.14, steps=600, retract_steps=20, clip=4096),
        note="SGLANG_INIT_NEW_TOKEN_RATIO x schedule_conservativeness, MIN_NEW_TOKEN_RATIO_FACTOR, NEW_TOKEN_RATIO_DECAY_STEPS, "
        "RETRACT_DECODE_STEPS, CLIP_MAX_NEW_TOKENS_ESTIMATION",
    ),
    read(
        _ARGUMENTS,
        sizes=_ROWS,
        off="token_budget max_sequences context_tokens",
        on="shared_budget",
        note="_handle_gpu_memory_settings; with attention of their own dp ranks divide chunk and requests among them; "
        "max_running_requests: model_runner_kv_cache_mixin.py, 2048 to 4096",
    ),
    read(_ARGUMENTS, on="chunked_prefill prefix_cache", block_tokens=1, note="radix cache; page_size 1 unless the kernel wants another"),
    read(
        _ARGUMENTS,
        kernel_blocks=(
            ("trtllm_mla", (32, 64)),
            ("trtllm_mha", (16, 32, 64)),
            ("flashmla", (64,)),
            ("cutlass_mla", (128,)),
            ("nsa", (64,)),
        ),
    ),
    stated(
        f"{_V0_5_9}/model_executor/model_runner.py",
        kv_format="auto",
        on="kv_from_checkpoint",
        note="auto: kv_cache_quant_algo of the checkpoint, else the model's dtype; sparse latent attention is fp8 on Blackwell",
    ),
    read(
        f"{_V0_5_9}/model_executor/model_runner_kv_cache_mixin.py",
        memory_rule=MemoryRule.STATIC,
        note="cache = free after loading - free before loading x (1 - mem_fraction_static)",
    ),
    read(
        _ARGUMENTS,
        memory_fraction=0.0,
        off="graphs_in_share",
        reserve=_RESERVE,
        note="_handle_gpu_memory_settings: reserved_mem in MiB from chunk, captured size, devices, ranks",
    ),
    read(
        _ARGUMENTS,
        captures=_CAPTURES,
        on="graphs pads captured_requests",
        off="captured largest_captured",
        note="_generate_cuda_graph_batch_sizes; requests, each with its draft tokens",
    ),
    read(
        _ARGUMENTS,
        off="piecewise piecewise_tokens piecewise_alone",
        piecewise_captures=_PIECES,
        piecewise_latent_tokens=2048,
        note="enable_piecewise_cuda_graph is an option here; up to the chunk, 2048 with latent attention",
    ),
    read(
        _ARGUMENTS,
        on="asynchronous",
        off="asynchronous_guesses",
        note="overlap schedule; with EAGLE only under SGLANG_ENABLE_SPEC_V2",
    ),
    read(
        f"{_V0_5_9}/managers/scheduler_recv_skipper.py",
        polling=1,
        stream_interval=1,
        note="scheduler_recv_interval: an iteration with prompts weighs 1000, one of decode 1; not with attention dp",
    ),
    read(
        f"{_V0_5_9}/distributed/device_communicators/custom_all_reduce.py",
        sums=(*_FUSED, *_OWN, *_SWITCH),
        off="custom_all_reduce_bytes multimem",
        note="up to 8 MiB on NVLink; symmetric memory only with enable_torch_symm_mem",
    ),
    read(
        _ARGUMENTS,
        on="fused_all_reduce",
        fused_architectures=(
            "DeepseekV3ForCausalLM",
            "GptOssForCausalLM",
            "Glm4MoeForCausalLM",
            "Glm4MoeLiteForCausalLM",
            "Qwen3MoeForCausalLM",
            "KimiK25ForConditionalGeneration",
        ),
        fused_generations=(9, 10),
        note="FlashInfer's TensorRT-LLM fusion on one node, no attention dp, no all-to-all",
    ),
    read(f"{_V0_5_9}/layers/communicator.py", fused_tokens=2048, note="FUSE_ALLREDUCE_MAX_BATCH_SIZE"),
    read(
        _ARGUMENTS,
        off="attention_dp expert_parallel",
        exchange=ExpertExchange.GATHERED,
        note="enable_dp_attention, ep_size 1, moe_a2a_backend none",
    ),
    read(
        _ARGUMENTS,
        attention_kernel="",
        attention_choices=(
            Choice(
                name="trtllm_mla", generation=10, latent=True, architectures=("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration")
            ),
            Choice(name="flashinfer", generation=10, latent=True),
            Choice(name="fa3", generation=9),
            Choice(name="trtllm_mha", generation=10, latent=False),
            Choice(name="flashinfer", latent=False),
            Choice(name="triton", latent=True),
        ),
        note="_handle_attention_backend_compatibility, _handle_model_specific_adjustments",
    ),
    read(
        _ARGUMENTS,
        expert_kernel="",
        expert_choices=(
            Choice(
                name="flashinfer_trtllm",
                generation=10,
                weights=("fp8", "nvfp4"),
                architectures=("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration", "GlmMoeDsaForCausalLM"),
            ),
            Choice(name="flashinfer_mxfp4", generation=10, weights=("mxfp4",)),
            Choice(name="triton_kernel", weights=("mxfp4",)),
            Choice(name="triton"),
        ),
        note="_handle_model_specific_adjustments; auto is Triton's fused experts elsewhere",
    ),
    read(
        f"{_V0_5_9}/models/deepseek_common/attention_backend_handler.py",
        off="absorbed_prefill",
        expanded_tokens=128 * 1024,
        absorbed_below=8192,
        note="prompts expand keys and values, cached context in pieces of 128 Ki tokens; absorbed where less than "
        "SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD tokens, but any, are cached",
    ),
    read(_ARGUMENTS, off="guesses", on="multi_token", note="speculative_algorithm EAGLE on the model's own MTP layer (NEXTN)"),
    settings=_SETTINGS,
)

_V0_5_6: Final = f"{_REPOSITORY}/v0.5.6/python/sglang/srt"
V0_5_6: Final = derive(
    V0_5_9,
    named("sglang-0.5.6", "0.5.6", released="2025-12"),
    read(
        f"{_V0_5_6}/server_args.py",
        fused_architectures=("DeepseekV3ForCausalLM", "GptOssForCausalLM"),
        fused_generations=(10,),
        note="on Blackwell, one node, no attention dp; elsewhere only where it is asked for",
    ),
    read(
        f"{_V0_5_6}/server_args.py",
        attention_choices=(
            Choice(name="trtllm_mla", generation=10, latent=True, architectures=("DeepseekV3ForCausalLM",)),
            Choice(name="flashinfer", generation=10, latent=True),
            Choice(name="trtllm_mha", generation=10, architectures=("GptOssForCausalLM",)),
            Choice(name="fa3", generation=9),
            Choice(name="flashinfer", latent=False),
            Choice(name="triton", latent=True),
        ),
        note="_handle_attention_backend_compatibility: fa3 on Hopper, FlashInfer on Blackwell, and what a model asks for",
    ),
    read(
        f"{_V0_5_6}/server_args.py",
        piecewise_latent_tokens=0,
        note="piecewise graphs, where they are asked for, up to piecewise_cuda_graph_max_tokens whatever the attention",
    ),
)

VERSIONS: Final = (V0_5_6, V0_5_9)
"""Described versions, the oldest first."""
