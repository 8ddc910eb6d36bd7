"""Strategy of a launch on Transformers' Trainer, and a strategy as Trainer's settings.

Source of names and defaults: Transformers 4.57, training_args.py; Accelerate 1.15.0 for FSDP;
DeepSpeed 0.19.8 for its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.deepspeed.read import DEEPSPEED
from shardwright.frameworks.launch.build_launch import replicas
from shardwright.frameworks.launch.fused_losses import linear_loss_argument
from shardwright.frameworks.launch.training_launch_and_reader_types import FileSettings
from shardwright.frameworks.pytorch_fsdp.sharding_strategies import STRATEGIES, sharding
from shardwright.frameworks.settings.setting_values_from_and_to_text import count
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import names
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.parse_launch_arguments import Arguments
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

FSDP: Final = "torchtitan-0.2"
"""Runtime that prices FSDP: torchtitan's, which is PyTorch's FSDP."""


OF_TRANSFORMERS: Final = "deepspeed-0.16"
"""Runtime that prices Transformers' eager models on replicas, on one device or with states in host
memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStrategy:
    """Strategy of a launch on Trainer, and the runtime that prices it.

    Args:
        sharded: FSDP shards the parameters.
        deepspeed: DeepSpeed holds an fp32 copy of the parameters.
        arguments: DeepSpeed's settings.
    """

    grid: Grid
    batch: int
    runtime: str
    sharded: bool = False
    deepspeed: bool = False
    arguments: Arguments = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def is_on(settings: Arguments, name: str) -> bool:
    """True if a setting is a switch that is on."""
    return settings.get(name, "false").strip().lower() in ("true", "1", "yes", "on")


