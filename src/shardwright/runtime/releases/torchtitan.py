"""torchtitan: PyTorch FSDP2, tensor parallelism as DTensor, torch.compile, PyTorch pipelining."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
    ExpertDispatch,
    FullRecompute,
    Scaling,
    SelectiveRecompute,
    TpOverlap,
)
from shardwright.runtime.option_vocabulary import option_offer
from shardwright.runtime.releases.pytorch_shared_facts import (
    ALLOCATOR,
    COLLECTIVES,
    CUBLAS,
    FILLED,
    LINEAR_LOSSES,
    MOMENTS,
    NCCL,
)
from shardwright.runtime.runtime_from_sourced_statements import (
    derive,
    identity_fields,
    read,
    runtime,
    stated,
)

_TREE: Final = "https://github.com/pytorch/torchtitan/blob/v0.2.0/torchtitan"
# --async-tp: collectives of tensor parallelism in pieces, by PyTorch's symmetric memory and its
# compiler.
_ASYNC_TP: Final = stated(
    "https://github.com/pytorch/pytorch/blob/v2.6.0/torch/distributed/_symmetric_memory/__init__.py",
    tp_overlap=TpOverlap.ASYNC,
    note=(
        "collectives are decomposed into pieces that run beside the GEMM's pieces;"
        " fused_matmul_reduce_scatter stacks the members' partial products and sums them in one"
        " reduction kernel; a reduce_scatter is joined with the one product that makes its input"
        " (torch/_inductor/fx_passes/micro_pipeline_tp.py: _find_producer_matmul), so not behind a"
        " sum over several projections"
    ),
)
# The loss in eager kernels: with compiled layers in 0.1, and wherever nothing is compiled.
_EAGER_LOSS: Final = stated(
    "https://github.com/pytorch/torchtitan/blob/v0.1.0/torchtitan/components/loss.py",
    off="fused_loss",
    logits_bytes=12,
    logits_blocks_bytes=14,
    note=(
        "cross_entropy(pred.float()), pred deleted before backward: log-softmax, gradient of the"
        " loss and of the log-softmax in fp32; the bf16 logits' block serves none of them"
    ),
) + read(
    "https://github.com/pytorch/pytorch/blob/v2.5.0/torch/distributed/tensor/parallel/loss.py",
    split_logits_bytes=4,
    note="loss_parallel: (grad_input + exp(x)) * grad_output makes one fp32 copy more",
)

_COMPILED_LOSS: Final = stated(
    f"{_TREE}/components/loss.py",
    on="fused_loss",
    off="logits_blocks_bytes split_logits_bytes",
    logits_bytes=4,
    note=(
        "the loss is compiled with the model: bf16 logits and their bf16 gradient, the fp32 values"
        " stay in registers"
    ),
)
_CONFIG: Final = f"{_TREE}/config/job_config.py"
_FLOAT8: Final = "https://github.com/pytorch/torchtitan/blob/01db32e97d28d588eccadf527155d2201797d0b8/docs/float8.md"
_ROWWISE: Final = "https://github.com/pytorch/ao/pull/2145"
_MIXED: Final = "https://docs.pytorch.org/docs/2.9/distributed.fsdp.fully_shard.html"
_ALL_OFFER: Final = (
    *COLLECTIVES,
    *MOMENTS,
    *LINEAR_LOSSES,
    option_offer(
        "grad_dtype",
        "fp32",
        "",
        stated(
            _MIXED,
            gradient_dtype=Dtype.FP32,
            reduce_copy_bytes=6,
            note="MixedPrecisionPolicy(reduce_dtype=torch.float32)",
        ),
    ),
    option_offer(
        "grad_dtype",
        "bf16",
        "training.dtype: bfloat16",
        stated(
            _MIXED,
            gradient_dtype=Dtype.BF16,
            reduce_copy_bytes=4,
            note=(
                "parameters in bf16 and no other reduce_dtype: gradients are reduced and kept in"
                " the parameters' dtype"
            ),
        ),
    ),
    option_offer(
        "fp8",
        "current",
        "--float8.recipe_name tensorwise",
        read(
            _FLOAT8,
            on="gathers_quantized",
            scaling=Scaling.CURRENT,
            note="float8 all-gather for TP by default",
        ),
    ),
    option_offer(
        "fp8",
        "rowwise",
        "--float8.recipe_name rowwise",
        stated(
            _ROWWISE,
            off="gathers_quantized",
            scaling=Scaling.ROWWISE,
            note="a float8 all-gather for it was not merged",
        ),
    ),
    option_offer(
        "fp8",
        "mx",
        "--mx.recipe_name mxfp8",
        stated(
            f"{_TREE}/components/quantization/mx.py",
            off="gathers_quantized",
            scaling=Scaling.MX,
        ),
    ),
    option_offer(
        "fp8_gather",
        "on",
        "--float8.enable_fsdp_float8_all_gather",
        read(_FLOAT8, on="gathers_narrow"),
    ),
    option_offer("fp8_gather", "off", "", read(_FLOAT8, off="gathers_narrow")),
    option_offer(
        "tp_overlap",
        "none",
        "",
        stated(f"{_TREE}/distributed/tensor_parallel.py", tp_overlap=TpOverlap.NONE),
    ),
    option_offer("tp_overlap", "async", "--parallelism.enable_async_tensor_parallel", _ASYNC_TP),
)

_ONE_ACTION: Final = ("gpipe", "1f1b", "interleaved-1f1b")
"""Schedules whose backwards are one action."""
_COMPILED_SCHEDULES: Final = read(
    "https://github.com/pytorch/pytorch/pull/162511",
    schedules=_ONE_ACTION,
    note="ZeroBubble and DualPipeV refuse modules that torch.compile made (issue 161904)",
)
_EAGER_SCHEDULES: Final = read(
    "https://github.com/pytorch/torchtitan/blob/02ef790c79614758f85880e173d2338d7de502a3/torchtitan/distributed/pipeline_parallel.py",
    schedules=(*_ONE_ACTION, "zb-v", "dualpipe-v"),
    note=(
        "any schedule class of PyTorch; stages of ScheduleZBVZeroBubble and ScheduleDualPipeV lie"
        " as a V"
    ),
)

V0_2: Final = runtime(
    identity_fields("torchtitan-0.2", framework="torchtitan", version="0.2", released="2025-10"),
    stated(
        "https://github.com/pytorch/torchtitan",
        vendors=("NVIDIA", "AMD"),
        note="PyTorch's NCCL and RCCL; ROCm runs in its CI; from memory",
    ),
    stated(
        "https://github.com/pytorch/pytorch/blob/v2.9.0/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
        off="row_kernels gradient_passes scales_gradients",
        note="passes over whole gradients beside the update are not counted here; no such kernels",
    ),
    read(
        "https://github.com/pytorch/pytorch/blob/v2.9.0/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
        off="gradient_wire gather_bucket_bytes listed_collectives reuse_elements",
        gather_copy_bytes=4,
        reduce_copy_bytes=6,
        note=(
            "split_with_sizes_copy of the gathered bf16 (2 + 2 bytes); chunk_cat of bf16 gradients"
            " into the fp32 buffer (2 + 4)"
        ),
    ),
    read(
        "https://github.com/pytorch/pytorch/blob/v2.9.0/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
        on="sums_replicas_apart",
        note=(
            "foreach_reduce: all_reduce_stream waits for the reduce_scatter's stream, and no later"
            " reduce_scatter for it"
        ),
    ),
    stated(
        f"{_TREE}/models/llama3/infra/parallelize.py",
        on="gathers_from_master",
        off="main_grad_copy rebuilds_norms fused_chains fp32_norms",
        gradient_dtype=Dtype.FP32,
        zero_stages=(2, 3),
        zero_with_pipeline=3,
        bucket_bytes=0,
        element_kernels=ElementKernels.COMPILED,
        note=(
            "fp32 parameters, bf16 when gathered, fp32 reduction; one group a layer;"
            " reshard_after_forward chooses stage 2 or 3"
        ),
    ),
    stated(
        f"{_TREE}/distributed/parallel_dims.py",
        on="hybrid_sharding expert_parallel sequence_parallel",
        note="dp_replicate x dp_shard",
    ),
    stated(
        "https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html",
        on="overlap_grad_reduce overlap_param_gather reduce_every_microbatch",
        off="zero1_broadcasts",
        gather_prefetch=1,
        note=(
            "implicit prefetch: the next all-gather is issued while the present layer computes;"
            " reduce-scatter in backward"
        ),
    ),
    NCCL,
    stated(
        f"{_TREE}/distributed/expert_parallel.py",
        expert_dispatch=ExpertDispatch.ALL_TO_ALL,
        note="all_to_all_single_autograd of every routed copy",
    ),
    stated(
        "https://github.com/pytorch/ao/blob/main/torchao/float8/float8_linear.py",
        off="saves_quantized",
        note="matmul_with_hp_or_float8_args saves the high-precision input and casts it again",
    ),
    stated(
        f"{_TREE}/distributed/pipeline_parallel.py",
        on="overlap_p2p",
        off="p2p_scatter_gather",
    ),
    _COMPILED_SCHEDULES,
    FILLED,
    stated(
        f"{_TREE}/distributed/context_parallel.py",
        on="context_ring context_gather",
        off="context_ulysses",
        note="rotate method",
    ),
    stated(
        f"{_TREE}/config/job_config.py",
        off="optimizer_offload",
        default_recompute="selective",
        note="activation_checkpoint.mode selective",
    ),
    read(
        "https://github.com/pytorch/torchtitan/blob/01db32e97d28d588eccadf527155d2201797d0b8/torchtitan/distributed/activation_checkpoint.py",
        full_recompute=FullRecompute.STOPS_EARLY,
        selective_recompute=SelectiveRecompute.OPERATORS,
        note=(
            "checkpoint_wrapper with early_stop; the per-operator policy saves attention and every"
            " second matrix product"
        ),
    ),
    stated(
        f"{_TREE}/distributed/tensor_parallel.py",
        off="tp_input_regather tp_synchronises",
        tp_overlap=TpOverlap.NONE,
        note="asynchronous TP is an option, off by default",
    ),
    stated(
        "https://pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
        off="fused_weight_gradient adds_gradients",
        attention_kernel=AttentionKernel.FLASH_2,
    ),
    _COMPILED_LOSS,
    stated(f"{_TREE}/components/loss.py", off="loss_bytes", embedding_gradient_bytes=2),
    stated(
        f"{_TREE}/distributed/expert_parallel.py",
        off=(
            "capture routing_on_host router_kernels fixed_capacity expert_overlap fused_experts"
            " attention_eight_bit rebuilds_latent rebuilds_expert_activation rebuilds_mlp"
            " rebuilds_shared_experts rebuilds_experts dispatches_eight_bit saves_gates_eight_bit"
            " moments reserved_multiprocessors kept_outputs host_outputs activation_offload"
            " logits_parts linear_loss experts_split_as_layers plain_p2p_blocks ties_experts"
            " equal_stages equal_between checkpoints_on_host parameters_on_host hybrid_dispatch"
            " launches_block gradients_on_host host_gradient_bytes host_buffer_percent"
        ),
        note=(
            "no captured graphs; splits of the all-to-all are read on the host; grouped_mm over all"
            " local experts"
        ),
    ),
    CUBLAS,
    ALLOCATOR,
    stated(
        "https://github.com/pytorch/ao/blob/v0.8.0/torchao/float8/README.md",
        off="scales_reduced",
        scaling=Scaling.CURRENT,
        note="dynamic scaling: no history; recipe_name is tensorwise where nothing is said",
    ),
    read(_FLOAT8, on="gathers_quantized", note="float8 all-gather for TP by default"),
    read(
        _FLOAT8, off="gathers_narrow", note="float8.enable_fsdp_float8_all_gather is off by default"
    ),
    offers=(
        *_ALL_OFFER,
        option_offer(
            "kernels",
            "compiled",
            "--compile.enable",
            stated(_CONFIG, element_kernels=ElementKernels.COMPILED),
            _COMPILED_LOSS,
            _COMPILED_SCHEDULES,
        ),
        option_offer(
            "kernels",
            "eager",
            "",
            stated(_CONFIG, element_kernels=ElementKernels.EAGER, note="compile off"),
            _EAGER_LOSS,
            _EAGER_SCHEDULES,
        ),
    ),
)

# Late 2024, its paper's runs: the loss is eager beside compiled layers.
V0_1: Final = derive(
    V0_2,
    identity_fields("torchtitan-0.1", version="0.1", released="2024-10"),
    _EAGER_LOSS,
    offers=(
        *_ALL_OFFER,
        option_offer(
            "kernels",
            "compiled",
            "--training.compile",
            stated(_CONFIG, element_kernels=ElementKernels.COMPILED),
        ),
        option_offer(
            "kernels",
            "eager",
            "",
            stated(_CONFIG, element_kernels=ElementKernels.EAGER, note="compile off"),
        ),
    ),
)
