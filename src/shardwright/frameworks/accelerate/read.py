"""Hugging Face Accelerate's YAML.

Source of names and defaults: Accelerate 1.15.0, commands/config/config_args.py,
utils/dataclasses.py (FullyShardedDataParallelPlugin, DeepSpeedPlugin) and parallelism_config.py.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.deepspeed.read import DEEPSPEED
from shardwright.frameworks.deepspeed.read import IGNORED as OF_DEEPSPEED
from shardwright.frameworks.launch.framework_claims import (
    CONFIGURATIONS,
    Claim,
    Document,
    FileKind,
    NamedFile,
    Signature,
    claim_of,
)
from shardwright.frameworks.launch.launch import Launch, Verdict, Written, by_name, count
from shardwright.frameworks.launch.launch_degrees import OF_TRANSFORMERS, launch_of, replicas
from shardwright.frameworks.pytorch_fsdp.read import Sharding, sharding
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.runtime.arguments import Arguments
from shardwright.strategy.grid.axes import Grid, Recompute

_DEGREES: Final = "parallelism-config.parallelism-config-"
UNDERSTOOD: Final = MappingProxyType(
    {
        "distributed-type": "FSDP, DeepSpeed or replicas",
        "mixed-precision": "number format",
        "num-processes": "devices",
        "fsdp-config.fsdp-reshard-after-forward": "stage of ZeRO",
        "fsdp-config.fsdp-sharding-strategy": "stage of ZeRO",
        "fsdp-config.fsdp-offload-params": "states in host memory",
        "fsdp-config.fsdp-activation-checkpointing": "recompute",
        f"{_DEGREES}dp-replicate-size": "replicas of shards",
        f"{_DEGREES}dp-shard-size": "members of a sharding group",
        f"{_DEGREES}tp-size": "tp",
        f"{_DEGREES}cp-size": "cp",
        f"{_DEGREES}cp-comm-strategy": "ring or gather of cp",
        f"{_DEGREES}sp-size": "cp, by trading heads",
        "gradient-accumulation-steps": "microbatches of a step",
        "deepspeed-config.zero-stage": "stage of ZeRO",
        "deepspeed-config.gradient-accumulation-steps": "microbatches of a step",
        "deepspeed-config.offload-optimizer-device": "optimizer states in host memory",
        "per-device-train-batch-size": "samples of a microbatch",
        "max-seq-length": "tokens of a sample",
        "gradient-checkpointing": "recompute=full",
        "dynamo-config.dynamo-backend": "sets kernels",
    }
)
IGNORED: Final = MappingProxyType(
    {
        **OF_DEEPSPEED,
        **by_name(
            {
                "how it starts": (
                    "compute-environment debug downcast-bf16 machine-rank main-training-function"
                    " num-machines rdzv-backend same-network use-cpu tpu-* main-process-*"
                    f" enable-cpu-affinity gpu-ids dynamo-config.* deepspeed-config.* {_DEGREES}*"
                ),
                "checkpoints": (
                    "fsdp-config.fsdp-state-dict-type fsdp-config.fsdp-cpu-ram-efficient-loading"
                ),
                "how it shards": (
                    "fsdp-config.fsdp-version fsdp-config.fsdp-use-orig-params"
                    " fsdp-config.fsdp-sync-module-states"
                ),
                "a layer is a unit": (
                    "fsdp-config.fsdp-auto-wrap-policy"
                    " fsdp-config.fsdp-transformer-layer-cls-to-wrap"
                ),
            }
        ),
    }
)
UNMODELLED: Final = by_name(
    {
        "when parameters are gathered ahead": (
            "fsdp-config.fsdp-backward-prefetch fsdp-config.fsdp-backward-prefetch-policy "
            "fsdp-config.fsdp-forward-prefetch"
        )
    }
)
_LAUNCH: Final = "accelerate."
_SWITCHES: Final = {"use-fsdp": "FSDP", "use-deepspeed": "DEEPSPEED", "multi-gpu": "MULTI_GPU"}
"""Flags of ``accelerate launch`` -> ``distributed_type`` of its YAML."""
_PROCESSES: Final = frozenset({"num-processes", "num-machines"})
"""Flags with which the command needs no file: one process a device, each with the whole model."""
SIGNATURE: Final = Signature(
    kinds=frozenset({*CONFIGURATIONS, FileKind.COMMAND}),
    launchers=frozenset({"accelerate"}),
    own=frozenset(
        {
            "compute-environment",
            "distributed-type",
            "fsdp-config.*",
            "parallelism-config.*",
            "deepspeed-config.*",
        }
    ),
    shared=frozenset({"num-machines", "mixed-precision", "num-processes"}),
    files=(
        NamedFile(setting="accelerate.config-file", holds="how the model is sharded"),
        NamedFile(
            setting="deepspeed-config.deepspeed-config-file",
            holds="the stage of ZeRO",
            instead=frozenset({"zero-optimization.stage"}),
        ),
        NamedFile(setting="accelerate.deepspeed-config-file", holds="the stage of ZeRO"),
    ),
)


@dataclass(frozen=True, slots=True)
class AccelerateReader:
    """The reader."""

    name: str = "accelerate"
    runtime: str = "torchtitan-0.2"
    signature: Signature = SIGNATURE
    includes: frozenset[str] = frozenset({"deepspeed"})

    target: str = "accelerate"

    def claims(self, document: Document) -> Claim:
        """See `LaunchReader`."""
        return claim_of(self.signature, document)

    def worded(self, name: str) -> str:
        """See `LaunchReader`."""
        return name

    def read(self, written: Written, *, model: Model, devices: int, runtime: str) -> Launch:
        """See `LaunchReader`."""
        written = replace(written, arguments=of_launch(written.arguments))
        said = written.arguments
        if said.get("distributed-type", "").upper() == "DEEPSPEED":
            return _under_deepspeed(written, model=model, devices=devices, runtime=runtime)
        tp, cp = count(said, f"{_DEGREES}tp-size", 1), count(said, f"{_DEGREES}cp-size", 1)
        dp = replicas(devices, tp=tp, cp=cp)
        replicate = count(said, f"{_DEGREES}dp-replicate-size", 1)
        sharded = said.get("distributed-type", "").upper() == "FSDP"
        shards = count(said, f"{_DEGREES}dp-shard-size") * cp
        split = (
            sharding(
                _strategy(said),
                replicas=dp * cp,
                replicate=replicate,
                node_devices=written.node_devices,
                shards=shards,
            )
            if sharded
            else Sharding(zero=0)
        )
        micro, steps = (
            count(said, "per-device-train-batch-size", 1),
            count(said, "gradient-accumulation-steps", 1),
        )
        checkpointed = "true" in (
            said.get("fsdp-config.fsdp-activation-checkpointing"),
            said.get("gradient-checkpointing"),
        )
        grid = Grid(
            tp=tp,
            cp=cp,
            gather=cp > 1 and said.get(f"{_DEGREES}cp-comm-strategy", "allgather") == "allgather",
            dp=dp,
            microbatch=micro,
            zero=split.zero,
            shard=split.shard,
            recompute=Recompute.FULL if checkpointed else Recompute.NONE,
            offload=100 if sharded and said.get("fsdp-config.fsdp-offload-params") == "true" else 0,
        )
        compiled = said.get("dynamo-config.dynamo-backend", "NO").upper() not in ("NO", "EAGER")
        return launch_of(
            written,
            grid,
            framework=self.name,
            runtime=runtime,
            model=model,
            seq_len=count(said, "max-seq-length"),
            global_batch=micro * steps * dp,
            precision={"no": "fp32", "fp16": "fp16", "fp8": "fp8"}.get(
                said.get("mixed-precision", "bf16"), "bf16"
            ),
            understood=UNDERSTOOD,
            ignored=IGNORED,
            unmodelled=UNMODELLED,
            arguments={"compile.enable": "true"} if compiled else {},
            notes=split.notes,
            possible=OF_TRANSFORMERS,
        )


ACCELERATE: Final = AccelerateReader()


def of_launch(arguments: Arguments) -> Arguments:
    """Settings with those of ``accelerate launch`` as its YAML names them: they stand before the
    file's.

    Raises:
        DataError: the command reads the configuration of the machine that it runs on.
    """
    flags = {
        name.removeprefix(_LAUNCH): value
        for name, value in arguments.items()
        if name.startswith(_LAUNCH)
    }
    said = {name: value for name, value in arguments.items() if not name.startswith(_LAUNCH)}
    for name, value in flags.items():
        if name in _SWITCHES:
            said["distributed-type"] = _SWITCHES[name]
        elif name not in ("config-file", "deepspeed-config-file", "launch"):
            said[_named_in_file(name)] = value
    if (
        flags
        and "config-file" not in flags
        and "distributed-type" not in said
        and not flags.keys() & _PROCESSES
    ):
        raise DataError(
            "accelerate launch without --config_file reads default_config.yaml of the machine: how"
            " the model is sharded is not known",
            hint="give that file before MODEL, or add --config_file",
        )
    return said


def _named_in_file(name: str) -> str:
    """A flag of ``accelerate launch`` as the YAML has it."""
    if name.startswith("fsdp-"):
        return f"fsdp-config.{name}"
    if name.startswith("parallelism-config-"):
        return f"parallelism-config.{name}"
    if name in (
        "zero-stage",
        "offload-optimizer-device",
        "offload-param-device",
        "gradient-accumulation-steps",
    ):
        return f"deepspeed-config.{name}" if name != "gradient-accumulation-steps" else name
    return "dynamo-config.dynamo-backend" if name == "dynamo-backend" else name


def _strategy(said: Arguments) -> str:
    kept = said.get("fsdp-config.fsdp-reshard-after-forward", "true")
    # FSDP 1's files have its strategies under either name.
    return said.get("fsdp-config.fsdp-sharding-strategy", kept)


def _under_deepspeed(written: Written, *, model: Model, devices: int, runtime: str) -> Launch:
    """DeepSpeed's own configuration beside the file, or what the file says in its place."""
    said = dict(written.arguments)
    for ours, its in (
        ("deepspeed-config.zero-stage", "zero-optimization.stage"),
        ("deepspeed-config.gradient-accumulation-steps", "gradient-accumulation-steps"),
        ("deepspeed-config.offload-optimizer-device", "zero-optimization.offload-optimizer.device"),
        (f"{_DEGREES}sp-size", "sequence-parallel-size"),
        (f"{_DEGREES}tp-size", "tensor-parallel.autotp-size"),
        ("per-device-train-batch-size", "train-micro-batch-size-per-gpu"),
    ):
        if ours in said and its not in said:
            said[its] = said[ours]
    if said.get("mixed-precision") in ("bf16", "fp16"):
        said.setdefault(f"{said['mixed-precision']}.enabled", "true")
    under = DEEPSPEED.runtime if runtime == ACCELERATE.runtime else runtime
    launch = DEEPSPEED.read(
        Written(arguments=said, notes=written.notes), model=model, devices=devices, runtime=under
    )
    own = launch_of(
        written,
        launch.grid,
        framework="accelerate",
        runtime=under,
        model=model,
        seq_len=0,
        global_batch=launch.global_batch,
        precision=launch.precision,
        understood=UNDERSTOOD,
        ignored=IGNORED,
        unmodelled=UNMODELLED,
        possible=OF_TRANSFORMERS,
    )
    others = {one.name: one for one in launch.settings if one.name in written.arguments}
    settings = tuple(
        others.get(one.name, one) if one.verdict is Verdict.UNKNOWN else one for one in own.settings
    )
    return replace(launch, framework="accelerate", settings=settings)
