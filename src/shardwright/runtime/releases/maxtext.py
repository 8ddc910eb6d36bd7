"""MaxText and Paxml on JAX/XLA: fully sharded parameters, compiler-scheduled collectives.

Whole-layer rematerialisation is the default.
"""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.framework_description import Offer
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
    ExpertDispatch,
    FullRecompute,
    KeptOutput,
    Scaling,
    SelectiveRecompute,
    TpOverlap,
)
from shardwright.runtime.option_vocabulary import option_offer
from shardwright.runtime.runtime_from_sourced_statements import (
    Statement,
    derive,
    identity_fields,
    read,
    runtime,
    stated,
)
from shardwright.units import MIB

_TREE: Final = "https://github.com/AI-Hypercomputer/maxtext/blob/e591f30cbbf2/src/maxtext"
_DECODERS: Final = "https://github.com/AI-Hypercomputer/maxtext/blob/004ba5a9456a26368079ad0fe290cfd2c2c9fc1f/src/maxtext/layers/decoders.py"
_INPUT, _QKV, _CORE, _PROJ, _UP, _DOWN = KeptOutput
_PRODUCTS: Final = (_QKV, _PROJ, _UP, _DOWN)


def _remat_statement(
    *kept: KeptOutput, host: tuple[KeptOutput, ...] = (), default: str = "selective"
) -> Statement:
    """Statement that a `remat_policy` keeps only `kept` on the device and `host` in host memory.

    Kept on the device, or in `host` memory.

    Queries, keys and values are named behind their rotary embedding; a kept core is kept with the
    other inputs of its backward pass.
    """
    return read(
        _DECODERS,
        default_recompute=default,
        kept_outputs=(*kept, *host),
        host_outputs=host,
        note="get_remat_policy: save_only_these_names or save_and_offload_only_these_names",
    )


_REMAT: Final[dict[str, Statement]] = {
    "full": _remat_statement(*_PRODUCTS, default="full"),
    "minimal_with_context": _remat_statement(*_PRODUCTS, _CORE),
    "minimal": _remat_statement(*_PRODUCTS),
    "save_dot_with_context_except_mlp": _remat_statement(_QKV, _CORE, _PROJ),
    "save_dot_except_mlpwi": _remat_statement(_QKV, _PROJ, _DOWN),
    "save_dot_except_mlp": _remat_statement(_QKV, _PROJ),
    "save_qkv_proj": _remat_statement(_QKV),
    "save_out_proj": _remat_statement(_PROJ),
    "qkv_proj_offloaded": _remat_statement(host=(_QKV,)),
    "minimal_offloaded": _remat_statement(host=_PRODUCTS),
    "attention_offloaded": _remat_statement(host=(_INPUT, _QKV, _PROJ)),
}
_FLAGS: Final = {
    "attention_offloaded": (
        "remat_policy=custom decoder_layer_input=offload query_proj=offload key_proj=offload"
        " value_proj=offload out_proj=offload"
    )
}

_TILES: Final = "https://github.com/AI-Hypercomputer/maxtext/blob/2a80642f3520f89113346fddbc0380480cc09086/src/MaxText/vocabulary_tiling.py"


def _logits_parts_statement(number: int) -> Statement:
    """Runtime field for logits computed in `number` parts of a device's tokens, one at a time."""
    return read(
        _TILES,
        logits_parts=number,
        note="vocab_tiling_linen_loss: a scan forward, and one backward that makes logits again",
    )


OFFERS: Final[tuple[Offer, ...]] = (
    *(
        option_offer("remat", value, _FLAGS.get(value, f"remat_policy={value}"), statement)
        for value, statement in _REMAT.items()
    ),
    *(
        option_offer(
            "logits_parts",
            str(number),
            f"num_vocab_tiling={number}",
            _logits_parts_statement(number),
        )
        for number in (1, 2, 4, 8, 16, 32)
    ),
)


