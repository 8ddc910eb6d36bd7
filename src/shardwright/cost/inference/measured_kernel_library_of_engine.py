"""Names of measured kernels for an engine's own names of its backends."""

from __future__ import annotations

from typing import Final

from shardwright.runtime.serving_engines.serving_engine import Engine

LIBRARY_OF: Final = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
# FlashInfer ships TensorRT-LLM's generated kernels, which were measured there at all sizes
# (csrc/trtllm_fused_moe_kernel_launcher.cu).
_SAME_KERNELS: Final = {
    ("trtllm", "trtllm"): "sglang/flashinfer-trtllm",
    ("sglang", "flashinfer-mxfp4"): "sglang/flashinfer-trtllm",
    ("sglang", "triton-kernel"): "sglang/triton",
    ("vllm", "flashinfer-mxfp4-bf16"): "vllm/flashinfer-trtllm",
    ("vllm", "flashinfer-mxfp4-mxfp8"): "vllm/flashinfer-trtllm",
}


def library_of(engine: Engine) -> str:
    """Library whose kernels were measured for an engine; empty where none was measured."""
    return LIBRARY_OF.get(engine.engine, "")


def expert_library(engine: Engine) -> str:
    """Name of the measured kernel of an engine's experts, such as ``vllm/triton``.

    For a backend that was not measured: the name of the library's first kernel.
    """
    library, kernel = library_of(engine), engine.expert_kernel.replace("_", "-")
    return _SAME_KERNELS.get((library, kernel), f"{library}/{kernel}" if kernel else library)
