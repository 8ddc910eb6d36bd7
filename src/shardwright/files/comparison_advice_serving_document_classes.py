"""Contents of the JSON documents of `compare`, `advise` and `serve-simulate`."""

from __future__ import annotations

from shardwright.files.plan_and_simulation_file_contents import StoredSimulation
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.optimality_certificate import Certificate
from shardwright.serving.step_times.worker_memory import WorkerMemory
from shardwright.serving.unparsed_simulation_inputs import ServingRequest
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.rule_violations import Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPrice:
    """The price of a device-hour, what it is the price of, and its source."""

    of: str
    usd_per_device_hour: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCost:
    """Days and dollars of training under one strategy of a comparison.

    Args:
        usd_per_hour, usd_per_token: None where a device has no price.
        tokens, training_s: None where no tokens were given.
        training_usd: None without a price or without tokens.
    """

    cluster: str
    devices: int
    prices: tuple[StoredPrice, ...]
    usd_per_hour: float | None
    usd_per_token: float | None
    tokens: float | None
    training_s: float | None
    training_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredComparison:
    """A comparison: simulated strategies, and the cost of each."""

    strategies: tuple[StoredSimulation, ...]
    costs: tuple[StoredCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSetting:
    """A setting of a launch, or one that a change adds or removes."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSetting:
    """A setting of a launch as it was read: its verdict and its meaning."""

    name: str
    value: str
    verdict: str
    means: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """The job of a launch."""

    seq_len: int
    global_batch: int
    precision: str
    dropout: bool
    train: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitingPart:
    """A part of the launch's step, with its seconds."""

    part: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChange:
    """A strategy that differs from the launch's, with its step and the settings to change.

    Args:
        gain: fraction of the launch's step that is saved; negative if it is slower.
    """

    change: str
    strategy: str
    step_time_s: float
    gain: float
    remove: tuple[StoredSetting, ...]
    add: tuple[StoredSetting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestChange(StoredChange):
    """The best strategy as a change of the launch, with the certificate of its search."""

    certificate: Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAdvice:
    """Advice on a launch.

    Args:
        prediction: None where the launch breaks a rule.
        best: None where no strategy fits.
    """

    framework: str
    runtime: str
    strategy: str
    job: StoredJob
    settings: tuple[ReadSetting, ...]
    notes: tuple[str, ...]
    legal: bool
    broken: tuple[Violation, ...]
    prediction: Prediction | None
    limited_by: tuple[LimitingPart, ...]
    causes: tuple[StoredChange, ...]
    considered: int
    changes: tuple[StoredChange, ...]
    best: BestChange | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSpread:
    """Mean and percentiles of a latency in seconds; None where no request has it."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMetrics:
    """Latencies and throughput that users see; as `serve-simulate` prints them."""

    num_requests: int
    num_refused: int
    ttft: StoredSpread
    tpot: StoredSpread
    e2e: StoredSpread
    seconds: float
    tokens_per_second: float
    per_device: float
    per_user: float | None
    requests_per_second: float
    goodput: float
    kept: float
    promised: bool
    concurrency: float
    queue: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPool:
    """Workers of one role, the memory of their fullest device, and the largest use of the cache."""

    role: str
    count: int
    memory: WorkerMemory
    cache_used: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredServing:
    """The answer of a serving simulation.

    Args:
        seconds_by_part: (part, seconds) of the iterations.
        joules_per_token: None where the devices' power is not known.
    """

    request: ServingRequest
    engine: str
    deployment: str
    devices: int
    metrics: StoredMetrics
    iterations: int
    seconds_by_part: tuple[tuple[str, float], ...]
    pools: tuple[StoredPool, ...]
    joules_per_token: float | None
    notes: tuple[str, ...]
