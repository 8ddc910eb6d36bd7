"""Constants of serving kernels' formulas, used where no table has an entry.

Each states the kernel tables that it was found in, and how. None was fitted to a run of an engine.
All come from tables of aiconfigurator-core 0.12.0 (docs/serving-kernels.md has their errors).
"""

from __future__ import annotations

from typing import Final

DECODE_LAUNCHES: Final = 3.6
"""Launches that a decode attention takes before it reads keys: of the split kernel, of the one that
joins, and writing the new key.

Median start of the tables at one sequence, heads of 64 and 128, 3 us a launch: 10.7 us over nine
devices and three engines.
"""

DECODE_TILE: Final = 128
"""Keys that a decode attention takes at once: what it reads of a sequence is rounded up to them.

Starts at 1024 sequences of 8 key heads on H100 and H200 are 121 to 203 us, where reading 128 keys
of each takes 160 and 112.
"""

DECODE_BANDWIDTH: Final = 0.94
"""Share of the memory's bandwidth that decode attention reaches: median slope of the same tables at
64 sequences and more."""

LATENT_COMPUTE: Final = 0.6
"""Share of peak that scores of absorbed latent attention reach with 128 heads: 0.58 to 0.66 in the
tables of H100 and H200, 64 sequences and more.
"""

EXPERT_LAUNCHES: Final = 10.5
"""Launches of a routed-experts operator (sort, two grouped products, gate, sum): median of the
fitted forms of all kernels and devices."""

SMALL_KERNEL_LAUNCHES: Final = 0.65
"""Launches that a small element-wise kernel of a captured graph takes beside its bytes, as a cast
before a product: 1.95 us.

Start of vLLM's and SGLang's 8-bit products, 5.3 to 5.7 us, less that of their 16-bit ones, 3.3 to
3.8 us (H100 and H200). Casts by themselves take 1.4 to 2.6 us at 16 rows and fewer (quantize tables
of vLLM and TensorRT-LLM, nine devices; median 2.0).
"""

NORMAL_DISPATCH_HOPS: Final = 20.0
"""Hops of a ring that DeepEP's kernels for throughput take before tokens move: 26 us for one token
over 8 H100, whose hop is 1.29 us."""

NORMAL_COMBINE_HOPS: Final = 37.0
"""Hops of a ring that DeepEP's throughput kernels take before their sums move back: 48 us."""
