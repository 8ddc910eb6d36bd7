"""What a simulation says of one strategy."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.hardware.device import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of one device of a pipeline rank, in bytes.

    Args:
        rank: pipeline rank. devices: how many devices look the same. layers: text such as ``embed + 7 layers``.
        items: (name, bytes): parameters, gradients, optimizer, activations, logits, temporaries, workspace.
        allocated: peak of what is allocated at once. reserved: what the allocator holds.
    """

    rank: int
    devices: int
    layers: str
    items: tuple[tuple[str, int], ...]
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One reason for a wider interval, and how much of it (0 to 1) a prediction has."""

    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a number that went into the prediction comes from."""

    quantity: str
    value: str
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Time and memory of one step.

    Args:
        step_time_s: seconds. interval_s: 80 % interval (low, high).
        tokens_per_s, tokens_per_s_per_device: of text tokens.
        mfu_causal, mfu_full: model FLOPs over peak, counting the scores under the mask, or the full square.
        allocated_bytes, reserved_bytes: worst device. capacity_bytes: what a device has for the program.
        stages: one a pipeline rank. breakdown_s: (name, seconds) of the critical device, tiling the step.
        sources: numbers behind it. doubts: what its interval is made of.
    """

    step_time_s: float
    interval_s: tuple[float, float]
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu_causal: float
    mfu_full: float
    allocated_bytes: int
    reserved_bytes: int
    capacity_bytes: int
    stages: tuple[StageMemory, ...]
    breakdown_s: tuple[tuple[str, float], ...]
    sources: tuple[Source, ...] = ()
    doubts: tuple[Doubt, ...] = ()
