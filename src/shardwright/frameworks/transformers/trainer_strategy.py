"""The strategy that settings of a launch on Transformers' Trainer are, and settings of a strategy.

Source of names and defaults: Transformers 4.57, training_args.py; Accelerate 1.15.0 for FSDP;
DeepSpeed 0.19.8 for its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.deepspeed.read import DEEPSPEED
from shardwright.frameworks.launch.fused_losses import linear_loss
from shardwright.frameworks.launch.launch import Written
from shardwright.frameworks.launch.launch_degrees import replicas
from shardwright.frameworks.pytorch_fsdp.read import STRATEGIES, sharding
from shardwright.frameworks.settings.name_lists import names
from shardwright.frameworks.settings.value_forms import count
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.launch_arguments import Arguments
from shardwright.strategy.grid.grid import Grid, Recompute

FSDP: Final = "torchtitan-0.2"
"""The runtime by which FSDP is priced: PyTorch's, without torchtitan's own models."""


OF_TRANSFORMERS: Final = "deepspeed-0.16"
"""The runtime of Transformers' eager models, by which replicas, one device and states in host
memory are priced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStrategy:
    """A launch's strategy and what prices it.

    Args:
        sharded: parameters are sharded by FSDP, deepspeed: DeepSpeed holds an fp32 copy of them.
        arguments: settings of DeepSpeed.
    """

    grid: Grid
    batch: int
    runtime: str
    sharded: bool = False
    deepspeed: bool = False
    arguments: Arguments = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def on(said: Arguments, name: str) -> bool:
    """True if a switch is on."""
    return said.get(name, "false").strip().lower() in ("true", "1", "yes", "on")


