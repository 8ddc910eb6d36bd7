"""MaxText's configurations and overrides.

Source of names and defaults: MaxText 0.2.5, configs/base.yml and configs/types.py; of the mesh,
`mesh_axes` of base.yml.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError, StrategyError
from shardwright.frameworks.launch.framework_claims import (
    Claim,
    Document,
    FileKind,
    NamedFile,
    Signature,
    claim_of,
)
from shardwright.frameworks.launch.launch import Launch, Written, by_name, count, require_value
from shardwright.frameworks.launch.launch_degrees import launch_of
from shardwright.frameworks.launch.model_sizes import MAXTEXT as SIZES
from shardwright.frameworks.launch.model_sizes import compared_name, compared_sizes
from shardwright.frameworks.launch.unpriced_settings import OF_OPTIMIZER, OPTIMIZER, refuse
from shardwright.frameworks.maxtext.mesh import NAMES
from shardwright.frameworks.maxtext.write import MODELS, SCHEDULES
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.runtime.arguments import Arguments
from shardwright.strategy.grid.axes import Grid, Recompute

_MESH: Final = {
    f"{place}-{name.replace('_', '-')}-parallelism": axis
    for axis, name in NAMES.items()
    for place in ("ici", "dcn")
}
UNDERSTOOD: Final = MappingProxyType(
    {
        **{name: f"degree of {axis}" for name, axis in _MESH.items()},
        "per-device-batch-size": "samples of a step",
        "gradient-accumulation-steps": "microbatches of a step",
        "num-pipeline-microbatches": "microbatches of a step",
        "num-layers-per-pipeline-stage": "layers of a chunk",
        "num-pipeline-repeats": "vpp",
        "max-target-length": "tokens of a sample",
        "remat-policy": "recompute",
        "quantization": "number format",
        "shard-optimizer-over-data": "zero1",
        "optimizer-memory-host-offload": "optimizer states in host memory",
        "context-parallel-strategy": "ring, gather or Ulysses of cp",
        "opt-type": OF_OPTIMIZER,
    }
)
IGNORED: Final = by_name(
    {
        "how it starts": (
            "run-name base-output-directory base-config hardware compile-topology* log-period"
            " enable-*"
        ),
        "data": "dataset-* tokenizer-* vocab-size grain-* hf-* tfds-* eval-*",
        "how fast is learnt": (
            "steps learning-rate* warmup-steps-fraction adam-* gradient-clipping-threshold"
        ),
        "what is kept and logged": (
            "checkpoint-* async-checkpointing load-* save-* profiler* reuse-example-batch"
        ),
        "the model's": (
            "model-name base-* head-dim mlp-activations rope-* attention use-tokamax-splash"
        ),
        "formats and tiles, as the planner has them": (
            "dtype weight-dtype grad-dtype sa-* use-iota-embed scan-layers"
        ),
    }
)
_REFUSED: Final = MappingProxyType({"opt-type": OPTIMIZER})
_STRATEGIES: Final = ("ring", "ulysses", "all_gather")


SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
    programs=frozenset({"maxtext.train", "maxtext/train.py", "maxtext.trainers.pre_train.train"}),
    own=frozenset(
        {
            *_MESH,
            "per-device-batch-size",
            "max-target-length",
            "remat-policy",
            "base-emb-dim",
            "base-num-decoder-layers",
        }
    ),
    shared=frozenset({"model-name"}),
    files=(NamedFile(setting="", holds="the strategy", own=frozenset({"base.yml"})),),
)


@dataclass(frozen=True, slots=True)
class MaxTextReader:
    """The reader."""

    name: str = "maxtext"
    runtime: str = "maxtext"
    signature: Signature = SIGNATURE
    includes: frozenset[str] = frozenset()

    target: str = "maxtext"

    def claims(self, document: Document) -> Claim:
        """See `LaunchReader`."""
        return claim_of(self.signature, document)

    def worded(self, name: str) -> str:
        """See `LaunchReader`."""
        return name

    def read(self, written: Written, *, model: Model, devices: int, runtime: str) -> Launch:
        """See `LaunchReader`."""
        said = written.arguments
        refuse(said, _REFUSED)
        sizes = _degrees(said, devices)
        inner = {axis: ici * dcn for axis, (ici, dcn) in sizes.items()}
        tp, cp, pp = inner["tensor"] * inner["tensor_sequence"], inner["context"], inner["stage"]
        dp = inner["expert"] * inner["fsdp"] * inner["data"]
        steps = count(said, "gradient-accumulation-steps", 1)
        batch = _samples(said, devices) * steps
        micro = count(said, "num-pipeline-microbatches", pp) if pp > 1 else steps
        zero = (
            3
            if inner["fsdp"] > 1 or (cp * inner["expert"] > 1)
            else int(said.get("shard-optimizer-over-data") == "true")
        )
        strategy = said.get("context-parallel-strategy", "all_gather")
        if cp > 1 and strategy not in _STRATEGIES:
            raise DataError(
                f"context_parallel_strategy {strategy[:40]!r} is not known here",
                hint=", ".join(_STRATEGIES),
            )
        repeats = count(said, "num-pipeline-repeats", 1) if pp > 1 else 1
        grid = Grid(
            tp=tp,
            sp=inner["tensor_sequence"] > 1,
            cp=cp,
            ulysses=cp if strategy == "ulysses" else 1,
            gather=cp > 1 and strategy == "all_gather",
            ep=inner["expert"],
            etp=tp if inner["expert"] > 1 else 1,
            dp=dp,
            pp=pp,
            vpp=repeats,
            microbatch=max(batch // max(dp * micro, 1), 1),
            zero=zero,
            shard=inner["fsdp"] * cp * inner["expert"] if zero == 3 and inner["data"] > 1 else 0,
            recompute=(
                Recompute.FULL
                if said.get("remat-policy", "full") == "full"
                else Recompute.SELECTIVE
            ),
            offload=100 if said.get("optimizer-memory-host-offload") == "true" else 0,
            schedule=SCHEDULES[repeats > 1][0] if pp > 1 else "1f1b",
            order=_order(sizes),
        )
        return launch_of(
            written,
            grid,
            framework=self.name,
            runtime=runtime,
            model=model,
            seq_len=count(said, "max-target-length"),
            global_batch=batch,
            precision="fp8" if "fp8" in said.get("quantization", "") else "bf16",
            understood=UNDERSTOOD,
            ignored=IGNORED,
            of_model=(
                *compared_name(said, ("model-name",), MODELS, model),
                *compared_sizes(said, SIZES, model),
            ),
            arguments=_options(said),
        )


MAXTEXT: Final = MaxTextReader()


def _degrees(said: Arguments, devices: int) -> dict[str, tuple[int, int]]:
    """(inside a slice, between slices) of every axis; one of -1 takes what is left.

    Raises:
        StrategyError: they are not as many as the devices.
    """
    found, open_axis, known = {axis: [1, 1] for axis in NAMES}, None, 1
    for name, axis in _MESH.items():
        place = int(name.startswith("dcn"))
        if said.get(name, "1").strip() == "-1":
            open_axis = (axis, place)
            continue
        found[axis][place] = count(said, name, 1)
        known *= max(found[axis][place], 1)
    if open_axis is None:
        # By default replicas between slices and shards inside take the rest.
        open_axis = (
            ("fsdp", 0)
            if "ici-fsdp-parallelism" not in said
            else ("data", 1)
            if "dcn-data-parallelism" not in said
            else None
        )
    if open_axis is not None and devices % known == 0:
        found[open_axis[0]][open_axis[1]] = devices // known
        known = devices
    if known != devices:
        raise StrategyError(
            f"axes of {known} devices, the cluster has {devices}",
            hint="the CLUSTER of the launch",
            rule="grid.devices",
        )
    return {axis: (ici, dcn) for axis, (ici, dcn) in found.items()}


def _samples(said: Arguments, devices: int) -> int:
    """Samples that all devices take at once; a share of one for each is possible."""
    text = require_value("per-device-batch-size", said.get("per-device-batch-size", "1"))
    try:
        found = round(float(text) * devices)
    except (ValueError, OverflowError):
        raise DataError(
            f"per_device_batch_size {text[:40]!r} is not a number", hint="such as 4, or 0.25"
        ) from None
    if not 1 <= found <= 10**9:
        raise DataError(
            f"per_device_batch_size {text[:40]} on {devices} devices is no sample",
            hint="such as 4, or 0.25",
        )
    return found


def _order(sizes: dict[str, tuple[int, int]]) -> tuple[str, ...]:
    """Which of replicas and stages is inside the other: what is inside a slice, and of two that are
    not the inner axis of the mesh.
    """
    over = next((axis for axis in ("fsdp", "data") if max(sizes[axis]) > 1), "expert")
    place = {
        axis: (sizes[axis][0] == 1 and sizes[axis][1] > 1, list(NAMES).index(axis))
        for axis in (over, "stage")
    }
    return ("tp", "cp", "ep", *(("pp", "dp") if place["stage"] < place[over] else ("dp", "pp")))


def _options(said: Arguments) -> Arguments:
    """Settings by which options are set; the policies that recompute says are none."""
    return {
        name: value
        for name, value in said.items()
        if value != "false" and not (name == "remat-policy" and value in ("full", "minimal"))
    }
