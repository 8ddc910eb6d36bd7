"""Kinds of kernels, overlap, recompute and low-precision scaling among which frameworks differ."""

from __future__ import annotations

from enum import StrEnum


class TpOverlap(StrEnum):
    """Overlap of tensor-parallel collectives with the GEMMs beside them.

    ASYNC: PyTorch's symmetric memory: pieces are copied, and a separate kernel sums those of a
    reduce_scatter.
    """

    NONE = "none"
    DGRAD = "dgrad"
    ASYNC = "async"
    FUSED = "fused"


class ElementKernels(StrEnum):
    """Fusion of element-wise kernels: hand-fused, fused by a compiler, or one kernel each."""

    FUSED = "fused"
    COMPILED = "compiled"
    EAGER = "eager"


class AttentionKernel(StrEnum):
    """Generation of the attention kernel; UNFUSED writes the scores to memory."""

    UNFUSED = "unfused"
    FLASH_1 = "flash-1"
    FLASH_2 = "flash-2"
    FLASH_3 = "flash-3"
    CUDNN = "cudnn"
    TRITON = "triton"


class SelectiveRecompute(StrEnum):
    """Operators of a layer that ``recompute=selective`` runs again in the backward pass.

    CORE: the attention core. OPERATORS: all but every second GEMM and the attention core. NAMED:
    all except `Runtime.kept_outputs`.
    """

    CORE = "core"
    OPERATORS = "operators"
    NAMED = "named"


class ExpertDispatch(StrEnum):
    """Transport of tokens to their experts.

    GATHERED: all tokens go to all devices that share experts. ALL_TO_ALL: one copy for each chosen
    expert. DEDUPLICATED: one copy for each device (and each node on the way) that holds a chosen
    expert.
    """

    GATHERED = "all-gather"
    ALL_TO_ALL = "all-to-all"
    DEDUPLICATED = "flex"


class Capture(StrEnum):
    """Part of a training iteration that captured CUDA graphs replay without the host.

    Nothing; routers; state-space mixers; these and attention; all but the experts; or the whole
    iteration.
    """

    NONE = "none"
    ROUTER = "router"
    MAMBA = "mamba"
    ATTENTION = "attn"
    ATTENTION_ROUTER = "attention-router"
    ITERATION = "iteration"


class LinearLoss(StrEnum):
    """Fusion of the head's matrix multiplication with the loss, over parts of the tokens.

    The logits of all tokens then never exist at once. NONE: not fused. LIGER: each part's gradient
    replaces its logits at once, and a part is so small that its logits take about as much memory as
    the hidden states of all tokens (`cost.buffers.logits_buffers.liger_tokens`). CUT: logits stay
    in a kernel's registers, and are computed again in backward. CHUNKED: eight parts under
    autograd, which keeps the loss's inputs of each part for backward. PARTS: eight parts, each
    with its backward at once.
    """

    NONE = "none"
    LIGER = "liger"
    CUT = "cut"
    CHUNKED = "chunked"
    PARTS = "parts"


class Scaling(StrEnum):
    """Elements of an 8-bit operand that share one scale, and when the scale is known.

    DELAYED: the tensor, from the magnitudes of earlier steps. CURRENT: the tensor, from its own
    magnitude. ROWWISE: each row, of each GEMM's own direction. MX: 32 elements (OCP microscaling).
    BLOCKWISE: 128 elements, of weights 128 x 128 (DeepSeek-V3). GEMMs in 4 bits have NVFP4's
    scales: one for 16 elements and one for the tensor.
    """

    DELAYED = "delayed"
    CURRENT = "current"
    ROWWISE = "rowwise"
    MX = "mx"
    BLOCKWISE = "blockwise"


class ScaleGroup(StrEnum):
    """Devices over which delayed scaling reduces magnitudes after each pass of a chunk.

    None; a stage's tensor- and context-parallel ranks; or all of a stage's devices.
    """

    NONE = "none"
    TENSOR = "tensor"
    STAGE = "stage"


class KeptOutput(StrEnum):
    """A layer's tensor that a rematerialisation policy keeps by name.

    INPUT: the layer's input. QKV: queries, keys and values at the attention core's input. CORE: the
    core's output. PROJ: the output of the projection after the core. UP and DOWN: the outputs of
    the GEMMs before and after an activation.
    """

    INPUT = "input"
    QKV = "qkv"
    CORE = "core"
    PROJ = "proj"
    UP = "up"
    DOWN = "down"


class FullRecompute(StrEnum):
    """Part of a layer that ``recompute=full`` runs again.

    WHOLE: the whole layer. STOPS_EARLY: all but its last GEMM (a checkpoint that stops early).
    """

    WHOLE = "whole"
    STOPS_EARLY = "stops-early"
