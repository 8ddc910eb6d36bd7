"""Options and report of a run, readable without PyTorch.

`execute.launch.run_training_of_this_rank` makes the report.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

from shardwright.execute.training.learning_rate import RateCurve
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.numerical_constants import Settings
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
"""Random factors on the inputs of routers (``router_jitter_noise``)."""

AUTO, MESSAGES, GROUPS = "auto", "messages", "groups"
TRANSPORTS = {
    AUTO: "groups, unless ranks share a GPU",
    MESSAGES: "by the host, sums in the order of devices",
    GROUPS: "collectives of NCCL, or of gloo on CPUs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a training run other than its plan.

    Args:
        data: (sequence, token file) of each sequence.
        steps: total number of steps, including those before the checkpoint.
        weights: folder of Hugging Face safetensors to begin from; None = drawn from `seed`.
        checkpoints: folder of this run's checkpoints, from the newest of which it resumes; None =
            no checkpoints.
        every: steps between checkpoints; 0 = one at the end.
        rate, decay, clip: learning rate, weight decay and maximum gradient norm of AdamW (clip 0 =
            no limit).
        seed: seed of initial parameters, and of the order of windows.
        shuffle: read the windows in an order drawn for each pass, not in the file's order.
        on: ``cpu``, ``cuda``, or empty = an accelerator if there is one.
        betas, eps: constants of AdamW.
        no_decay: classes of parameters without weight decay (`training.weight_decay_exemptions`).
        curve, warmup, least: curve of the learning rate over the steps (`training.learning_rate`).
        curve_steps: number of steps of the curve; 0 = `steps`.
        keep: number of newest checkpoints that are kept; 0 = all.
        metrics: file that receives a line of JSON for each step; None = no file.
        eval_data: token files that are evaluated without training, after every `eval_every` steps
            (0 = after the last) and after the last step: the first `eval_batches` batches (0 =
            all).
        tensorboard: folder of event files; None = none.
        load_balancing: coefficient of the load-balancing loss of experts (0 = none); None = as the
            model's configuration says.
        router_bias_update: rate at which a step moves router biases towards equal loads of experts;
            0: biases are kept unchanged; None: biases are frozen parameters, which no checkpoint
            has.
        router_noise: one of `NOISES`: treatment of the random factors on routers' inputs that the
            configuration asks for.
        backend: one of `BACKENDS`.
        transport: one of `TRANSPORTS`, for the interpreter.
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
        """The model's settings with the run's load-balancing and router-noise options applied."""
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
        """Learning-rate curve (warm-up, shape, minimum) as shares of `rate` by step."""
        return RateCurve(
            name=self.curve,
            warmup=self.warmup,
            steps=self.curve_steps or self.steps,
            least=self.least,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One training step: number (from 1), mean loss before the update, gradient norm, seconds."""

    step: int
    loss: float
    norm: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvaluation:
    """Mean loss of evaluation data after the update of a step, and the seconds that it took."""

    step: int
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """Predicted and measured peak memory of a class of devices, in bytes.

    Args:
        devices: devices of the class.
        holds: text such as ``embed + 7 layers``.
        predicted: predicted bytes allocated at the peak.
        measured: maximum over the class of bytes allocated on the device; on a CPU, bytes that the
            process has allocated and not freed.
        grown: growth of the process in bytes, including memory that its allocator keeps after it
            was freed.
    """

    devices: tuple[int, ...]
    holds: str
    predicted: int
    measured: int
    grown: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Results of a training run: steps, speed, memory and evaluations.

    Args:
        steps: the steps of this run.
        tokens: number of text tokens of a step.
        predicted_s: predicted seconds of a step.
        memory: peak memory by class of devices.
        on: type of the torch devices of the run.
        first: number of steps that the checkpoint had.
        stopped: the run was asked to stop before its end.
        checkpoint: folder of the last saved checkpoint; None = none.
        trace: trace of the last step.
        remarks: differences of the engine from the plan, at the same losses.
        evaluations: evaluations on data that were not trained on.
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
        """Median seconds of a step; the first (warm-up) step counts only if it is the only one."""
        seconds = [s.seconds for s in self.steps]
        return median(seconds[1:] or seconds) if seconds else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Text tokens per second of the whole run at the median step time; 0 without steps."""
        return self.tokens / self.step_s if self.step_s else 0.0
