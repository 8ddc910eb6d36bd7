"""torchtitan 0.2: PyTorch FSDP2, tensor parallelism as DTensor, torch.compile, PyTorch pipelining."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.facts import cite
from shardwright.runtime.runtime import AttentionKernel, ElementKernels, FullRecompute, Runtime, SelectiveRecompute, TpOverlap
from shardwright.units import MIB

_TREE: Final = "https://github.com/pytorch/torchtitan/blob/v0.2.0/torchtitan"
_FSDP: Final = "https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html"

RUNTIME: Final = Runtime(
    name="torchtitan-0.2",
    framework="torchtitan",
    version="0.2",
    released="2025-10",
    gradient_dtype=Dtype.FP32,
    main_grad_copy=False,
    zero_stages=(2, 3),
    zero_with_pipeline=3,
    hybrid_sharding=True,
    optimizer_offload=False,
    schedules=("gpipe", "1f1b", "interleaved-1f1b"),
    sequence_parallel=True,
    context_ring=True,
    context_gather=True,
    context_ulysses=False,
    expert_parallel=True,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    overlap_p2p=True,
    bucket_bytes=0,
    gather_prefetch=1,
    reduce_every_microbatch=True,
    tp_overlap=TpOverlap.NONE,
    element_kernels=ElementKernels.COMPILED,
    attention_kernel=AttentionKernel.FLASH_2,
    full_recompute=FullRecompute.STOPS_EARLY,
    tp_input_regather=False,
    p2p_scatter_gather=False,
    fused_weight_gradient=False,
    fused_loss=True,
    logits_bytes=4,
    embedding_gradient_bytes=2,
    workspace_bytes=32 * MIB,
    allocator_reserve_percent=3,
    default_recompute="selective",
    selective_recompute=SelectiveRecompute.OPERATORS,
    gathers_from_master=True,
    zero1_broadcasts=False,
    gather_copy_bytes=4,
    reduce_copy_bytes=6,
    facts=(
        *cite(
            "https://github.com/pytorch/pytorch/blob/v2.9.0/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
            "row_kernels",
            "gradient_passes",
            "scales_gradients",
            note="passes over whole gradients beside the update are not counted here; no such kernels",
        ),
        *cite(
            "https://github.com/pytorch/pytorch/blob/v2.9.0/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
            "gather_copy_bytes",
            "reduce_copy_bytes",
            "gradient_wire",
            checked=True,
            note="split_with_sizes_copy of the gathered bf16 (2 + 2 bytes); chunk_cat of bf16 gradients into the fp32 buffer (2 + 4)",
        ),
        *cite(
            f"{_TREE}/models/llama3/infra/parallelize.py",
            "gradient_dtype",
            "main_grad_copy",
            "zero_stages",
            "zero_with_pipeline",
            "bucket_bytes",
            "gathers_from_master",
            "element_kernels",
            note="fp32 parameters, bf16 when gathered, fp32 reduction; one group a layer; reshard_after_forward chooses stage 2 or 3",
        ),
        *cite(
            f"{_TREE}/distributed/parallel_dims.py",
            "hybrid_sharding",
            "expert_parallel",
            "sequence_parallel",
            note="dp_replicate x dp_shard",
        ),
        *cite(
            _FSDP,
            "overlap_grad_reduce",
            "overlap_param_gather",
            "gather_prefetch",
            "reduce_every_microbatch",
            "zero1_broadcasts",
            note="implicit prefetch: the next all-gather is issued while the present layer computes; reduce-scatter in backward",
        ),
        *cite(
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/index.html",
            "collective_library",
            note="torch.distributed's nccl backend",
        ),
        *cite(f"{_TREE}/distributed/expert_parallel.py", "expert_dispatch", note="all_to_all_single_autograd of every routed copy"),
        *cite(
            "https://github.com/pytorch/ao/blob/main/torchao/float8/float8_linear.py",
            "saves_quantized",
            note="matmul_with_hp_or_float8_args saves the high-precision input and casts it again",
        ),
        *cite(f"{_TREE}/distributed/pipeline_parallel.py", "schedules", "overlap_p2p", "p2p_scatter_gather"),
        *cite(f"{_TREE}/distributed/context_parallel.py", "context_ring", "context_gather", "context_ulysses", note="rotate method"),
        *cite(f"{_TREE}/config/job_config.py", "optimizer_offload", "default_recompute", note="activation_checkpoint.mode selective"),
        *cite(
            "https://github.com/pytorch/torchtitan/blob/01db32e97d28d588eccadf527155d2201797d0b8/torchtitan/distributed/activation_checkpoint.py",
            "full_recompute",
            "selective_recompute",
            checked=True,
            note="checkpoint_wrapper with early_stop; the per-operator policy saves attention and every second matrix product",
        ),
        *cite(
            f"{_TREE}/distributed/tensor_parallel.py",
            "tp_overlap",
            "tp_input_regather",
            note="asynchronous TP is an option, off by default",
        ),
        *cite(
            "https://pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
            "attention_kernel",
            "fused_weight_gradient",
            "adds_gradients",
        ),
        *cite(
            f"{_TREE}/components/loss.py",
            "fused_loss",
            "logits_bytes",
            "logits_blocks_bytes",
            "split_logits_bytes",
            "loss_bytes",
            "embedding_gradient_bytes",
            note="the loss is compiled with the model: bf16 logits and their bf16 gradient, the fp32 values stay in registers",
        ),
        *cite(
            f"{_TREE}/distributed/expert_parallel.py",
            "capture",
            "routing_on_host",
            "expert_overlap",
            "fused_experts",
            "attention_eight_bit",
            "rebuilds_latent",
            note="no captured graphs; splits of the all-to-all are read on the host; grouped_mm over all local experts",
        ),
        *cite("https://docs.nvidia.com/cuda/cublas/#cublassetworkspace", "workspace_bytes", note="32 MiB recommended from Hopper on"),
        *cite(
            "https://pytorch.org/docs/stable/notes/cuda.html#memory-management", "allocator_reserve_percent", note="SimuMax prints 3 to 8 %"
        ),
    ),
    aliases=("torchtitan", "fsdp2", "pytorch-fsdp2"),
)
