"""The best strategy of a search as a simulation with its certificate."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.simulated_strategy import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedSimulation:
    """The simulation of a search's best strategy, and the certificate that it is the best."""

    simulation: Simulation
    certificate: Certificate
