"""Settings of `calibrate`, and rows of its check, without an import of torch."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from shardwright.dtype import Dtype
from shardwright.lazily_compiled_dataclass import dataclass


class CheckRow(NamedTuple):
    """A training step's predicted seconds (with interval), measured seconds, and peak bytes.

    Measured bytes of 0 = not measured.
    """

    name: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    predicted_bytes: int
    measured_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Settings of a calibration: measurements on this machine, and files to import.

    Args:
        date: ISO day, kept in the profile.
        device: ``cpu``, ``cuda``, or empty: CUDA where there is one.
        accelerator: name of the profile's accelerator; empty = the catalog's name of the measured
            device, or the driver's.
        ranks: devices of the largest collective; 0 = all GPUs, or two ranks that share a
            processor's cores. 1 = no collectives.
        dtypes: of GEMMs; empty = those that the device has units for.
        collectives_only: measure collectives only.
        nccl_tests, kineto: files to import; their collectives win over measured ones.
        measure: measure this machine too.
        repetitions, warm_up: see `Timer`.
        sustained_s: seconds of each long run of GEMMs; 0.0 = none.
        timeout_s: seconds allowed for each collective.
        tiny: the smallest shapes only, for a trial.
    """

    date: str
    device: str = ""
    accelerator: str = ""
    ranks: int = 0
    dtypes: tuple[Dtype, ...] = ()
    collectives_only: bool = False
    nccl_tests: tuple[Path, ...] = ()
    kineto: Path | None = None
    measure: bool = True
    repetitions: int = 5
    warm_up: int = 2
    sustained_s: float = 5.0
    timeout_s: float = 60.0
    tiny: bool = False
