"""Vocabulary of options of all training frameworks: names, values and their meaning.

Each value of an option has the launch flag that sets it and the facts that it changes. A framework
offers some of the options; the version's own value of each is the default. An option changes fields
of `Runtime` that the cost model reads, never a number of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Final, TypeVar

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.build_from_sourced_statements import collected_facts
from shardwright.runtime.framework_description import Offer
from shardwright.runtime.runtime_from_sourced_statements import Statement

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of the vocabulary: its name, values and rules for search and devices.

    Args:
        about: the decision that the option takes.
        values: value -> its meaning.
        numerics: the option changes the results of computation, not only the speed; a search never
            chooses it by itself.
        searched: values that a search tries by itself, where a runtime has them. Their time and
            memory are both priced, and none is better in every plan.
        along: axes of a grid; a plan that splits nothing along these axes does not depend on the
            option; empty = every plan does.
        of_device: the values are kernels, named as devices name them; not every device has all.
        vendors: value -> vendors whose accelerators run it, for values of some vendors alone; a
            user's own accelerator may run any.
    """

    name: str
    about: str
    values: Mapping[str, str]
    numerics: bool = False
    searched: tuple[str, ...] = ()
    along: tuple[str, ...] = ()
    of_device: bool = False
    vendors: Mapping[str, frozenset[str]] = field(default_factory=dict)


def _switch(
    name: str, about: str, *, numerics: bool = False, vendors: frozenset[str] = frozenset()
) -> Option:
    """Make an option with the values on and off.

    Args:
        vendors: vendors whose accelerators can have it on, where not all can.
    """
    of_on = {"on": vendors} if vendors else {}
    return Option(
        name=name, about=about, values={"on": "yes", "off": "no"}, numerics=numerics, vendors=of_on
    )