def trainer_strategy(
    said: Arguments, *, splits_stream: bool, model: Model, devices: int, node_devices: int
) -> TrainerStrategy:
    """The strategy of a launch on so many devices.

    Args:
        splits_stream: tensor parallelism cuts the stream between products along the sequence too.
    """
    tp, cp = count(said, "tensor-parallel", 1), count(said, "context-parallel", 1)
    ulysses = count(said, "ulysses", 1)
    dp = replicas(devices, tp=tp, cp=cp * ulysses)
    micro, steps = (
        count(said, "per-device-train-batch-size", 1),
        count(said, "gradient-accumulation-steps", 1),
    )
    samples = count(said, "train-batch-size")
    if samples and "per-device-train-batch-size" not in said:
        micro = max(samples // (dp * steps), 1)
    full = on(said, "gradient-checkpointing") or on(said, "fsdp.activation-checkpointing")
    grid = Grid(
        tp=tp,
        sp=tp > 1 and splits_stream,
        cp=cp * ulysses,
        ulysses=ulysses,
        gather=cp > 1 and said.get("context-method", "allgather") == "allgather",
        dp=dp,
        microbatch=micro,
        recompute=Recompute.FULL if full else Recompute.NONE,
    )
    batch = samples or micro * steps * dp
    kind = said.get("distributed-type", "").upper()
    if kind == "DEEPSPEED" or any(name.startswith("zero-optimization.") for name in said):
        return _under_deepspeed(said, grid, batch, model=model)
    strategies = said.get("fsdp", "").lower().split()
    if (
        kind == "FSDP"
        or (strategies and strategies != ["no_shard"])
        or any(name.startswith("fsdp.") for name in said)
    ):
        return _under_fsdp(said, grid, batch, strategies, node_devices=node_devices)
    if tp > 1 or cp > 1:
        raise DataError(
            f"tensor parallelism {tp} x context parallelism {cp} without FSDP is not priced here",
            hint="a launch with FSDP or DeepSpeed",
        )
    told = ("replicas (PyTorch DDP) are priced as DeepSpeed's stage 0",) if dp > 1 else ()
    return TrainerStrategy(grid=grid, batch=batch, runtime=OF_TRANSFORMERS, notes=told)


def _under_deepspeed(said: Arguments, grid: Grid, batch: int, *, model: Model) -> TrainerStrategy:
    """The grid under DeepSpeed's settings, which the file has or its named configuration does."""
    if grid.cp > grid.ulysses:
        raise DataError(
            "context parallelism in rings under DeepSpeed is not priced here",
            hint="a launch with FSDP, or without it",
        )
    settings = {
        name: value
        for name, value in said.items()
        if name.startswith(("zero-optimization.", "compile.", "optimizer."))
    }
    for ours, its in (
        ("deepspeed-config.zero-stage", "zero-optimization.stage"),
        ("deepspeed-config.offload-optimizer-device", "zero-optimization.offload-optimizer.device"),
        ("deepspeed-config.offload-param-device", "zero-optimization.offload-param.device"),
    ):
        if ours in said:
            settings.setdefault(its, said[ours])
    sizes = {
        "train-micro-batch-size-per-gpu": str(grid.microbatch),
        "train-batch-size": str(batch),
        "sequence-parallel-size": str(grid.cp),
        "tensor-parallel.autotp-size": str(grid.tp),
    }
    written = Written(arguments={**settings, **sizes})
    found = DEEPSPEED.read(written, model=model, devices=grid.devices, runtime=OF_TRANSFORMERS)
    grid = replace(grid, sp=False, zero=found.grid.zero, offload=found.grid.offload)
    return TrainerStrategy(
        grid=grid, batch=batch, runtime=OF_TRANSFORMERS, deepspeed=True, arguments=settings
    )


def _under_fsdp(
    said: Arguments, grid: Grid, batch: int, words: list[str], *, node_devices: int
) -> TrainerStrategy:
    kept = said.get("fsdp.reshard-after-forward", "true")
    named = next(
        (word for word in words if word in STRATEGIES), said.get("fsdp.sharding-strategy", kept)
    )
    # FSDP shards over context parallelism too.
    shards = count(said, "dp-shard") * grid.cp
    found = sharding(
        named,
        replicas=grid.dp * grid.cp,
        replicate=count(said, "dp-replicate", 1),
        node_devices=node_devices,
        shards=shards,
    )
    zero, shard, notes = found.zero, found.shard, list(found.notes)
    offload = "offload" in words or on(said, "fsdp.offload-params")
    if offload or grid.ulysses > 1 or grid.devices == 1:
        if grid.cp > grid.ulysses or grid.tp > 1:
            raise DataError(
                "FSDP's CPU offload beside tensor or context parallelism is not priced here",
                hint="a launch without offload",
            )
        what = "its states in host memory" if offload else "Ulysses's exchange of heads"
        if grid.devices > 1:
            notes.append(f"FSDP with {what} is priced as DeepSpeed's ZeRO-{zero}")
        grid = replace(
            grid, sp=False, zero=zero, shard=shard, offload=100 if offload and zero else 0
        )
        moved = {"zero-optimization.offload-param.device": "cpu"} if offload and zero == 3 else {}
        return TrainerStrategy(
            grid=grid,
            batch=batch,
            runtime=OF_TRANSFORMERS,
            sharded=True,
            arguments=moved,
            notes=tuple(notes),
        )
    return TrainerStrategy(
        grid=replace(grid, zero=zero, shard=shard),
        batch=batch,
        runtime=FSDP,
        sharded=True,
        notes=tuple(notes),
    )


def precision_of(said: Arguments, placed: TrainerStrategy, *, adapters: bool) -> str:
    """The recipe of number formats.

    Mixed precision keeps an fp32 copy under FSDP and DeepSpeed; elsewhere the trained weights have
    the dtype in which they were loaded.
    """
    mixed = said.get("mixed-precision", "").lower()
    for name in ("fp8", "fp16", "bf16"):
        if mixed == name or on(said, name) or on(said, f"{name}.enabled"):
            narrow = (
                name == "bf16"
                and said.get("weights") == "bf16"
                and not (placed.sharded or placed.deepspeed or adapters)
            )
            return "bf16-pure" if narrow else name
    if said.get("weights") == "bf16":
        return "bf16" if adapters or placed.deepspeed else "bf16-pure"
    return "tf32" if on(said, "tf32") else "fp32"


_EIGHT_BIT: Final = names(
    "adamw_bnb_8bit adamw_8bit paged_adamw_8bit adamw_torch_8bit"
    " paged_adamw_8_bit pagedadamw8bit adamw8bit"
)


_ADAM: Final = names(
    "adamw_torch adamw_torch_fused adamw_hf adamw_apex_fused adamw adam"
    " paged_adamw paged_adamw_32bit adamw_torch_xla adamw_torch_npu_fused"
    " adamwscheduleradapter"
)


def runtime_settings(said: Arguments, placed: TrainerStrategy) -> Arguments:
    """Settings as arguments by which options of the runtime are set.

    Raises:
        DataError: an optimizer whose states are not priced.
    """
    name = said.get("optim", "adamw_torch").lower()
    if name not in (*_ADAM, *_EIGHT_BIT):
        raise DataError(
            f"optimizer {name[:40]}: its states are not priced here",
            hint="AdamW with states of 32 or 8 bits",
        )
    found = {**placed.arguments, **linear_loss(said)}
    if placed.runtime == FSDP:
        found |= {"compile.enable": "true"} if on(said, "torch-compile") else {}
        pure = (
            said.get("weights") == "bf16"
            and not any(on(said, one) for one in ("bf16", "fp16"))
            and not said.get("mixed-precision")
        )
        found |= {"training.dtype": "bfloat16"} if pure else {}
    else:
        found |= {"compile.enabled": "true"} if on(said, "torch-compile") else {}
        # Its collectives overlap by default with ZeRO-3 alone; DDP's and FSDP's always do.
        stage = found.get("zero-optimization.stage", "3")
        found.setdefault(
            "zero-optimization.overlap-comm", str(not placed.deepspeed or stage == "3").lower()
        )
    return {**found, "optim": "adamw_8bit"} if name in _EIGHT_BIT else found


def strategy_settings(
    grid: Grid, *, runtime: str, global_batch: int, names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """A strategy in the words of TrainingArguments, or a framework's own `names` for them."""
    options = dict(grid.options)
    by_fsdp = runtime == FSDP
    said = {
        "per-device-train-batch-size": str(grid.microbatch),
        "gradient-accumulation-steps": str(max(global_batch // (grid.microbatch * grid.dp), 1)),
        "gradient-checkpointing": str(grid.recompute is not Recompute.NONE).lower(),
        "torch-compile": (
            str(options.get("kernels", "compiled" if by_fsdp else "eager") == "compiled").lower()
        ),
        "tensor-parallel": str(grid.tp) if grid.tp > 1 else "",
        "context-parallel": str(grid.ring) if grid.ring > 1 else "",
        "ulysses": str(grid.ulysses) if grid.ulysses > 1 else "",
        "optim": "adamw_8bit" if options.get("moments") == "8bit" else "",
        "fsdp.reshard-after-forward": str(grid.zero == 3).lower() if by_fsdp and grid.zero else "",
        "zero-optimization.stage": str(grid.zero) if not by_fsdp and grid.zero else "",
        "zero-optimization.offload-optimizer.device": "cpu" if grid.offload else "",
        "zero-optimization.offload-param.device": (
            "cpu" if options.get("param_offload") == "on" else ""
        ),
        "zero-optimization.overlap-comm": (
            {"on": "true", "off": "false"}.get(options.get("grad_overlap", ""), "")
        ),
    }
    for name, value in said.items():
        own = names.get(name, name)
        if value and own.startswith("!"):
            yield own[1:].replace("-", "_"), str(value != "true").lower()
        elif value:
            yield own.replace("-", "_"), value
