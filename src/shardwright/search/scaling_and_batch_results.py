"""The best plans of one request for several numbers of devices or several batches."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.simulated_strategy import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The best plan for one number of devices and one batch.

    Args:
        devices: number of devices of the cluster.
        global_batch: sequences a step.
        simulation: simulation of the best plan; None = no plan.
        why: reason why there is no plan.
    """

    devices: int
    global_batch: int
    simulation: Simulation | None
    why: str = ""

    @property
    def tokens_per_s(self) -> float:
        """Text tokens a second; 0 if nothing fits."""
        return self.simulation.prediction.tokens_per_s if self.simulation is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingTable:
    """The best plans on increasing numbers of devices, with the same batch.

    Args:
        trials: fewest devices first.
        knee: number of devices of the trial with the highest efficiency over step time; 0 if
            nothing fits.
    """

    trials: tuple[Trial, ...]
    knee: int

    def efficiency(self, trial: Trial) -> float:
        """Tokens a second per device of a trial, relative to the smallest trial that fits.

        Idle devices count.
        """
        first = next(
            trial_that_fits
            for trial_that_fits in self.trials
            if trial_that_fits.simulation is not None
        )
        return trial.tokens_per_s / trial.devices * first.devices / first.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The best plans of several batches, and the batch with the most training progress a second.

    Args:
        trials: the smallest batch first.
        seq_len: tokens of a sequence.
        critical: critical batch in tokens a step.
        source: source of the critical batch.
        chosen: sequences a step of the best batch.
    """

    trials: tuple[Trial, ...]
    seq_len: int
    critical: float
    source: str
    chosen: int
