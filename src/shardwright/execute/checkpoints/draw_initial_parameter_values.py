"""Initial parameter values for training from scratch, drawn by element number under any plan."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from hashlib import blake2b
from math import log, pi, prod

import numpy as np
import torch

from shardwright.execute.device_state.stored_parameter_parts import Key, whole_shape
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.layout.tensor_layout import Box, count

AT_ONCE = 1 << 15
"""Number of elements that are drawn at a time, which stay in a processor's cache."""
STEPS = (1e-3, 0.1)
"""Smallest and largest initial time step of a state-space model."""
RATES = (1.0, 16.0)
"""Smallest and largest initial decay rate of a state-space model's head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialValues:
    """Parameter source of initial values, equal for each element under every plan.

    A device draws only the elements that it holds.

    Weights: normal with standard deviation `std`, divided by the square root of the number of
        branches where they end a residual branch (Radford et al. 2019, Language models are
        unsupervised multitask learners, section 2.3). Gains 1, biases 0, second factors of adapters
        0 (Hu et al. 2021, arXiv 2106.09685). A padding row is zeros. State-space models:
        convolutions as in torch, time steps log-uniform in `STEPS`, rates uniform in `RATES` or 1,
        2, .. by state (Gu and Dao 2023, arXiv 2312.00752, section 3.6; Dao and Gu 2024, arXiv
        2405.21060). The generator is SplitMix64 (Steele, Lea and Flood 2014, Fast splittable
        pseudorandom number generators, figure 19).

    Args:
        seed: seed of all numbers.
        std: standard deviation of weights.
        dtype: format of the values.
    """

    model: Model
    seed: int
    dtype: torch.dtype
    std: float = 0.02

    def __call__(self, key: Key) -> torch.Tensor:
        """Draw the initial values of a full parameter, the same under every plan."""
        return self.part(key, tuple(((0, n),) for n in whole_shape(self.model, key)))

    def part(self, key: Key, box: Box) -> torch.Tensor:
        """Draw the initial values of a parameter's elements in a box, the same under every plan."""
        run, _, name, parameter = key
        operator = next(
            o for o in self.model.blocks[self.model.runs[run].block].operators if o.name == name
        )
        result = torch.empty([count(i) for i in box], dtype=self.dtype)
        first, inner = _element_numbers(whole_shape(self.model, key), box)
        rows, step, threads = (
            result.view(len(first), len(inner)),
            max(1, AT_ONCE // max(1, len(inner))),
            torch.get_num_threads(),
        )

        def draw_rows(start: int) -> None:
            """Draw the values of a block of the box's rows, from row `start` on."""
            numbers = first[start : start + step, None] + inner
            rows[start : start + step] = torch.from_numpy(
                self._draw(key, operator, parameter, numbers)
            )

        starts = range(0, len(first), step)
        if min(len(starts), threads) <= 1:
            deque(map(draw_rows, starts), maxlen=0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                deque(pool.map(draw_rows, starts), maxlen=0)
        return result

    def _draw(
        self, key: Key, operator: Operator, parameter: str, numbers: np.ndarray
    ) -> np.ndarray:
        """Draw a parameter's elements at flat positions `numbers`, by the rule of its operator."""
        leaf_name = parameter.split(".", 1)[1] if "." in parameter else parameter
        is_time_step = parameter.rpartition(".")[2] == "dt_bias" or (
            operator.name.endswith("dt_proj") and "bias" in leaf_name
        )
        if operator.kind in (OperatorKind.NORM, OperatorKind.RESIDUAL, OperatorKind.ACTIVATION):
            return np.full(numbers.shape, 0.0 if leaf_name.endswith(("bias", "shift")) else 1.0)
        if is_time_step:
            steps = np.exp(log(STEPS[0]) + self._uniform(key, numbers) * log(STEPS[1] / STEPS[0]))
            return np.asarray(steps + np.log(-np.expm1(-steps)))
        if operator.kind is OperatorKind.SCAN:
            return self._draw_scan_parameter(key, parameter.rpartition(".")[2], numbers)
        if operator.kind is OperatorKind.CONV:
            taps = operator.parameters[0].extents[-1].size
            return np.asarray((2 * self._uniform(key, numbers) - 1) * taps**-0.5)
        if operator.kind is OperatorKind.ROUTE:
            return np.full(numbers.shape, 1.0 if parameter.endswith("expert_scale") else 0.0)
        if ".bias" in parameter or parameter in {p.name for p in operator.adapters[1:]}:
            return np.zeros(numbers.shape)
        drawn = np.asarray(
            self._normal(key, numbers) * (self.std * self._residual_factor(operator))
        )
        row = self.model.settings.padding_row
        if (
            operator.kind is not OperatorKind.EMBEDDING
            or row is None
            or parameter != operator.parameters[0].name
        ):
            return drawn
        width = whole_shape(self.model, key)[1]
        return np.where(numbers // width == row, 0.0, drawn)

    def _draw_scan_parameter(self, key: Key, word: str, numbers: np.ndarray) -> np.ndarray:
        """Draw state-space elements: logarithms of decay rates for ``a_log``, else ones."""
        if word != "a_log":
            return np.ones(numbers.shape)
        shape = whole_shape(self.model, key)
        if len(shape) == 2:
            return np.asarray(np.log1p(numbers % shape[1]))
        return np.asarray(np.log(RATES[0] + self._uniform(key, numbers) * (RATES[1] - RATES[0])))

    def _residual_factor(self, operator: Operator) -> float:
        """1 / sqrt(residual branches) for a projection back into the stream; 1 for others."""
        ends = (
            operator.kind in (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)
            and [(e.dim, e.size) for e in operator.writes] == [(Dim.HIDDEN, self.model.hidden)]
            and operator.reads[0].dim in (Dim.HEADS, Dim.FFN)
        )
        return residual_branches(self.model) ** -0.5 if ends else 1.0

    def _uniform(self, key: Key, numbers: np.ndarray) -> np.ndarray:
        """Uniform numbers in (0, 1) with 32 bits, one for each element number."""
        return self._uniform_pairs(key, numbers)[0]

    def _normal(self, key: Key, numbers: np.ndarray) -> np.ndarray:
        """Standard normal number of each element, by Box and Muller (1958), of size at most 6.8."""
        radius, angle = self._uniform_pairs(key, numbers)
        return np.asarray(np.sqrt(-2.0 * np.log(radius)) * np.cos(2 * pi * angle))

    def _uniform_pairs(self, key: Key, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Two uniform numbers for each element number, from a SplitMix64 stream.

        Seed and parameter begin the stream.
        """
        begin = int.from_bytes(
            blake2b(repr((self.seed, key)).encode(), digest_size=8).digest(), "little"
        )
        x = numbers.astype(np.uint64)
        x *= np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(begin)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        high, low = x >> np.uint64(32), x & np.uint64(0xFFFFFFFF)
        return (high.astype(np.float64) + 0.5) * 2.0**-32, (low.astype(np.float64) + 0.5) * 2.0**-32


def residual_branches(model: Model) -> int:
    """Number (>= 1) of operators that add a branch to the residual stream, over all layers.

    The sum over a token's experts is within a branch.
    """
    return max(
        1,
        sum(
            run.count
            for run in model.runs
            for o in model.blocks[run.block].operators
            if o.joins_stream
        ),
    )


def _element_numbers(shape: tuple[int, ...], box: Box) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays whose outer sum numbers a box's elements: of leading dims, and of inner dims.

    The array of inner dims has at most `AT_ONCE` elements.

    Example: for rows 1 and 3 and columns 0 and 1 of a 4 x 2 parameter: (2, 6) and (0, 1).
    """
    dims = [
        np.concatenate([np.arange(a, b) for a, b in indices]) * prod(shape[dim + 1 :])
        if indices
        else np.zeros(0, dtype=np.int64)
        for dim, indices in enumerate(box)
    ]
    cut = next(dim for dim in range(1, len(dims) + 1) if prod(map(len, dims[dim:])) <= AT_ONCE)
    first, inner = (
        reduce(
            lambda one, other: np.add.outer(one, other).ravel(), part, np.zeros(1, dtype=np.int64)
        )
        for part in (dims[:cut], dims[cut:])
    )
    return first, inner
