"""DeepSpeed's configuration.

Source of names and defaults: DeepSpeed 0.19.8, runtime/config.py, runtime/zero/config.py,
runtime/zero/offload_config.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.launch.framework_claims import (
    CONFIGURATIONS,
    Claim,
    Document,
    FileKind,
    NamedFile,
    Signature,
    claim_of,
)
from shardwright.frameworks.launch.launch import Launch, Written, by_name, count, share
from shardwright.frameworks.launch.launch_degrees import launch_of, replicas
from shardwright.frameworks.launch.unpriced_settings import OF_OPTIMIZER, OPTIMIZER, refuse
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.runtime.arguments import Arguments
from shardwright.strategy.grid.axes import Grid, Recompute

UNDERSTOOD: Final = MappingProxyType(
    {
        "train-batch-size": "samples of a step",
        "train-micro-batch-size-per-gpu": "samples of a microbatch",
        "gradient-accumulation-steps": "microbatches of a step",
        "zero-optimization.stage": "stage of ZeRO",
        "zero-optimization.offload-optimizer.device": "optimizer states in host memory",
        "zero-optimization.offload-optimizer.ratio": (
            "share of the optimizer's states in host memory"
        ),
        "zero-optimization.cpu-offload": "optimizer states in host memory",
        "tensor-parallel.autotp-size": "tp",
        "sequence-parallel-size": "cp, by trading heads",
        "expert-parallel.autoep-size": "ep",
        "use-data-before-expert-parallelism": "order of ranks",
        "bf16.enabled": "number format",
        "fp16.enabled": "number format",
        "optimizer.type": OF_OPTIMIZER,
        "activation-checkpointing.partition-activations": "recompute=full",
        "activation-checkpointing.cpu-checkpointing": "recompute=full",
    }
)
IGNORED: Final = by_name(
    {
        "how fast is learnt": (
            "optimizer.* scheduler.* gradient-clipping prescale-gradients fp16.* bf16.*"
        ),
        "what is logged": (
            "steps-per-print wall-clock-breakdown flops-profiler.* comms-logger.* tensorboard.*"
            " wandb.* csv-monitor.* dump-state memory-breakdown"
        ),
        "checkpoints": (
            "checkpoint.* zero-optimization.stage3-gather-16bit-weights-on-model-save"
            " zero-optimization.load-from-fp32-weights zero-optimization.ignore-unused-parameters"
            " zero-optimization.gather-16bit-weights-on-model-save"
        ),
        "how it is started": (
            "deepspeed deepspeed-config expert-parallel.enabled expert-parallel.preset-model"
        ),
        "follows from others": (
            "data-parallel-size zero-allow-untested-optimizer zero-force-ds-cpu-optimizer"
        ),
        "data and formats": (
            "data-efficiency.* curriculum-learning.* data-types.* communication-data-type"
        ),
    }
)
UNMODELLED: Final = by_name(
    {
        "sizes of buckets and of what is kept, as DeepSpeed has them by default": (
            "zero-optimization.reduce-bucket-size zero-optimization.allgather-bucket-size"
            " zero-optimization.reduce-scatter zero-optimization.stage3-prefetch-bucket-size"
            " zero-optimization.stage3-param-persistence-threshold"
            " zero-optimization.stage3-max-live-parameters"
            " zero-optimization.stage3-max-reuse-distance zero-optimization.sub-group-size"
            " zero-optimization.allgather-partitions zero-optimization.round-robin-gradients"
            " zero-optimization.contiguous-gradients zero-optimization.zero-hpz-partition-size"
            " zero-optimization.offload-optimizer.pin-memory"
            " zero-optimization.offload-param.pin-memory"
        ),
        "8-bit collectives (ZeRO++)": (
            "zero-optimization.zero-quantized-weights zero-optimization.zero-quantized-gradients"
        ),
    }
)


REFUSED: Final = MappingProxyType({"optimizer.type": OPTIMIZER})
"""Of the optimizers that DeepSpeed has by name: those of one bit keep the error of what they send,
Lion and SGD keep one state or none."""
SIGNATURE: Final = Signature(
    kinds=CONFIGURATIONS | {FileKind.COMMAND},
    own=frozenset(
        {"train-micro-batch-size-per-gpu", "zero-optimization.*", "tensor-parallel.autotp-size"}
    ),
    shared=frozenset(
        {"gradient-accumulation-steps", "train-batch-size", "bf16.enabled", "fp16.enabled"}
    ),
    launchers=frozenset({"deepspeed"}),
    files=tuple(
        NamedFile(setting=name, holds="the stage of ZeRO and the number format")
        for name in ("deepspeed-config", "deepspeed")
    ),
)


@dataclass(frozen=True, slots=True)
class DeepSpeedReader:
    """The reader."""

    name: str = "deepspeed"
    runtime: str = "deepspeed-0.16"
    signature: Signature = SIGNATURE
    includes: frozenset[str] = frozenset()

    target: str = "deepspeed"

    def claims(self, document: Document) -> Claim:
        """See `LaunchReader`."""
        return claim_of(self.signature, document)

    def worded(self, name: str) -> str:
        """See `LaunchReader`."""
        return name

    def read(self, written: Written, *, model: Model, devices: int, runtime: str) -> Launch:
        """See `LaunchReader`."""
        # "auto" is what the program has.
        said = {name: value for name, value in written.arguments.items() if value != "auto"}
        refuse(said, REFUSED)
        tp, cp = (
            count(said, "tensor-parallel.autotp-size", 1),
            count(said, "sequence-parallel-size", 1),
        )
        dp = replicas(devices, tp=tp, cp=cp)
        zero = count(said, "zero-optimization.stage")
        if zero > 3:
            raise DataError(f"zero_optimization.stage {zero}", hint="0 to 3")
        apart = said.get("use-data-before-expert-parallelism", "false") == "true"
        batch, microbatch, steps = _batch(said, dp)
        grid = Grid(
            tp=tp,
            cp=cp,
            ulysses=cp,
            ep=count(said, "expert-parallel.autoep-size", 1),
            dp=dp,
            microbatch=microbatch,
            zero=zero,
            recompute=(
                Recompute.FULL
                if any(name.startswith("activation-checkpointing.") for name in said)
                else Recompute.NONE
            ),
            offload=_offload(said),
            order=("tp", "cp", "dp", "ep", "pp") if apart else ("tp", "cp", "ep", "dp", "pp"),
        )
        # Its collectives overlap by default with ZeRO-3 alone.
        overlaps = {"zero-optimization.overlap-comm": str(zero == 3).lower()}
        return launch_of(
            written,
            grid,
            framework=self.name,
            runtime=runtime,
            model=model,
            seq_len=0,
            global_batch=batch or microbatch * steps * dp,
            precision=_format(written.arguments),
            understood=UNDERSTOOD,
            ignored=IGNORED,
            unmodelled=UNMODELLED,
            arguments=(
                {
                    **overlaps,
                    **{name: value for name, value in said.items() if value != "false"},
                }
                if "zero-optimization.overlap-comm" not in said
                else {name: value for name, value in said.items() if value != "false"}
            ),
        )


DEEPSPEED: Final = DeepSpeedReader()


def _format(said: Arguments) -> str:
    """Number format; empty where the program says it."""
    found = {name: said.get(f"{name}.enabled", "false") for name in ("fp16", "bf16")}
    return next(
        (name for name, value in found.items() if value == "true"),
        "" if "auto" in found.values() else "fp32",
    )


def _batch(said: Arguments, dp: int) -> tuple[int, int, int]:
    """Samples of a step (0 = not said), of a microbatch, and microbatches of a step, any of which
    follows from the others.
    """
    batch, micro, steps = (
        count(said, name)
        for name in (
            "train-batch-size",
            "train-micro-batch-size-per-gpu",
            "gradient-accumulation-steps",
        )
    )
    if batch and not micro:
        micro = max(batch // (dp * max(steps, 1)), 1)
    micro = micro or 1
    return batch, micro, steps or 1


def _offload(said: Arguments) -> int:
    """Percent of the optimizer's states on the host."""
    if said.get("zero-optimization.offload-optimizer.device", "none") == "cpu":
        return round(100 * share(said, "zero-optimization.offload-optimizer.ratio", 1.0))
    return 100 if said.get("zero-optimization.cpu-offload") == "true" else 0
