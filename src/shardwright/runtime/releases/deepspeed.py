"""DeepSpeed, and Megatron-LM under DeepSpeed's pipeline."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.framework_description import Offer
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
from shardwright.runtime.releases import megatron_lm_before_megatron_core as megatron_lm
from shardwright.runtime.releases.pytorch_shared_facts import (
    ALLOCATOR,
    CUBLAS,
    LAUNCH_BLOCKING,
    LINEAR_LOSSES,
    MOMENTS,
)
from shardwright.runtime.runtime_from_sourced_statements import (
    derive,
    identity_fields,
    read,
    runtime,
    stated,
)

_BLOB: Final = "https://github.com/deepspeedai/DeepSpeed/blob"
_TREE: Final = f"{_BLOB}/v0.16.0/deepspeed"
_READ: Final = f"{_BLOB}/03aecee816cece2b4d94af485af7bd69bd4a201a/deepspeed/runtime/zero"

_MEGATRON_ARGUMENTS: Final = "https://github.com/NVIDIA/Megatron-LM/blob/v2.5/megatron/arguments.py"
_EAGER: Final = (
    "https://github.com/DachengLi1/AMP/blob/505f804a2d9198713a301279a66dbc6d819ff931/DeepSpeed/DeepSpeedExamples/"
    "Megatron-LM-v1.1.5-3D_parallelism/examples/ds_pretrain_gpt2_pipe.sh"
)

_TIMERS: Final = (
    "https://github.com/DachengLi1/AMP/blob/708e87f25ca88b7179358a201c82b41aa27858ca/DeepSpeed/DeepSpeedExamples/"
    "Megatron-LM-v1.1.5-3D_parallelism/megatron/mpu/mappings.py"
)
_BF16: Final = (
    f"{_BLOB}/0acdb021c71edb33a637ee60ff54425279cd08bc/deepspeed/runtime/bf16_optimizer.py"
)
_CONFIG: Final = "https://www.deepspeed.ai/docs/config-json/"

_HOST: Final = f"{_BLOB}/0cca5393114258967cbfe25e24356e43e81cc9e4/docs/code-docs/source/memory.rst"
_STAGE_3: Final = (
    f"{_BLOB}/007cca6a2ffe3ed9d393459f4a3081bd54341ba6/deepspeed/runtime/zero/stage3.py"
)
_CHECKPOINTS: Final = (
    f"{_BLOB}/02f59ea37362c316f71a4a5a919d9d79528d4b61"
    "/deepspeed/runtime/activation_checkpointing/checkpointing.py"
)

_OFFLOADED_OPTIMIZER: Final = (
    read(
        _HOST,
        host_gradient_bytes=4,
        host_buffer_percent=50,
        note=(
            "General RAM: 16 bytes a parameter with the optimizer on the host (fp32 master,"
            " gradient and two moments), 18 with the 16-bit parameters too, and half as much again"
            " for buffers (additional_buffer_factor 1.5)"
        ),
    ),
    read(
        _STAGE_3,
        on="gradients_on_host",
        note=(
            "partition_grads copies each reduced shard into a buffer in host memory; from the"
            " second microbatch on it first copies that back and adds it; copy_grads_in_partition"
            " of stage_1_and_2.py at 02aa38c3a551 does the same; the same page of memory counts no"
            " gradients on the device"
        ),
    ),
)
"""Host memory used where the optimizer states are offloaded."""


def _offload_offers(*stages: int) -> tuple[Offer, ...]:
    """Offers of cpu_checkpoints and param_offload on and off; `stages`: ZeRO stages where off.

    `stages` are the ZeRO stages at which parameters stay on the device.
    """
    return (
        option_offer(
            "cpu_checkpoints",
            "on",
            "activation_checkpointing.partition_activations: true,"
            " activation_checkpointing.cpu_checkpointing: true",
            read(
                _CHECKPOINTS,
                on="checkpoints_on_host",
                note=(
                    "partition_activations copies each member's own part to the host and waits,"
                    " gather_partitioned_activations back"
                ),
            ),
        ),
        option_offer(
            "cpu_checkpoints",
            "off",
            "",
            stated(_CHECKPOINTS, off="checkpoints_on_host", note="both are false by default"),
        ),
        option_offer(
            "param_offload",
            "on",
            "zero_optimization.offload_param.device: cpu",
            stated(
                _CONFIG, on="parameters_on_host", zero_stages=(3,), note="valid only with stage 3"
            ),
        ),
        option_offer(
            "param_offload",
            "off",
            "",
            stated(_CONFIG, off="parameters_on_host", zero_stages=stages),
        ),
    )


# DeepSpeed 0.16: ZeRO 0-3 with overlap_comm, DeepSpeed pipeline, Ulysses, automatic tensor
# parallelism.
V0_16: Final = runtime(
    identity_fields("deepspeed-0.16", framework="DeepSpeed", version="0.16", released="2024-11"),
    stated(
        "https://www.deepspeed.ai/tutorials/accelerator-setup-guide/",
        vendors=("NVIDIA", "AMD", "Intel", "Huawei"),
        note="accelerators cuda, hpu and npu; from memory",
    ),
    stated(
        f"{_TREE}/runtime/zero/stage_1_and_2.py",
        off="row_kernels gradient_passes scales_gradients",
        note="passes over whole gradients beside the update are not counted here; no such kernels",
    ),
    read(
        f"{_READ}/partition_parameters.py",
        off="gradient_wire listed_collectives sums_replicas_apart",
        gather_copy_bytes=4,
        note=(
            "AllGatherCoalescedHandle joins each parameter's parts by torch.cat (2 + 2); one that"
            " is gathered alone is a view"
        ),
    ),
    read(
        f"{_READ}/stage3.py",
        reduce_copy_bytes=12,
        note=(
            "__add_grad_to_ipg_bucket copies into the bucket's buffer (2 + 2),"
            " reduce_scatter_coalesced joins the members' parts (2 + 2) and divides them (2 + 2)"
        ),
    ),
    read(
        f"{_READ}/partitioned_param_coordinator.py",
        gather_bucket_bytes=100_000_000,
        reuse_elements=1_000_000_000,
        note=(
            "fetch_sub_module prefetches whole parameters up to stage3_prefetch_bucket_size, 5e7"
            " elements of 2 bytes, as one all_gather; __params_to_release keeps what is used within"
            " stage3_max_reuse_distance, 1e9"
        ),
    ),
    stated(
        f"{_TREE}/runtime/zero/config.py",
        bucket_bytes=1_000_000_000,
        note="reduce_bucket_size and allgather_bucket_size are 5e8 elements of 2 bytes",
    ),
    stated(
        _CONFIG,
        on="hybrid_sharding optimizer_offload overlap_grad_reduce overlap_param_gather",
        zero_stages=(0, 1, 2, 3),
        gather_prefetch=1,
        default_recompute="none",
        selective_recompute=SelectiveRecompute.CORE,
        note=(
            "overlap_comm is set (its default is on for stage 3 only); zero_hpz_partition_size;"
            " stage3_prefetch_bucket_size"
        ),
    ),
    stated(
        f"{_TREE}/runtime/zero/stage_1_and_2.py",
        on="reduce_every_microbatch",
        off="main_grad_copy zero1_broadcasts",
        gradient_dtype=Dtype.BF16,
        note=(
            "gradients in the parameters' dtype, reduced into the owner's share; all-gather of"
            " parameters after the step"
        ),
    ),
    stated(
        f"{_TREE}/runtime/zero/partition_parameters.py",
        off="gathers_from_master",
        note="16-bit shards beside fp32 master shards",
    ),
    stated(
        f"{_TREE}/runtime/pipe/engine.py",
        off="overlap_p2p p2p_scatter_gather",
        zero_with_pipeline=1,
        note="ZeRO-2 and 3 are refused",
    ),
    stated(f"{_TREE}/runtime/pipe/schedule.py", schedules=("1f1b",), note="TrainSchedule is 1F1B"),
    stated(
        f"{_TREE}/sequence/layer.py",
        on="context_ulysses",
        off="context_ring context_gather sequence_parallel",
    ),
    stated(
        f"{_TREE}/moe/layer.py",
        on="expert_parallel",
        off="saves_quantized",
        expert_dispatch=ExpertDispatch.ALL_TO_ALL,
        note="all-to-all of every routed copy; no fp8",
    ),
    stated(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/index.html",
        collective_library="nccl",
    ),
    stated(
        f"{_TREE}/module_inject/layers.py",
        off="tp_input_regather tp_synchronises",
        tp_overlap=TpOverlap.NONE,
        note="AutoTP: blocking all-reduce",
    ),
    stated(
        "https://huggingface.co/docs/transformers/attention_interface",
        off=(
            "rebuilds_norms fused_chains fp32_norms fused_weight_gradient adds_gradients fused_loss"
            " logits_blocks_bytes split_logits_bytes loss_bytes"
        ),
        attention_kernel=AttentionKernel.FLASH_2,
        element_kernels=ElementKernels.EAGER,
        logits_bytes=16,
        embedding_gradient_bytes=2,
        note="models are Hugging Face's in eager mode with flash-attention 2",
    ),
    stated(
        f"{_TREE}/runtime/activation_checkpointing/checkpointing.py",
        full_recompute=FullRecompute.WHOLE,
    ),
    *_OFFLOADED_OPTIMIZER,
    stated(
        f"{_TREE}/moe/sharded_moe.py",
        off=(
            "capture routing_on_host router_kernels fixed_capacity expert_overlap fused_experts"
            " attention_eight_bit rebuilds_latent rebuilds_expert_activation rebuilds_mlp"
            " rebuilds_shared_experts rebuilds_experts dispatches_eight_bit saves_gates_eight_bit"
            " moments reserved_multiprocessors kept_outputs host_outputs activation_offload"
            " logits_parts linear_loss experts_split_as_layers plain_p2p_blocks fills_pipeline"
            " ties_experts equal_stages equal_between checkpoints_on_host parameters_on_host"
            " hybrid_dispatch launches_block"
        ),
        note="eager; experts have a fixed capacity",
    ),
    CUBLAS,
    ALLOCATOR,
    stated(
        "https://github.com/deepspeedai/DeepSpeed/tree/v0.16.0/deepspeed/runtime",
        off="scales_reduced gathers_narrow gathers_quantized",
        scaling=Scaling.CURRENT,
        note="no 8-bit recipe of its own",
    ),
    offers=(
        option_offer(
            "grad_overlap",
            "on",
            "zero_optimization.overlap_comm: true",
            stated(_CONFIG, on="overlap_grad_reduce"),
        ),
        option_offer(
            "grad_overlap",
            "off",
            "zero_optimization.overlap_comm: false",
            stated(_CONFIG, off="overlap_grad_reduce"),
        ),
        option_offer(
            "kernels",
            "eager",
            "",
            stated(
                _CONFIG,
                element_kernels=ElementKernels.EAGER,
                note="models as Transformers has them",
            ),
        ),
        option_offer(
            "kernels",
            "compiled",
            "compile.enabled: true",
            stated(_CONFIG, element_kernels=ElementKernels.COMPILED, note="torch.compile"),
        ),
        *MOMENTS,
        *LINEAR_LOSSES,
        *_offload_offers(0, 1, 2, 3),
    ),
)

# Megatron-DeepSpeed of 2022 (AMP's and BigScience's runs): DeepSpeed's 1F1B pipeline over Megatron
# layers with unfused attention.
MEGATRON: Final = derive(
    megatron_lm.Y2021,
    identity_fields(
        "deepspeed-2022", framework="Megatron-DeepSpeed", version="0.6", released="2022-03"
    ),
    stated(
        f"{_BLOB}/v0.6.0/deepspeed/runtime/pipe/engine.py",
        off="overlap_p2p p2p_scatter_gather reduce_every_microbatch",
        zero_with_pipeline=1,
    ),
    stated(f"{_BLOB}/v0.6.0/deepspeed/runtime/pipe/schedule.py", schedules=("1f1b",)),
    stated(
        f"{_BLOB}/v0.6.0/deepspeed/runtime/zero/constants.py",
        bucket_bytes=1_000_000_000,
        note="reduce_bucket_size 5e8 elements of 2 bytes",
    ),
    stated(
        f"{_BLOB}/v0.6.0/deepspeed/runtime/zero/config.py",
        on="optimizer_offload",
        zero_stages=(0, 1, 2, 3),
    ),
    *_OFFLOADED_OPTIMIZER,
    stated(
        "https://github.com/bigscience-workshop/Megatron-DeepSpeed/blob/main/megatron/mpu/layers.py",
        tp_overlap=TpOverlap.NONE,
    ),
    stated(
        f"{_BLOB}/v0.6.0/deepspeed/runtime/zero/partitioned_param_coordinator.py",
        gather_bucket_bytes=100_000_000,
        reuse_elements=1_000_000_000,
        gather_copy_bytes=4,
        reduce_copy_bytes=12,
        note="as in 0.16: the first release with this coordinator (pull request 1453)",
    ),
    offers=(
        option_offer(
            "kernels",
            "fused",
            "--scaled-upper-triang-masked-softmax-fusion --bias-gelu-fusion --bias-dropout-fusion",
            stated(
                _MEGATRON_ARGUMENTS,
                element_kernels=ElementKernels.FUSED,
                note="on by default from Megatron-LM 2.0 on",
            ),
        ),
        option_offer(
            "kernels",
            "eager",
            "--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion",
            read(
                _EAGER,
                element_kernels=ElementKernels.EAGER,
                note=(
                    "none of the flags for fused softmax, bias-gelu and bias-dropout, which version"
                    " 1.1.5 has off by default"
                ),
            ),
        ),
        option_offer(
            "attention",
            "unfused",
            "",
            stated(_MEGATRON_ARGUMENTS, attention_kernel=AttentionKernel.UNFUSED),
        ),
        option_offer(
            "attention",
            "flash-2",
            "--use-flash-attn",
            stated(
                "https://github.com/EleutherAI/gpt-neox/blob/v2.0/configs/neox_arguments.md",
                attention_kernel=AttentionKernel.FLASH_2,
                note=(
                    "attention_config of GPT-NeoX, --use-flash-attn of Megatron-DeepSpeed since"
                    " 2023"
                ),
            ),
        ),
        option_offer(
            "tp_timers",
            "on",
            "mpu/mappings.py: _reduce",
            read(
                _TIMERS,
                on="tp_synchronises",
                note=(
                    "_reduce times its all_reduce; start and stop call torch.cuda.synchronize"
                    " (megatron/global_vars.py, _Timer)"
                ),
            ),
        ),
        option_offer(
            "tp_timers",
            "off",
            "",
            stated(_MEGATRON_ARGUMENTS, off="tp_synchronises", note="no timers there"),
        ),
        *LAUNCH_BLOCKING,
        option_offer(
            "bf16_optimizer",
            "on",
            "bf16.enabled: true",
            read(
                _BF16,
                on="main_grad_copy adds_gradients",
                gradient_dtype=Dtype.FP32,
                zero_stages=(1,),
                note=(
                    "fp32_groups_gradients_flat is a whole fp32 buffer beside the parameters' bf16"
                    " gradients, which _update_hp_grad adds to it after each backward and"
                    " clear_lp_grads zeroes without freeing; states are always partitioned; for"
                    " BLOOM"
                ),
            ),
        ),
        option_offer(
            "bf16_optimizer",
            "off",
            "",
            stated(
                f"{_BLOB}/v0.6.0/deepspeed/runtime/zero/config.py",
                on="adds_gradients",
                off="main_grad_copy",
                gradient_dtype=Dtype.FP16,
                zero_stages=(0, 1, 2, 3),
            ),
        ),
        *_offload_offers(0, 1, 2, 3),
    ),
)

# DeepSpeed's ZeRO-3 as it came out in March 2021 (0.3.11 to 0.5), over Megatron layers: a
# collective a parameter, over lists of tensors.
LISTED: Final = derive(
    MEGATRON,
    identity_fields("deepspeed-2021", version="0.3.13", released="2021-03"),
    read(
        "https://github.com/samyam/DeepSpeed/blob/7fe8f97164e5bb7a04e3983713d19c5b69875b4a/deepspeed/runtime/zero/partition_parameters.py",
        on="listed_collectives",
        off="gather_bucket_bytes",
        gather_copy_bytes=6,
        reduce_copy_bytes=8,
        note=(
            "_allgather_param: torch.cuda.synchronize, an output of zeros (2), dist.all_gather over"
            " a list of views, which NCCL's process group copies out of its flat buffer (2 + 2);"
            " _reduce_scatter_gradient likewise, beside the copy into the bucket"
        ),
    ),
    stated(
        f"{_BLOB}/v0.5.0/deepspeed/runtime/zero/stage3.py",
        on="reduce_every_microbatch overlap_grad_reduce overlap_param_gather",
        reuse_elements=1_000_000_000,
        zero_stages=(0, 3),
        bucket_bytes=0,
        gather_prefetch=1,
        note=(
            "PrefetchCoordinator: the next parameters are prefetched while a module computes;"
            " stage3_max_reuse_distance 1e9; gradients of each parameter apart"
        ),
    ),
    offers=_offload_offers(0, 3),
)
