"""Options and report of a run, made by `execute.launch.running` and read without PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

from shardwright.execute.training.learning_rate import RateCurve
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator_constants import Settings
from shardwright.program.step_trace import StepTrace

TEXT = "text"
OWN = "shardwright"
NATIVE = "torch-native"
FORMATS = {
    "job": "the data types of the job",
    "fp32": "float32 throughout",
    "fp64": "float64 throughout",
}
BACKENDS = {
    OWN: "its own interpreter, for every plan",
    NATIVE: "PyTorch's own DTensor, FSDP2 and pipelining, for grids only",
}

CONFIGURED, OFF = "config", "off"
NOISES = {
    CONFIGURED: "as the configuration says, which is refused unless it is 0",
    OFF: "none, whatever the configuration says",
}
"""Random factors on what routers read (``router_jitter_noise``)."""

AUTO, MESSAGES, GROUPS = "auto", "messages", "groups"
TRANSPORTS = {
    AUTO: "groups, unless ranks share a GPU",
    MESSAGES: "by the host, sums in the order of devices",
    GROUPS: "collectives of NCCL, or of gloo on CPUs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run other than its plan.

    Args:
        data: (sequence, file of tokens) of each.
        steps: to be done in all, those of the checkpoint included.
        weights: folder of Hugging Face safetensors to begin from; None = drawn from `seed`.
        checkpoints: folder of this run's checkpoints, from the newest of which it goes on; None =
            none.
        every: steps between checkpoints; 0 = one at the end.
        rate, decay, clip: of AdamW (clip 0 = no limit).
        seed: of first parameters, and of the order of windows.
        shuffle: windows in an order drawn for each pass, not as they stand.
        on: ``cpu``, ``cuda``, or empty = an accelerator if there is one.
        betas, eps: of AdamW;
        no_decay: words of what weight decay spares (`training.spared`).
        curve, warmup, least: of the learning rate over the steps (`training.rate`).
        curve_steps: steps that the curve is made for; 0 = `steps`.
        keep: newest checkpoints that are kept; 0 = all.
        metrics: file that gets a line of JSON a step; None = none.
        eval_data: files of tokens that are evaluated, not learnt, after every `eval_every` steps (0
            = after the last) and after the last: the first `eval_batches` batches (0 = all).
        tensorboard: folder of event files; None = none.
        load_balancing: coefficient of the load-balancing loss of experts (0 = none); None = as the
            model's configuration says.
        router_bias_update: by which a step moves the bias of a router's choice of experts, towards
            equal loads; 0: biases are kept as they are; None: as frozen parameters, which no
            checkpoint has.
        router_noise: one of `NOISES`: what becomes of random factors on what routers read that the
            configuration asks for.
        backend: one of `BACKENDS`.
        transport: one of `TRANSPORTS`, of the interpreter.
        formats: one of `FORMATS`.
        trace: record the last step.
        timeout_s: longest wait for another rank in seconds.
    """

    data: tuple[tuple[str, Path], ...]
    steps: int
    weights: Path | None = None
    checkpoints: Path | None = None
    every: int = 0
    rate: float = 1e-3
    decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    shuffle: bool = False
    on: str = ""
    backend: str = OWN
    transport: str = AUTO
    formats: str = "job"
    trace: bool = False
    timeout_s: float = 300.0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    no_decay: tuple[str, ...] = ()
    curve: str = "constant"
    curve_steps: int = 0
    warmup: int = 0
    least: float = 0.0
    keep: int = 0
    metrics: Path | None = None
    eval_data: tuple[tuple[str, Path], ...] = ()
    eval_every: int = 0
    eval_batches: int = 0
    tensorboard: Path | None = None
    load_balancing: float | None = None
    router_bias_update: float | None = None
    router_noise: str = CONFIGURED

    def trained_settings(self, settings: Settings) -> Settings:
        """The numbers that a model computes with, with what a run says of its routers."""
        coefficient = (
            settings.load_balancing if self.load_balancing is None else self.load_balancing
        )
        return replace(
            settings,
            load_balancing=coefficient,
            router_noise=0.0 if self.router_noise == OFF else settings.router_noise,
        )

    @property
    def rates(self) -> RateCurve:
        """The share of `rate` that each step uses."""
        return RateCurve(
            name=self.curve,
            warmup=self.warmup,
            steps=self.curve_steps or self.steps,
            least=self.least,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """A step that was done: number (1 for the first), mean loss before the update, norm of the
    gradient, seconds.
    """

    step: int
    loss: float
    norm: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvaluation:
    """Mean loss of data that are not learnt, behind the update of a step; seconds that it took."""

    step: int
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """Peak of a class of devices in bytes.

    Args:
        devices: of the class.
        holds: text such as ``embed + 7 layers``.
        predicted: what is allocated at the peak.
        measured: largest of the class, allocated on the device; on a CPU, what the process asked
            for and had not given back.
        grown: by which the process became larger: what its allocator keeps of what was freed is in
            it.
    """

    devices: tuple[int, ...]
    holds: str
    predicted: int
    measured: int
    grown: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Results of a run.

    Args:
        steps: done in this run.
        tokens: of a step.
        predicted_s: seconds a step that were predicted.
        memory: by class of devices.
        on: type of the devices that computed.
        first: steps that a checkpoint had.
        stopped: asked to stop before its end.
        checkpoint: folder of the last one that was saved; None = none.
        trace: of the last step.
        remarks: what the engine does otherwise than the plan says, with the same losses.
        evaluations: of data that were not learnt.
    """

    steps: tuple[RunStep, ...]
    tokens: int
    predicted_s: float
    memory: tuple[RunMemory, ...]
    on: str
    first: int = 0
    stopped: bool = False
    checkpoint: Path | None = None
    trace: StepTrace | None = None
    remarks: tuple[str, ...] = ()
    evaluations: tuple[RunEvaluation, ...] = ()

    @property
    def step_s(self) -> float:
        """Median seconds of a step; the first, which warms up, counts only if it is alone."""
        seconds = [s.seconds for s in self.steps]
        return median(seconds[1:] or seconds) if seconds else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Text tokens a second."""
        return self.tokens / self.step_s if self.step_s else 0.0