RUNTIME: Final = runtime(
    identity_fields("maxtext", framework="MaxText", version="2025", released="2025-06"),
    stated(
        "https://github.com/AI-Hypercomputer/maxtext",
        vendors=("Google", "NVIDIA"),
        note="TPUs and GPUs",
    ),
    stated(
        "https://docs.jax.dev/en/latest/sharded-computation.html",
        off="row_kernels gradient_passes scales_gradients",
        note="passes over whole gradients beside the update are not counted here; no such kernels",
    ),
    stated(
        "https://docs.jax.dev/en/latest/gradient-checkpointing.html",
        full_recompute=FullRecompute.STOPS_EARLY,
        note=(
            "what backward does not read is not computed again: no use of the last product; from"
            " memory"
        ),
    ),
    stated(
        "https://docs.jax.dev/en/latest/sharded-computation.html",
        off=(
            "gather_bucket_bytes gather_copy_bytes listed_collectives reduce_copy_bytes"
            " reuse_elements sums_replicas_apart"
        ),
        gradient_wire=Dtype.BF16,
        note=(
            "GSPMD sums a product's partial results where they arise, in its bf16, and lays"
            " collectives out with users; from memory"
        ),
    ),
    stated(
        f"{_TREE}/configs/base.yml",
        on=(
            "hybrid_sharding optimizer_offload sequence_parallel context_gather context_ulysses"
            " expert_parallel gathers_from_master"
        ),
        off="main_grad_copy context_ring",
        gradient_dtype=Dtype.FP32,
        zero_stages=(0, 3),
        zero_with_pipeline=3,
        schedules=("gpipe",),
        selective_recompute=SelectiveRecompute.NAMED,
        attention_kernel=AttentionKernel.CUDNN,
        note=(
            "weight_dtype and grad_dtype float32; ici and dcn axes; attention autoselected (cuDNN"
            " on GPUs)"
        ),
    ),
    _REMAT["full"],
    _logits_parts_statement(1),
    stated(
        "https://openxla.org/xla/flags_guidance",
        on=(
            "overlap_grad_reduce overlap_param_gather overlap_p2p reduce_every_microbatch"
            " tp_input_regather"
        ),
        off=(
            "p2p_scatter_gather fused_weight_gradient adds_gradients rebuilds_norms fused_chains"
            " fp32_norms zero1_broadcasts tp_synchronises saves_quantized capture routing_on_host"
            " router_kernels fixed_capacity expert_overlap fused_experts attention_eight_bit"
            " rebuilds_latent rebuilds_expert_activation rebuilds_mlp rebuilds_shared_experts"
            " rebuilds_experts activation_offload dispatches_eight_bit saves_gates_eight_bit"
            " moments reserved_multiprocessors experts_split_as_layers plain_p2p_blocks"
            " fills_pipeline ties_experts equal_stages equal_between checkpoints_on_host"
            " parameters_on_host hybrid_dispatch launches_block gradients_on_host"
            " host_gradient_bytes host_buffer_percent"
        ),
        bucket_bytes=0,
        gather_prefetch=1,
        tp_overlap=TpOverlap.ASYNC,
        element_kernels=ElementKernels.COMPILED,
        collective_library="any",
        expert_dispatch=ExpertDispatch.ALL_TO_ALL,
        note=(
            "latency-hiding scheduler, collective matmul, compiler fusion; the compiler launches"
            " the whole step"
        ),
    ),
    read(
        f"{_TREE}/configs/base.yml",
        on="fused_loss",
        off="logits_blocks_bytes split_logits_bytes loss_bytes linear_loss",
        logits_bytes=4,
        embedding_gradient_bytes=2,
        note=(
            "logits_dot_in_fp32 false: logits, their gradient and weight gradients are products in"
            " bf16; the fp32 steps of cross_entropy_with_logits between them are element-wise, and"
            " fused into what reads them (the fusion from memory)"
        ),
    ),
    stated(
        "https://docs.jax.dev/en/latest/gpu_memory_allocation.html",
        allocator_reserve_percent=0,
        workspace_bytes=256 * MIB,
        note=(
            "XLA plans the buffers of the whole step before it runs; of a GPU JAX takes"
            " XLA_PYTHON_CLIENT_MEM_FRACTION (0.75 where nothing is said): as set to leave what"
            " NCCL and the context need; from memory"
        ),
    ),
    read(
        "https://github.com/AI-Hypercomputer/maxtext/blob/01164e142151bb7d1bb8e34536ea2affbdce458f/MaxText/layers/quantizations.py",
        off="scales_reduced gathers_narrow gathers_quantized",
        scaling=Scaling.DELAYED,
        note=(
            "quantization fp8 is flax's Fp8DirectDotGeneralOp: scales from histories of magnitudes"
            " (its dynamic scales are of aqt_fp8 and int8); XLA reduces the magnitude of each"
            " sharded operand with the operator itself: not counted"
        ),
    ),
    offers=OFFERS,
)

# Paxml on GPUs, as NVIDIA's benchmarks launch it: XLA again, a layer's gathers in one loop over
# layers, Transformer Engine's attention.
PAXML: Final = derive(
    RUNTIME,
    identity_fields("paxml", framework="Paxml", version="2024", released="2024-03"),
    stated(
        "https://github.com/NVIDIA/dgxc-benchmarking/blob/143b90dd91f9be958fed4773ae95d941a3356a82/paxml/configure.sh",
        checked=True,
        vendors=("NVIDIA",),
        attention_kernel=AttentionKernel.CUDNN,
        tp_overlap=TpOverlap.NONE,
        note=(
            "NVTE_FUSED_ATTN=1, asynchronous collectives and XLA's latency-hiding scheduler; no"
            " collective matmul among its flags"
        ),
    ),
    stated(
        "https://github.com/openxla/xla/blob/293481cd42102f2fce8bddf3febffa9a0b6aec50/xla/service/gpu/loop_double_buffer_transformer.h",
        gather_copy_bytes=4,
        reduce_copy_bytes=4,
        note=(
            "configure.sh pipelines gathers and reductions of its loop over layers and sets"
            " xla_gpu_enable_while_loop_double_buffering false (read), so that what one pass of the"
            " loop hands to the next is copied, 2 + 2 bytes an element; the copies from memory"
        ),
    ),
    stated(
        "https://github.com/google/paxml/blob/04516ac858bbd5143aed2262bbd1e505f6679e28/paxml/contrib/gpu/scripts_gpu/configs.py",
        checked=True,
        default_recompute="selective",
        note=(
            "CHECKPOINT_POLICY SAVE_DOT_WITH_NO_BATCH_DIM; ICI and DCN meshes of replicas, data and"
            " model axes"
        ),
    ),
    offers=(
        option_offer(
            "remat",
            "save_dot_except_mlp",
            "CHECKPOINT_POLICY=SAVE_QKV_OUT_PROJ",
            _remat_statement(_QKV, _PROJ),
        ),
        option_offer(
            "remat", "minimal", "CHECKPOINT_POLICY=SAVE_DOT_ONLY", _remat_statement(*_PRODUCTS)
        ),
    ),
)
