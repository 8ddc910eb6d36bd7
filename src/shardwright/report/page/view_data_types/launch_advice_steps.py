"""Data of the view of advice: the launch's step, changes with their gains, and the best plan."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchChange:
    """A change of the launch, with its simulated step.

    Args:
        name: the change in words.
        gain: fraction of the launch's step that it saves; None if the launch cannot run.
        length: its step / the longest step shown, a fraction.
        remove, add: settings to remove and to add, as ``name=value`` with commas between; ``-`` if
            none.
    """

    name: str
    strategy: str
    step_s: float
    gain: float | None
    length: float
    remove: str
    add: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLaunchRule:
    """A rule that the launch breaks, with a hint."""

    rule: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLimit:
    """A part of the step besides matrix multiplication, its seconds and share of the step."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulSetting:
    """A setting of the launch that is not understood, has no effect, or differs from the model."""

    name: str
    value: str
    verdict: str
    means: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAdvice:
    """A launch and what would make it faster.

    Args:
        model, cluster: empty where the launch cannot run.
        step_s, reserved_bytes, capacity_bytes: of the launch; None where it cannot run.
        length: the launch's step / the longest step shown.
        changes: single changes, each applied alone, the largest gain first.
        causes: properties of the job that cost most and that no search changes.
        best: the best strategy with all helping options; None if nothing fits.
        proven: True if no other strategy of the space is faster than `best`'s search found.
        considered: single changes that were simulated.
    """

    model: str
    cluster: str
    framework: str
    runtime: str
    strategy: str
    step_s: float | None
    length: float | None
    reserved_bytes: int | None
    capacity_bytes: int | None
    fits: bool | None
    broken: tuple[BrokenLaunchRule, ...]
    limits: tuple[LaunchLimit, ...]
    changes: tuple[LaunchChange, ...]
    causes: tuple[LaunchChange, ...]
    best: LaunchChange | None
    proven: bool | None
    considered: int
    doubtful: tuple[DoubtfulSetting, ...]