def trainer_strategy(
    settings: Arguments, *, splits_stream: bool, model: Model, devices: int, node_devices: int
) -> TrainerStrategy:
    """Strategy (grid, batch, runtime) of Trainer's settings; `splits_stream`: sp where tp is > 1.

    Args:
        splits_stream: tensor parallelism splits the activations between GEMMs along the sequence.
    """
    tp, cp = count(settings, "tensor-parallel", 1), count(settings, "context-parallel", 1)
    ulysses = count(settings, "ulysses", 1)
    dp = replicas(devices, tp=tp, cp=cp * ulysses)
    micro, steps = (
        count(settings, "per-device-train-batch-size", 1),
        count(settings, "gradient-accumulation-steps", 1),
    )
    samples = count(settings, "train-batch-size")
    if samples and "per-device-train-batch-size" not in settings:
        micro = max(samples // (dp * steps), 1)
    full = is_on(settings, "gradient-checkpointing") or is_on(
        settings, "fsdp.activation-checkpointing"
    )
    grid = Grid(
        tp=tp,
        sp=tp > 1 and splits_stream,
        cp=cp * ulysses,
        ulysses=ulysses,
        gather=cp > 1 and settings.get("context-method", "allgather") == "allgather",
        dp=dp,
        microbatch=micro,
        recompute=Recompute.FULL if full else Recompute.NONE,
    )
    batch = samples or micro * steps * dp
    kind = settings.get("distributed-type", "").upper()
    if kind == "DEEPSPEED" or any(name.startswith("zero-optimization.") for name in settings):
        return _deepspeed_strategy(settings, grid, batch, model=model)
    strategies = settings.get("fsdp", "").lower().split()
    if (
        kind == "FSDP"
        or (strategies and strategies != ["no_shard"])
        or any(name.startswith("fsdp.") for name in settings)
    ):
        return _fsdp_strategy(settings, grid, batch, strategies, node_devices=node_devices)
    if tp > 1 or cp > 1:
        raise DataError(
            f"tensor parallelism {tp} x context parallelism {cp} without FSDP is not priced here",
            hint="a launch with FSDP or DeepSpeed",
        )
    notes = ("replicas (PyTorch DDP) are priced as DeepSpeed's stage 0",) if dp > 1 else ()
    return TrainerStrategy(grid=grid, batch=batch, runtime=OF_TRANSFORMERS, notes=notes)


def _deepspeed_strategy(
    settings: Arguments, grid: Grid, batch: int, *, model: Model
) -> TrainerStrategy:
    """Strategy by DeepSpeed's settings: stage of ZeRO and offload; DataError for ring attention."""
    if grid.cp > grid.ulysses:
        raise DataError(
            "context parallelism in rings under DeepSpeed is not priced here",
            hint="a launch with FSDP, or without it",
        )
    deepspeed = {
        name: value
        for name, value in settings.items()
        if name.startswith(("zero-optimization.", "compile.", "optimizer."))
    }
    for accelerate_name, deepspeed_name in (
        ("deepspeed-config.zero-stage", "zero-optimization.stage"),
        ("deepspeed-config.offload-optimizer-device", "zero-optimization.offload-optimizer.device"),
        ("deepspeed-config.offload-param-device", "zero-optimization.offload-param.device"),
    ):
        if accelerate_name in settings:
            deepspeed.setdefault(deepspeed_name, settings[accelerate_name])
    sizes = {
        "train-micro-batch-size-per-gpu": str(grid.microbatch),
        "train-batch-size": str(batch),
        "sequence-parallel-size": str(grid.cp),
        "tensor-parallel.autotp-size": str(grid.tp),
    }
    written = FileSettings(arguments={**deepspeed, **sizes})
    launch = DEEPSPEED.read(written, model=model, devices=grid.devices, runtime=OF_TRANSFORMERS)
    grid = replace(grid, sp=False, zero=launch.grid.zero, offload=launch.grid.offload)
    return TrainerStrategy(
        grid=grid, batch=batch, runtime=OF_TRANSFORMERS, deepspeed=True, arguments=deepspeed
    )


def _fsdp_strategy(
    settings: Arguments, grid: Grid, batch: int, fsdp_words: list[str], *, node_devices: int
) -> TrainerStrategy:
    """Strategy with FSDP; with offload or Ulysses, or on one device, priced as DeepSpeed's ZeRO."""
    reshard = settings.get("fsdp.reshard-after-forward", "true")
    named = next(
        (word for word in fsdp_words if word in STRATEGIES),
        settings.get("fsdp.sharding-strategy", reshard),
    )
    # FSDP shards over context parallelism too.
    shards = count(settings, "dp-shard") * grid.cp
    split = sharding(
        named,
        replicas=grid.dp * grid.cp,
        replicate=count(settings, "dp-replicate", 1),
        node_devices=node_devices,
        shards=shards,
    )
    zero, shard, notes = split.zero, split.shard, list(split.notes)
    offload = "offload" in fsdp_words or is_on(settings, "fsdp.offload-params")
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


def precision_recipe(settings: Arguments, strategy: TrainerStrategy, *, adapters: bool) -> str:
    """Precision recipe of a launch on Trainer: bf16, fp16, fp8, bf16-pure, tf32 or fp32.

    Mixed precision keeps an fp32 copy under FSDP and DeepSpeed; elsewhere the trained weights have
    the dtype in which they were loaded.
    """
    mixed = settings.get("mixed-precision", "").lower()
    for name in ("fp8", "fp16", "bf16"):
        if mixed == name or is_on(settings, name) or is_on(settings, f"{name}.enabled"):
            narrow = (
                name == "bf16"
                and settings.get("weights") == "bf16"
                and not (strategy.sharded or strategy.deepspeed or adapters)
            )
            return "bf16-pure" if narrow else name
    if settings.get("weights") == "bf16":
        return "bf16" if adapters or strategy.deepspeed else "bf16-pure"
    return "tf32" if is_on(settings, "tf32") else "fp32"


_EIGHT_BIT: Final = names(
    "adamw_bnb_8bit adamw_8bit paged_adamw_8bit adamw_torch_8bit"
    " paged_adamw_8_bit pagedadamw8bit adamw8bit"
)


_ADAM: Final = names(
    "adamw_torch adamw_torch_fused adamw_hf adamw_apex_fused adamw adam"
    " paged_adamw paged_adamw_32bit adamw_torch_xla adamw_torch_npu_fused"
    " adamwscheduleradapter"
)


def runtime_arguments_of(settings: Arguments, strategy: TrainerStrategy) -> Arguments:
    """Arguments that set the runtime's options: loss, compilation, optimizer's states.

    Raises:
        DataError: the optimizer's states are not priced.
    """
    name = settings.get("optim", "adamw_torch").lower()
    if name not in (*_ADAM, *_EIGHT_BIT):
        raise DataError(
            f"optimizer {name[:40]}: its states are not priced here",
            hint="AdamW with states of 32 or 8 bits",
        )
    runtime_arguments = {**strategy.arguments, **linear_loss_argument(settings)}
    if strategy.runtime == FSDP:
        runtime_arguments |= {"compile.enable": "true"} if is_on(settings, "torch-compile") else {}
        pure = (
            settings.get("weights") == "bf16"
            and not any(is_on(settings, one) for one in ("bf16", "fp16"))
            and not settings.get("mixed-precision")
        )
        runtime_arguments |= {"training.dtype": "bfloat16"} if pure else {}
    else:
        runtime_arguments |= {"compile.enabled": "true"} if is_on(settings, "torch-compile") else {}
        # Its collectives overlap by default with ZeRO-3 alone; DDP's and FSDP's always do.
        stage = runtime_arguments.get("zero-optimization.stage", "3")
        runtime_arguments.setdefault(
            "zero-optimization.overlap-comm", str(not strategy.deepspeed or stage == "3").lower()
        )
    return {**runtime_arguments, "optim": "adamw_8bit"} if name in _EIGHT_BIT else runtime_arguments


def strategy_settings(
    grid: Grid, *, runtime: str, global_batch: int, names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield Trainer's (name, text) settings of a grid, under `names` of a framework."""
    options = dict(grid.options)
    by_fsdp = runtime == FSDP
    settings = {
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
    for name, value in settings.items():
        own_name = names.get(name, name)
        if value and own_name.startswith("!"):
            yield own_name[1:].replace("-", "_"), str(value != "true").lower()
        elif value:
            yield own_name.replace("-", "_"), value
