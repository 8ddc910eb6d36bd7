"""SGLang by version: prompts alone in chunks while any can be admitted, else decode."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.runtime.serving_engines.default_rules_by_device import (
    BackendChoice,
    Captures,
    Estimate,
    Reserve,
    SizeRow,
)
from shardwright.runtime.serving_engines.engine_from_sourced_statements import (
    derive,
    engine,
    identity_fields,
    read,
    stated,
)
from shardwright.runtime.serving_engines.engine_options import option_setting
from shardwright.runtime.serving_engines.serving_engine import (
    Admission,
    Batching,
    Eviction,
    ExpertExchange,
    MemoryRule,
)
from shardwright.runtime.serving_engines.sglang_default_tables import (
    ATTENTION,
    CAPTURES,
    EARLY_ATTENTION,
    FUSED,
    FUSED_MODELS,
    KIMI,
    OWN,
    PIECES,
    REPOSITORY,
    RESERVE,
    ROWS,
    SEQUENCES,
    SETTINGS,
    SYMMETRIC,
    V0_5_9_TREE,
)
from shardwright.units import GIB

_ARGUMENTS: Final = f"{V0_5_9_TREE}/server_args.py"

V0_5_9: Final = engine(
    identity_fields("sglang-0.5.9", "0.5.9", engine="sglang", released="2026-02"),
    read(
        f"{V0_5_9_TREE}/managers/scheduler.py",
        batching=Batching.PREFILL_FIRST,
        admission=Admission.ESTIMATED,
        eviction=Eviction.RETRACT,
        off="mixes_decode wait_iterations wait_share balance_iterations",
        note=(
            "get_next_batch_to_run: a batch of prompts where any can be let in, else decode; nobody"
            " is let in once batch_is_full"
        ),
    ),
    read(
        f"{V0_5_9_TREE}/managers/schedule_policy.py",
        on="knows_ends",
        prompt_tokens=16384,
        note=(
            "PrefillAdder: whole prompts, the last one cut, up to chunked_prefill_size, and"
            " max_prefill_tokens beyond the first; add_one_req_ignore_eos where answers ignore the"
            " end and the radix cache is off"
        ),
    ),
    read(
        f"{V0_5_9_TREE}/environ.py",
        estimate=Estimate(
            first=0.7, least=0.7 * 0.14, steps=600, retract_steps=20, clip=4096, shared=0.3
        ),
        conservative=1.0,
        note=(
            "SGLANG_INIT_NEW_TOKEN_RATIO x schedule_conservativeness, MIN_NEW_TOKEN_RATIO_FACTOR,"
            " NEW_TOKEN_RATIO_DECAY_STEPS, RETRACT_DECODE_STEPS, CLIP_MAX_NEW_TOKENS_ESTIMATION;"
            " conservativeness x 0.3 with attention dp (server_args.py)"
        ),
    ),
    read(
        _ARGUMENTS,
        sizes=ROWS,
        off="token_budget max_sequences context_tokens tuned_sizes stage_sequences stages_wait",
        on="shared_budget",
        guessing_sequences=48,
        note=(
            "_handle_gpu_memory_settings; with attention of their own dp ranks divide chunk and"
            " requests among them; max_running_requests: model_runner_kv_cache_mixin.py, 2048 to"
            " 4096"
        ),
    ),
    read(
        _ARGUMENTS,
        on="chunked_prefill prefix_cache",
        block_tokens=1,
        note="radix cache; page_size 1 unless the kernel wants another",
    ),
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
        f"{V0_5_9_TREE}/model_executor/model_runner.py",
        kv_format="auto",
        on="kv_from_checkpoint",
        note=(
            "auto: kv_cache_quant_algo of the checkpoint, else the model's dtype; sparse latent"
            " attention is fp8 on Blackwell"
        ),
    ),
    read(
        f"{V0_5_9_TREE}/model_executor/model_runner_kv_cache_mixin.py",
        memory_rule=MemoryRule.STATIC,
        note="cache = free after loading - free before loading x (1 - mem_fraction_static)",
    ),
    read(
        _ARGUMENTS,
        memory_fraction=0.0,
        off="graphs_in_share",
        reserve=RESERVE,
        logit_bytes=6,
        note=(
            "_handle_gpu_memory_settings: reserved_mem in MiB from chunk, captured size, devices,"
            " ranks"
        ),
    ),
    read(
        _ARGUMENTS,
        captures=CAPTURES,
        on="graphs full_graphs pads captured_requests",
        off="captured largest_captured",
        note="_generate_cuda_graph_batch_sizes; requests, each with its draft tokens",
    ),
    read(
        _ARGUMENTS,
        off="piecewise piecewise_captured piecewise_tokens piecewise_alone",
        piecewise_captures=PIECES,
        piecewise_latent_tokens=2048,
        note=(
            "enable_piecewise_cuda_graph is an option here; up to the chunk, 2048 with latent"
            " attention"
        ),
    ),
    read(
        _ARGUMENTS,
        on="asynchronous",
        off="asynchronous_guesses",
        note="overlap schedule; with EAGLE only under SGLANG_ENABLE_SPEC_V2",
    ),
    read(
        f"{V0_5_9_TREE}/managers/scheduler_recv_skipper.py",
        polling=1,
        stream_interval=1,
        note=(
            "scheduler_recv_interval: an iteration with prompts weighs 1000, one of decode 1; not"
            " with attention dp"
        ),
    ),
    read(
        f"{V0_5_9_TREE}/distributed/device_communicators/custom_all_reduce.py",
        sums=(*FUSED, *OWN, *SYMMETRIC),
        off="custom_all_reduce_bytes multimem symmetric",
        note="up to 8 MiB on NVLink; symmetric memory only with enable_torch_symm_mem",
    ),
    read(
        _ARGUMENTS,
        on="fused_all_reduce",
        fused_architectures=(*FUSED_MODELS, KIMI),
        fused_generations=(9, 10),
        note="FlashInfer's TensorRT-LLM fusion on one node, no attention dp, no all-to-all",
    ),
    read(
        _ARGUMENTS,
        off="attention_dp expert_parallel",
        exchange=ExpertExchange.GATHERED,
        rack_exchange=ExpertExchange.GATHERED,
        note="enable_dp_attention, ep_size 1, moe_a2a_backend none",
    ),
    read(
        _ARGUMENTS,
        attention_kernel="",
        attention_choices=ATTENTION,
        note="_handle_attention_backend_compatibility, _handle_model_specific_adjustments",
    ),
    read(
        _ARGUMENTS,
        expert_kernel="",
        expert_choices=(
            BackendChoice(
                name="flashinfer_trtllm",
                generation=10,
                weights=("fp8", "nvfp4"),
                architectures=("DeepseekV3ForCausalLM", KIMI, "GlmMoeDsaForCausalLM"),
            ),
            BackendChoice(name="flashinfer_mxfp4", generation=10, weights=("mxfp4",)),
            BackendChoice(name="triton_kernel", weights=("mxfp4",)),
            BackendChoice(name="triton"),
        ),
        note="_handle_model_specific_adjustments; auto is Triton's fused experts elsewhere",
    ),
    read(
        f"{V0_5_9_TREE}/models/deepseek_common/attention_backend_handler.py",
        off="absorbed_prefill",
        expanded_tokens=128 * 1024,
        absorbed_below=8192,
        note=(
            "prompts expand keys and values, cached context in pieces of 128 Ki tokens; absorbed"
            " where less than SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD tokens, but any, are cached"
        ),
    ),
    read(
        _ARGUMENTS,
        off="guesses",
        on="multi_token",
        note="speculative_algorithm EAGLE on the model's own MTP layer (NEXTN)",
    ),
    settings=SETTINGS,
)

_V0_5_8: Final = f"{REPOSITORY}/v0.5.8.post1/python/sglang/srt"
V0_5_8: Final = derive(
    V0_5_9,
    identity_fields("sglang-0.5.8", "0.5.8.post1", released="2026-01"),
    read(
        f"{_V0_5_8}/server_args.py",
        fused_architectures=FUSED_MODELS,
        fused_generations=(9, 10),
        note="FlashInfer's TensorRT-LLM fusion on one node, no attention dp, no all-to-all",
    ),
    read(
        f"{_V0_5_8}/server_args.py",
        reserve=RESERVE,
        captures=CAPTURES,
        note="_handle_gpu_memory_settings and _generate_cuda_graph_batch_sizes as in 0.5.9",
    ),
)

_V0_5_6: Final = f"{REPOSITORY}/v0.5.6/python/sglang/srt"
V0_5_6: Final = derive(
    V0_5_8,
    identity_fields("sglang-0.5.6", "0.5.6", released="2025-12"),
    read(
        f"{_V0_5_6}/server_args.py",
        fused_architectures=("DeepseekV3ForCausalLM", "GptOssForCausalLM"),
        fused_generations=(10,),
        note="on Blackwell, one node, no attention dp; elsewhere only where it is asked for",
    ),
    read(
        f"{_V0_5_6}/server_args.py",
        attention_choices=(
            BackendChoice(
                name="trtllm_mla",
                generation=10,
                latent=True,
                architectures=("DeepseekV3ForCausalLM",),
            ),
            *EARLY_ATTENTION,
        ),
        note=(
            "_handle_attention_backend_compatibility: fa3 on Hopper, FlashInfer on Blackwell, and"
            " what a model asks for"
        ),
    ),
    read(
        f"{_V0_5_6}/server_args.py",
        piecewise_captures=Captures(
            ranges=((4, 33, 4), (48, 257, 16), (288, 513, 32), (640, 4097, 128), (4352, 0, 256))
        ),
        piecewise_tokens=4096,
        piecewise_latent_tokens=0,
        note=(
            "piecewise graphs, where they are asked for, up to piecewise_cuda_graph_max_tokens ="
            " 4096"
        ),
    ),
    read(
        f"{_V0_5_6}/server_args.py",
        reserve=replace(RESERVE, a_piece=0, latent_pieces=0),
        note=(
            "reserved_mem as in 0.5.9, but piecewise_cuda_graph_max_tokens / 4 MiB for piecewise"
            " graphs: left out"
        ),
    ),
)

_V0_5_1: Final = f"{REPOSITORY}/v0.5.1.post1/python/sglang/srt"
V0_5_1: Final = derive(
    V0_5_6,
    identity_fields("sglang-0.5.1", "0.5.1.post1", released="2025-08"),
    read(
        f"{_V0_5_1}/server_args.py",
        sizes=(
            SizeRow(
                below_gib=35,
                token_budget=2048,
                max_sequences=SEQUENCES,
                largest_captured=80,
                narrow_captured=8,
                narrow_tp=4,
            ),
            SizeRow(below_gib=90, token_budget=8192, max_sequences=SEQUENCES, largest_captured=160),
            SizeRow(
                below_gib=160, token_budget=8192, max_sequences=SEQUENCES, largest_captured=256
            ),
            SizeRow(token_budget=16384, max_sequences=SEQUENCES, largest_captured=512),
        ),
        note="chunk by memory; graphs by memory in cuda_graph_runner.py",
    ),
    read(
        f"{_V0_5_1}/server_args.py",
        reserve=Reserve(
            rows=(
                (35, 28 * GIB // 10, GIB // 10),
                (90, 19 * GIB // 2, GIB // 2),
                (160, 12 * GIB, GIB // 2),
                (0, 32 * GIB, 0),
            ),
            guessing=2 * GIB,
            ranks=4 * GIB,
        ),
        note="reserved_mem by memory and tp x pp, + 2 GiB with guesses, + 4 GiB with attention dp",
    ),
    read(
        f"{_V0_5_1}/model_executor/cuda_graph_runner.py",
        captures=Captures(
            ranges=((1, 3, 1), (4, 9, 4), (16, 257, 8), (272, 513, 16)),
            guessing_ranges=(
                (1, 9, 1),
                (10, 33, 2),
                (40, 64, 8),
                (80, 161, 16),
                (168, 257, 8),
                (272, 513, 16),
            ),
        ),
        note="get_batch_sizes_to_capture",
    ),
    read(
        f"{_V0_5_1}/server_args.py",
        off="piecewise piecewise_captures piecewise_tokens piecewise_alone",
        note="no such option",
    ),
    read(
        f"{_V0_5_1}/server_args.py",
        fused_architectures=("GptOssForCausalLM",),
        fused_generations=(10,),
        note="model_specific_adjustments",
    ),
    read(
        f"{_V0_5_1}/model_executor/model_runner.py",
        attention_choices=EARLY_ATTENTION,
        note="model_specific_adjustment; fa3 on Hopper, FlashInfer on Blackwell",
    ),
    read(
        f"{_V0_5_1}/server_args.py",
        expert_choices=(
            BackendChoice(name="flashinfer_mxfp4", generation=10, weights=("mxfp4",)),
            BackendChoice(name="triton_kernel", weights=("mxfp4",)),
            BackendChoice(name="triton"),
        ),
        note="others only where they are asked for",
    ),
)

_V0_5_10: Final = f"{REPOSITORY}/v0.5.10.post1/python/sglang/srt"
V0_5_10: Final = derive(
    V0_5_9,
    identity_fields("sglang-0.5.10", "0.5.10.post1", released="2026-04"),
    read(
        f"{_V0_5_10}/server_args.py",
        on="piecewise piecewise_alone",
        note=(
            "_handle_piecewise_cuda_graph: on but with guesses, attention dp, stages, an"
            " all-to-all, symmetric memory, two roles or multimodal models, and never for sparse"
            " latent attention and Qwen3-Next"
        ),
    ),
    read(
        f"{_V0_5_10}/server_args.py",
        reserve=replace(RESERVE, latent_pieces=3 * GIB // 2, guessing=4 * GIB),
        note="as 0.5.9, 1.5 GiB for pieces with latent attention, 4 GiB with guesses",
    ),
    read(
        f"{_V0_5_10}/server_args.py",
        captures=replace(CAPTURES, ends=True),
        note="_generate_cuda_graph_batch_sizes: the largest is captured in any case",
    ),
    read(
        f"{_V0_5_10}/server_args.py",
        fused_architectures=(
            *FUSED_MODELS,
            KIMI,
            "Qwen3_5MoeForConditionalGeneration",
            "Qwen3_5ForConditionalGeneration",
        ),
        fused_generations=(9, 10),
        note="one node, tp > 1, no attention dp, no context parallelism, no all-to-all",
    ),
    settings=(
        option_setting("piecewise", "--disable-piecewise-cuda-graph", f"{_V0_5_10}/server_args.py"),
    ),
)

VERSIONS: Final = (V0_5_1, V0_5_6, V0_5_8, V0_5_9, V0_5_10)
"""Described versions, the oldest first."""
