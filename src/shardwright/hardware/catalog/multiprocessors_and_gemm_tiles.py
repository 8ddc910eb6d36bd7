"""Streaming multiprocessors of accelerators: number, generation, FLOPs a clock, GEMM tile shapes.

Numbers are from white papers, from memory. The loss of a kernel by its shape follows from them
(`cost.kernels.tile_quantization`): parts of the same clock and peak differ in the number of tiles
that they compute at once. An accelerator that is not listed loses only the padding to whole tiles.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass

Tile = tuple[int, int]

GPU_TILES: Final[tuple[Tile, ...]] = (
    (256, 128),
    (128, 256),
    (128, 128),
    (256, 64),
    (64, 256),
    (128, 64),
    (64, 128),
    (64, 64),
)
"""Rows and columns of the result that a block of threads computes.

Source: NVIDIA, Matrix Multiplication Background User's Guide
(docs.nvidia.com/deeplearning/performance), section 2.3: cuBLAS's tiles, the most efficient first;
from memory.
"""

DEPTH: Final = 64
"""Elements of k that a GPU's kernel takes at once.

See `cost.kernels.measured_kernel_factors.TILE`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiprocessors:
    """Multiprocessors of an accelerator, each of which computes one GEMM tile at a time.

    Args:
        count: number of multiprocessors.
        tiles: shapes that a library chooses among;
        depth: multiple that k is padded to.
        multiplications: 16-bit multiply-adds a clock of one multiprocessor, dense, summed in fp32;
            0 = operands are fetched at no cost.
        lanes: loads or stores of a thread that one multiprocessor starts a clock.
        asynchronous: loads of 4 to 16 bytes go straight to shared memory (``cp.async``, from Ampere
            on); else a load and a store.
        unaligned: share of peak of the instructions for operands that are no multiple of 16 bytes.
        waves: each tile is a block of threads of its own, so that the last blocks leave
            multiprocessors idle; False where kernels are persistent and divide the rest.
        generation: major number of NVIDIA's compute capability (developer.nvidia.com/cuda-gpus,
            from memory); 0 for other vendors.
    """

    count: int
    tiles: tuple[Tile, ...] = GPU_TILES
    depth: int = DEPTH
    multiplications: int = 0
    lanes: int = 0
    asynchronous: bool = False
    unaligned: float = 1.0
    waves: bool = True
    generation: int = 0


MMA_ON_HOPPER: Final = 0.63
"""Share of peak at which Hopper's multiprocessors issue the instructions of older kernels: 0.629
(arXiv 2402.13499, mma on H800), "two thirds" (FlashAttention-3 paper); both from memory.
"""

MMA_ON_BLACKWELL: Final = MMA_ON_HOPPER * 989 / 2250 * 1.3
"""The same share for Blackwell: Hopper's rate by multiprocessors and clock (assumed)."""

# TMA takes strides of multiples of 16 bytes only (CUDA driver API, cuTensorMapEncodeTiled:
# globalStrides), and the matrix instructions of Hopper and Blackwell in cuBLAS are fed by it: other
# products run Ampere's kernels. NVIDIA/cutlass#2491 says so of Blackwell; m87-labs/kestrel#143 saw
# cutlass_80_tensorop_bf16_s16816gemm_align2 on Hopper for k = 588.
_VOLTA: Final = Multiprocessors(count=80, multiplications=512, lanes=32, generation=7)
_TURING: Final = Multiprocessors(count=40, multiplications=512, lanes=16, generation=7)
_A100: Final = Multiprocessors(
    count=108, multiplications=1024, lanes=32, asynchronous=True, generation=8
)
_GA102: Final = Multiprocessors(
    count=72, multiplications=512, lanes=16, asynchronous=True, generation=8
)
_GEFORCE: Final = replace(_GA102, multiplications=256)

# Scatter of the measured grids (docs/physics.md, waves): they explain some of it on A100 and RTX
# PRO 6000, none on these.
_ADA: Final = replace(_GA102, count=142, waves=False)
_GEFORCE_ADA: Final = replace(_GEFORCE, count=128, waves=False)
_HOPPER: Final = Multiprocessors(
    count=132,
    multiplications=2048,
    lanes=32,
    asynchronous=True,
    unaligned=MMA_ON_HOPPER,
    waves=False,
    generation=9,
)
# A quarter of the rate, which older instructions reach too.
_H20: Final = replace(_HOPPER, count=78, multiplications=512, unaligned=1.0)
_BLACKWELL: Final = Multiprocessors(
    count=148,
    multiplications=4096,
    lanes=32,
    asynchronous=True,
    unaligned=MMA_ON_BLACKWELL,
    waves=False,
    generation=10,
)
# Blackwell's cards with GDDR memory have as many multiply-adds a clock as Ampere's.
_GB202: Final = replace(_GA102, count=188, generation=12)
_GEFORCE_GB202: Final = replace(_GEFORCE, count=170, generation=12)

# A core's systolic array holds a square of the weights; rows stream through eight at a time. XLA
# pads to both. From memory.
_MXU_128: Final = Multiprocessors(count=1, tiles=((8, 128),), depth=128)
_MXU_256: Final = Multiprocessors(count=1, tiles=((8, 256),), depth=256)

_LISTED: Final = {
    _VOLTA: {80: "v100-sxm-32gb v100-sxm-16gb"},
    _TURING: {40: "t4"},
    _A100: {
        108: "a100-sxm-80gb a100-sxm-40gb a100-pcie-80gb a100-pcie-40gb a800-sxm-80gb",
        56: "a30",
    },
    _GA102: {72: "a10"},
    _GEFORCE: {82: "rtx-3090", 80: "a10g"},
    _ADA: {142: "l40s", 58: "l4"},
    _GEFORCE_ADA: {128: "rtx-4090"},
    _GB202: {188: "rtx-pro-6000"},
    _GEFORCE_GB202: {170: "rtx-5090"},
    _HOPPER: {
        132: "h100-sxm h100-sxm-96gb-500w h100-nvl h200-sxm h800-sxm gh200-96gb",
        114: "h100-pcie",
    },
    _H20: {78: "h20"},
    _BLACKWELL: {148: "b200-sxm gb200-nvl72 b300-sxm gb300-nvl72"},
    Multiprocessors(count=110): {110: "mi250x", 304: "mi300x mi325x", 256: "mi355x"},
    _MXU_128: {1: "tpu-v3 tpu-v4 tpu-v5e tpu-v5p"},
    _MXU_256: {1: "tpu-v6e tpu-7x"},
}

MULTIPROCESSORS: Final = MappingProxyType(
    {
        name: replace(kind, count=count)
        for kind, parts in _LISTED.items()
        for count, names in parts.items()
        for name in names.split()
    }
)
"""Multiprocessors by catalog name."""
