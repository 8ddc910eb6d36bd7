"""The best plans of one request for several numbers of devices or batches."""

from __future__ import annotations

from shardwright.lazy_dataclass import dataclass
from shardwright.search.simulated_strategy import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The best plan for one number of devices and one batch.

    Args:
        devices: of the cluster.
        global_batch: sequences a step.
        simulation: of the best plan; None where there is none.
        why: there is none.
    """

    devices: int
    global_batch: int
    simulation: Simulation | None
    why: str = ""

    @property
    def tokens_per_s(self) -> float:
        """Text tokens a second; 0 where nothing fits."""
        return self.simulation.prediction.tokens_per_s if self.simulation is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The best plans on ever more devices, with the same batch.

    Args:
        trials: fewest devices first.
        knee: devices of the trial with the most efficiency over step time; 0 where nothing fits.
    """

    trials: tuple[Trial, ...]
    knee: int

    def efficiency(self, trial: Trial) -> float:
        """Tokens a second and device, idle ones too, over those of the fewest devices that fit."""
        first = next(one for one in self.trials if one.simulation is not None)
        return trial.tokens_per_s / trial.devices * first.devices / first.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The best plans of several batches, and the batch that gains most training progress a second.

    Args:
        trials: the smallest batch first.
        seq_len: tokens of a sequence.
        critical: tokens a step of the critical batch.
        source: of that.
        chosen: sequences a step.
    """

    trials: tuple[Trial, ...]
    seq_len: int
    critical: float
    source: str
    chosen: int
