"""The request of a search in the user's words, enough to search again."""

from __future__ import annotations

from typing import Final

from shardwright.lazy_dataclass import dataclass
from shardwright.units import GIB

HEADROOM: Final = 0.05
SEARCH_MEMORY: Final = 2 * GIB
"""Bytes that a search may take for the members of a space, beside what the program takes itself."""
OBJECTIVES: Final = ("time", "cost", "energy", "pareto")
"""What plans are best in: seconds of a step, dollars, joules, or both seconds and dollars (a
front)."""
Choices = tuple[tuple[str, tuple[str, ...]], ...]
"""(axis, values) pairs of pins or exclusions."""
TOP: Final = 3
"""Next best plans where nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A user's request: everything that a plan file needs to search again.

    Args:
        model: catalog name or path of a config.json.
        cluster: expression or path of a YAML file.
        seq_len: tokens.
        global_batch: samples a step.
        precision: recipe of the job; empty = bf16, or fp16 where the devices have no units for it.
        runtime: catalog name; empty = the devices' default.
        pins, excludes: (axis, values) pairs.
        max_devices: 0 = all.
        use_all: no device of them is left idle.
        reserve_bytes, reserve_fraction: of each device's memory, which programs do not have.
        headroom: share of the rest that plans of a
        search leave free, as predictions of memory are a few percent off.
        encoder_len, image_tokens: tokens of a sample's encoder text and patches of its images, for
            models that read them (else 0).
        expert_imbalance: tokens of the device with the busiest experts over the mean.
        dropout: attention and hidden dropout are on.
        gradient_wire: dtype of gradients on the network; empty = the one in which the runtime adds
            them up.
        search_memory: bytes for the members of a space (`search.grid.by_mesh`): a larger space is
            searched in parts.
        space: ``standard``, ``exhaustive``, ``joint``, ``joint-named`` or ``exact``.
        lanes: most of them, of plans of the exact space.
        top: next best plans to rank; searches that rank none (joint, exact, for cost or energy)
            take 0 and `TOP` alone.
        train: what is trained (`model.trained.parse_training`); empty = all.
        teacher: catalog name or path of the model whose logits the
        loss reads (`model.taught`); empty = there is none.
        objective: ``time``, ``cost``, ``energy`` or ``pareto`` (the front of time and cost).
        budget: dollars an hour that plans may rent
        for; 0 = any.
        scenarios: path of a file with the states in which the cluster is met; empty = as it is
            alone.
        tail: level of the slow tail by whose mean plans for several states are judged
            (`search.scenarios.tail_mean`).
        profile: path of a profile whose measured rates take the place of the catalog's; empty =
            none.
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