NVIDIA: Final = frozenset({"NVIDIA"})
"""Vendors with CUDA-only features: userbuffers of Transformer Engine, DeepEP, HybridEP, cuDNN, and
CUDA_ environment variables.
"""
CUDA_AND_ROCM: Final = frozenset({"NVIDIA", "AMD"})
"""Vendors of features compiled for CUDA and ROCm: Transformer Engine's Triton kernels, and
collectives that MSCCL runs.
"""
OPTIONS: Final = (
    Option(
        name="transformer",
        about="implementation of the transformer layers",
        values={"te": "Transformer Engine", "local": "the framework's own"},
    ),
    Option(
        name="kernels",
        about="element-wise kernels",
        values={
            "fused": "one kernel for a chain of operators",
            "eager": "one kernel for each operator",
            "compiled": "kernels fused by a compiler",
        },
    ),
    Option(
        name="attention",
        about="kernel of the attention core",
        values={
            "unfused": "GEMMs and softmax; scores are written to memory",
            "flash-1": "FlashAttention",
            "flash-2": "FlashAttention-2",
            "flash-3": "FlashAttention-3",
            "cudnn": "cuDNN's fused attention",
        },
        of_device=True,
    ),
    _switch(
        "fp8_attention",
        "the attention core multiplies in 8 bits if the job computes in 8 or 4 bits",
        numerics=True,
        vendors=NVIDIA,
    ),
    Option(
        name="loss",
        about="implementation of the cross-entropy loss",
        values={
            "plain": "a kernel for each step of the formula, on an fp32 copy",
            "native": "kernels compiled by torch.compile",
            "te": "Transformer Engine's kernel, in place",
        },
        vendors={"te": CUDA_AND_ROCM},
    ),
    Option(
        name="logits_parts",
        about=(
            "parts of a microbatch's tokens whose logits are computed, and recomputed in backward,"
            " one after another"
        ),
        values={"1": "all at once", **{str(n): f"{n} parts" for n in (2, 4, 8, 16, 32)}},
    ),
    Option(
        name="linear_loss",
        about="the head's GEMM and the loss as one operator over parts of a microbatch's tokens",
        values={
            "off": "logits of all tokens at once",
            "liger": "Liger's fused linear cross-entropy: a part's gradient replaces its logits",
            "cut": "Cut Cross-Entropy: logits stay in registers, and are recomputed in backward",
            "chunked": "torchtune's LinearCrossEntropyLoss: eight parts under autograd",
            "parts": "torchtitan's ChunkedLossWrapper: eight parts, each with its backward at once",
        },
        numerics=True,
        vendors={"liger": CUDA_AND_ROCM, "cut": CUDA_AND_ROCM},
    ),
    _switch("wgrad_fusion", "weight gradients are accumulated in the epilogue of their GEMM"),
    Option(
        name="tp_overlap",
        about="overlap of tensor-parallel collectives with GEMMs",
        values={
            "none": "no overlap",
            "dgrad": "the input gradient's collective overlaps the weight gradient's GEMM",
            "userbuffers": "chunks of both overlap (Transformer Engine's userbuffers)",
            "async": "chunks of both overlap (PyTorch's symmetric memory)",
        },
        searched=("dgrad", "userbuffers", "async"),
        along=("tp",),
        vendors={"userbuffers": NVIDIA},
    ),
    Option(
        name="collectives",
        about="algorithms of the all-reduces",
        values={
            "library": "those of the communication library (NCCL, RCCL)",
            "synthesised": "also trees and forests synthesised for the group, run by MSCCL",
        },
        vendors={"synthesised": CUDA_AND_ROCM},
    ),
    _switch(
        "launch_blocking",
        "the host waits for each kernel before it launches the next (CUDA_LAUNCH_BLOCKING=1)",
        vendors=NVIDIA,
    ),
    _switch("tp_timers", "timers around tensor-parallel collectives wait for the device"),
    _switch("grad_overlap", "gradient reduction overlaps the backward pass"),
    _switch("param_overlap", "parameter all-gathers overlap compute"),
    Option(
        name="p2p_overlap",
        about="overlap of pipeline sends and receives with compute",
        values={"interleaved": "only if ranks have several chunks", "off": "never"},
    ),
    Option(
        name="grad_dtype",
        about="dtype in which gradients are accumulated and reduced",
        values={"fp32": "32 bits", "bf16": "16 bits"},
        numerics=True,
    ),
    _switch(
        "bf16_optimizer",
        "DeepSpeed's BF16_Optimizer: unsharded fp32 gradients beside the bf16 ones",
        numerics=True,
    ),
    _switch(
        "grad_check",
        "the norm of every gradient bucket is computed before its collective, to find NaN",
    ),
    Option(
        name="grad_average",
        about="where gradients are divided by the number of replicas",
        values={"collective": "in the collective", "buffer": "in their buffer before it"},
    ),
    Option(
        name="fp8",
        about="scaling factors of 8-bit GEMM operands",
        values={
            "delayed": "one for each tensor, from the magnitudes of earlier steps",
            "current": "one for each tensor, from its current magnitude",
            "rowwise": "one for each row, in the direction of each GEMM",
            "mx": "one for 32 elements (MXFP8)",
            "blockwise": "one for 128 elements; one for 128 x 128 elements of weights",
        },
        numerics=True,
    ),
    _switch(
        "fp8_gather",
        "parameters of 8-bit GEMMs are stored and all-gathered in 8 bits",
        numerics=True,
    ),
    Option(
        name="dispatcher",
        about="transport of tokens to their experts",
        values={
            "allgather": "an all-gather of all tokens of the expert-parallel group",
            "alltoall": "an all-to-all with one copy for each chosen expert",
            "flex": (
                "one copy for each device and node with a chosen expert (DeepEP; HybridEP in"
                " larger islands)"
            ),
            "hybridep": "as flex, always by HybridEP",
        },
        searched=("alltoall", "flex"),
        vendors={"flex": NVIDIA, "hybridep": NVIDIA},
    ),
    Option(
        name="dispatch_dtype",
        about="dtype of tokens sent to experts, and of the gradients of the experts' outputs",
        values={
            "bf16": "16 bits",
            "fp8": "8 bits and a scale for each 128 elements, if the job computes in 8 or 4 bits",
        },
        numerics=True,
    ),
    Option(
        name="dispatch_sms",
        about="multiprocessors reserved for communication that overlaps compute (DualPipe)",
        values={"20": "20", "24": "24", "6": "6"},
    ),
    Option(
        name="gate_dtype",
        about="dtype of the saved inputs of the feed-forward's activation function",
        values={"activation": "that of all activations", "fp8": "8 bits"},
        numerics=True,
    ),
    Option(
        name="moments",
        about="dtype of the optimizer's states",
        values={
            "fp32": "32 bits, or the dtype of the job",
            "bf16": "16 bits; the master copy stays",
            "8bit": "8 bits, quantised in blocks (bitsandbytes, torchao); the master copy stays",
        },
        numerics=True,
    ),
    Option(
        name="capacity",
        about="number of tokens that an expert processes",
        values={
            "dropless": "all tokens routed to it; the host may have to read their number",
            "fixed": "a fixed number; further tokens are dropped",
        },
        numerics=True,
    ),
    replace(
        _switch(
            "expert_overlap",
            "token dispatch and combine overlap the kernels of another microbatch",
        ),
        searched=("off", "on"),
        along=("ep",),
    ),
    Option(
        name="grouped_experts",
        about="GEMMs of the experts on a device",
        values={
            "each": "one GEMM, and quantisation of its operands, for each expert",
            "fused": "one grouped GEMM for all experts",
        },
    ),
    _switch(
        "router_fusion", "router scores, expert selection and auxiliary losses are fused kernels"
    ),
    _switch("permute_fusion", "tokens are permuted by one kernel", vendors=CUDA_AND_ROCM),
    Option(
        name="graphs",
        about="part of an iteration that CUDA graphs replay",
        values={
            "none": "nothing",
            "router": "routers",
            "mamba": "state-space mixers",
            "attn": "attention and state-space mixers",
            "attention-router": "all but the experts",
            "iteration": "a whole iteration",
        },
    ),
    Option(
        name="remat",
        about="activations that a layer saves (remat_policy); all others are recomputed",
        values={
            "full": "its input (and the GEMM outputs with selective recompute)",
            "minimal_with_context": "the GEMM outputs and the attention core's output",
            "minimal": "the GEMM outputs",
            "save_dot_with_context_except_mlp": (
                "queries, keys, values, the attention core's output and the output projection"
            ),
            "save_dot_except_mlpwi": "the GEMM outputs except those before the activation function",
            "save_dot_except_mlp": "queries, keys, values and the attention output projection",
            "save_qkv_proj": "queries, keys and values",
            "save_out_proj": "the attention output projection",
            "qkv_proj_offloaded": "queries, keys and values, in host memory",
            "minimal_offloaded": "the GEMM outputs, in host memory",
            "attention_offloaded": (
                "its input, queries, keys, values and the attention output projection, in host"
                " memory"
            ),
        },
    ),
    _switch("cpu_checkpoints", "inputs of recomputed layers are kept in host memory"),
    _switch("param_offload", "ZeRO-3 parameter shards are kept in host memory"),
    _switch("recompute_norms", "norms are recomputed in backward"),
    _switch(
        "recompute_mla", "up projections of multi-head latent attention are recomputed in backward"
    ),
    _switch("recompute_moe_act", "the experts' activation function is recomputed in backward"),
    _switch("recompute_mlp", "the dense feed-forward is recomputed in backward"),
    _switch("recompute_shared", "the shared experts' feed-forward is recomputed in backward"),
    _switch("recompute_moe", "routed experts, with their dispatch, are recomputed in backward"),
)
BY_NAME: Final[Mapping[str, Option]] = {option.name: option for option in OPTIONS}
OF_EXPERTS: Final = frozenset(
    {
        *(
            "dispatcher",
            "dispatch_dtype",
            "dispatch_sms",
            "capacity",
            "expert_overlap",
            "grouped_experts",
            "router_fusion",
        ),
        *("permute_fusion", "recompute_moe_act", "recompute_shared", "recompute_moe"),
    }
)
"""Options that have no effect on a model without experts."""
_PLACE: Final = {name: place for place, name in enumerate(BY_NAME)}


def option_offer(
    option: str,
    value: str,
    flag: str,
    *statements: Statement,
    needs: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Offer:
    """Describe one value of an option, with its launch flag and the runtime fields it changes.

    Args:
        option, value: of the vocabulary `OPTIONS`.
        flag: the launch flag that sets the value.
        statements: the fields of `Runtime` that the value changes, with their sources.
        needs: {other option: values} without which the framework refuses this value.

    Raises:
        ValueError: no such option or value, or a field is stated twice (a mistake in a runtime
            file, not a user's).
    """
    for name, values_of in ((option, (value,)), *needs.items()):
        unknown_value = next((word for word in values_of if word not in BY_NAME[name].values), "")
        if unknown_value:
            raise ValueError(f"{name} has no value {unknown_value}")
    values, facts = collected_facts(f"{option}={value}", statements)
    return Offer(
        option=option,
        value=value,
        flag=flag,
        values=tuple(values.items()),
        facts=facts,
        needs=tuple(needs.items()),
    )


def in_vocabulary_order(options: Iterable[tuple[str, Value]]) -> tuple[tuple[str, Value], ...]:
    """Sort (option, any value) pairs into the order of the vocabulary."""
    return tuple(sorted(options, key=lambda pair: _PLACE[pair[0]]))
