"""Loading of the compiled kernels before the clock of a search starts.

The first run after installation compiles them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.cost.bounds.closed_form_bounds import bound_members
from shardwright.cost.bounds.compiled_bound_array_records import (
    ChoiceArrays,
    Costs,
    Outer,
    Patterns,
    ProblemNumbers,
)
from shardwright.cost.bounds.longest_path import load_walk
from shardwright.cost.kernels.measured_kernel_factors import tile_padding
from shardwright.cost.step.shared_scalar_cost_formulas import backward_layer, forward_layer
from shardwright.hardware.catalog.measured_gemm_attention_collective_tables import load_lookups
from shardwright.kernel_compilation import compile_in_other_process, compiling, load_numba_runtime
from shardwright.simulator.kernel.event_kernel import simulate


def load_kernels() -> None:
    """Load each compiled kernel by one call on minimal input."""
    load_numba_runtime()
    with compiling():
        # Two halves that take about equally long to compile.
        with compile_in_other_process(__name__, load_clocks.__name__):
            _load_bounds()
            _load_prices()
        load_walk()
        _load_events()


def load_clocks() -> None:
    """Load the kernels that compute longest paths and simulate tasks."""
    load_numba_runtime()
    with compiling():
        load_walk()
        _load_events()


def _load_bounds() -> None:
    """Call the B0 bound kernel on arrays without members."""
    bound_members(
        Costs(
            *(
                np.zeros((1, 1, 1))
                if name == "saved"
                else np.zeros(1)
                if name in _FLAT
                else np.zeros((2, 1))
                for name in Costs._fields
            )
        ),
        Patterns(*_pattern_arrays()),
        Outer(
            *(
                np.zeros(int(name == "start"), dtype=float if name == "jitter" else np.int64)
                for name in Outer._fields
            )
        ),
        ChoiceArrays(
            *(
                np.zeros((1, 1), dtype=np.int64)
                if name.endswith("_lists")
                else np.zeros(1, dtype=np.int64)
                for name in ChoiceArrays._fields
            )
        ),
        _facts(),
    )


def _load_prices() -> None:
    """Call the kernels of collective look-ups, GEMM padding and layer times once."""
    load_lookups()
    tile_padding(m=np.ones(1), n=np.ones(1), k=np.ones(1))
    forward_layer(1.0, 0.0, 0.0, 0, 1.0)
    backward_layer(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, False, 1.0)


def _load_events() -> None:
    """Call the event kernel on one task."""
    one_task = np.zeros(1, dtype=np.int32)
    ends = np.zeros(2, dtype=np.int32)
    simulate(
        np.ones(1, dtype=np.int64),
        one_task,
        ends,
        one_task[:0],
        ends,
        one_task[:0],
        one_task[:0],
        1,
    )


def _facts() -> ProblemNumbers:
    """Constants of the B0 kernel with placeholder values of the right types."""
    numbers: dict[str, Any] = dict.fromkeys(ProblemNumbers._fields, 1.0)
    return ProblemNumbers(
        **(
            numbers
            | dict.fromkeys(_SWITCHES, False)
            | {"layer_block": 0, "blocks": 1, "layer_rows": 0}
        )
    )


_FLAT = (
    *(
        "logits",
        "shard",
        "expert_shard",
        "norm",
        "passes",
        "logits_blocks",
        "overlap_buffers",
        "communicators",
    ),
    *("slowdown", "scales"),
)
_SWITCHES = (
    "every_microbatch",
    "gradients_leave",
    "overlap_gather",
    "blocks_plain",
    "blocks_several",
)
_WHOLE = ("ranks", "chunks_per_rank", "looked", "rank", "has_head")
_DIMENSIONS = (
    dict.fromkeys(("ranks", "chunks_per_rank", "looked", "first_pieces"), 1)
    | dict.fromkeys(("rank", "pieces", "first", "total", "has_head", "crossed_total"), 2)
    | dict.fromkeys(("redone", "redone_before", "redone_around", "redone_own", "redone_least"), 4)
)


def _pattern_arrays() -> list[npt.NDArray[Any]]:
    """Arrays of zeros with the dimensions and types of `Patterns`."""
    return [
        np.zeros((1,) * _DIMENSIONS.get(name, 3), dtype=np.int64 if name in _WHOLE else np.float64)
        for name in Patterns._fields
    ]
