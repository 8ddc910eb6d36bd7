"""The request of a search in the user's words, complete enough to repeat the search."""

from __future__ import annotations

from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import GIB

HEADROOM: Final = 0.05
SEARCH_MEMORY: Final = 2 * GIB
"""Bytes that a search may use for the members of a space, besides the program's own memory."""
OBJECTIVES: Final = ("time", "cost", "energy", "pareto")
"""Objectives of a search: seconds of a step, dollars, joules, or both seconds and dollars (a
front)."""
Choices = tuple[tuple[str, tuple[str, ...]], ...]
"""(axis, values) pairs of pins or exclusions."""
TOP: Final = 3
"""Default number of next best plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A user's request: everything that a plan file needs to repeat the search.

    Args:
        model: catalog name or path of a config.json.
        cluster: expression or path of a YAML file.
        seq_len: tokens of a sequence.
        global_batch: samples a step.
        precision: precision recipe of the job; empty = bf16, or fp16 if the devices lack bf16
            units.
        runtime: catalog name; empty = default of the devices.
        pins, excludes: (axis, values) pairs.
        max_devices: largest number of devices, 0 = all.
        use_all: True if no device may be left idle.
        reserve_bytes, reserve_fraction: memory of each device that programs may not use.
        headroom: fraction of the remaining memory that searched plans leave free, as predictions of
            memory are a few percent off.
        encoder_len, image_tokens: tokens of a sample's encoder text and patches of its images, for
            models that read them (else 0).
        expert_imbalance: tokens of the device with the busiest experts over the mean.
        dropout: True if attention and hidden dropout are on.
        gradient_wire: number format of gradients on the network; empty = the format in which the
            runtime accumulates them.
        search_memory: bytes for the members of a space (`search.grid.search_by_mesh`): a larger
            space is searched in parts.
        space: ``standard``, ``exhaustive``, ``joint``, ``joint-named`` or ``exact``.
        lanes: largest number of lanes in the exact space.
        top: number of next best plans to rank; searches that rank none (joint, exact, for cost or
            energy) accept 0 and `TOP` alone.
        train: trained parameters (`model.freeze_parameters_or_add_lora.parse_training`); empty =
            all.
        teacher: catalog name or path of the model whose logits the loss reads
            (`model.add_frozen_teacher_to_model`); empty = none.
        objective: ``time``, ``cost``, ``energy`` or ``pareto`` (the front of time and cost).
        budget: dollars an hour that plans may cost; 0 = any.
        scenarios: path of a file of cluster conditions with probabilities; empty = the cluster as
            it is.
        tail: level of the slow tail whose mean judges plans for several states
            (`search.certificate_part_of_cluster_states.tail_mean`).
        profile: path of a profile whose measured rates replace the catalog's; empty = none.
    """

    model: str
    cluster: str
    seq_len: int
    global_batch: int
    runtime: str = ""
    precision: str = ""
    pins: Choices = ()
    excludes: Choices = ()
    max_devices: int = 0
    use_all: bool = False
    reserve_bytes: int = 0
    reserve_fraction: float = 0.0
    headroom: float = HEADROOM
    search_memory: int = SEARCH_MEMORY
    encoder_len: int = 0
    image_tokens: int = 0
    expert_imbalance: float = 1.0
    dropout: bool = False
    gradient_wire: str = ""
    space: str = "standard"
    lanes: int = 1
    top: int = TOP
    profile: str = ""
    train: str = ""
    teacher: str = ""
    objective: str = "time"
    budget: float = 0.0
    scenarios: str = ""
    tail: float = 0.0
