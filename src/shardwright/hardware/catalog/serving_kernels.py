"""Numbers of serving kernels that formulas use where no table answers. Few; each says which kernel tables it was found in, and how.

None was fitted to a run of an engine. All come from the tables of aiconfigurator-core 0.12.0 (see docs/kernels.md for their errors).
"""

from __future__ import annotations

from typing import Final

DECODE_LAUNCHES: Final = 3.2
"""Launches that a decode attention takes before it reads keys: of the split kernel, of the one that joins, and writing the new key.

Median start of affine fits at one sequence, heads of 128 and 64, 3 us a launch: 9.5 us over A100, H100, H200, B200 and three engines.
"""

DECODE_TILE: Final = 128
"""Keys that a decode attention takes at once: what it reads of a sequence is rounded up to them.

From the start of fits at 1024 sequences of 8 key heads on H200: 153 and 170 us of flash-3, 1.2 to 1.3 tiles of 128 keys.
"""

DECODE_BANDWIDTH: Final = 0.88
"""Share of the memory's bandwidth that decode attention reaches: median slope of the same fits at 64 sequences and more."""

LATENT_COMPUTE: Final = 0.6
"""Share of peak that scores of absorbed latent attention reach with 128 heads: generation MLA tables of H100 and H200 at 32k tokens."""

EXPERT_LAUNCHES: Final = 11.0
"""Launches of a routed-experts operator (sort, two grouped products, gate, sum): fitted start of 33 us, median of Hopper's kernels."""

SMALL_KERNEL_LAUNCHES: Final = 0.65
"""Launches that a small element-wise kernel of a captured graph takes beside its bytes, as a cast before a product: 1.95 us.

Start of vLLM's and SGLang's 8-bit products, 5.3 to 5.7 us, less that of their 16-bit ones, 3.3 to 3.8 us (H100 and H200). Casts by
themselves take 1.4 to 2.6 us at 16 rows and fewer (quantize tables of vLLM and TensorRT-LLM, nine devices; median 2.0).
"""

NORMAL_DISPATCH_HOPS: Final = 20.0
"""Hops of a ring that DeepEP's kernels for throughput take before tokens move: 26 us for one token over 8 H100, whose hop is 1.29 us."""

NORMAL_COMBINE_HOPS: Final = 37.0
"""The same of their sums on the way back: 48 us."""
