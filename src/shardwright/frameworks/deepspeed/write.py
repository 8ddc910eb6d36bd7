"""DeepSpeed: its configuration, and a script that starts a training program with it.

Source of the fields: DeepSpeed 0.19.8, runtime/config.py, runtime/zero/config.py,
runtime/zero/offload_config.py, runtime/activation_checkpointing/config.py,
runtime/tensor_parallel/config.py, module_inject/auto_ep_config.py and auto_ep_folding.py; of
groups, utils/groups.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from shardwright.dtype import Dtype
from shardwright.frameworks.export.common_shortfalls import (
    OF_THE_PROGRAM,
    another_framework,
    core_recomputed,
    frozen_parameters,
    not_split_beside_tp,
    of_one_replica,
    of_the_program,
    on_the_host,
    other_optimizers,
    other_orders,
    other_products,
    sliced,
    some_recomputed,
)
from shardwright.frameworks.export.exporter import ExportFile, Given, Shortfall, one_line
from shardwright.frameworks.export.nested_settings import Pair, Settings, nested, settings_of
from shardwright.frameworks.export.option_flags import flags_set
from shardwright.frameworks.export.start_script import start_script, torchrun
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.options import chosen
from shardwright.runtime.runtime import ElementKernels
from shardwright.strategy.grid.axes import Grid, Recompute

CONFIG, SCRIPT = "ds_config.json", "train.sh"
INNERMOST_FIRST: Final = ("tp", "cp", "dp")
PRESETS: Final[Mapping[str, str]] = {
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}
"""Models whose experts it deals over devices (AutoEP): architecture -> `preset_model`."""


@dataclass(frozen=True, slots=True)
class DeepSpeed:
    """The exporter."""

    name: str = "deepspeed"
    version: str = "0.19.8"
    summary: str = "its configuration, and a script that starts a program with it"
    stages_differ: bool = False

    def shortfalls(self, given: Given) -> Iterator[Shortfall]:
        """See `Exporter`."""
        yield from other_optimizers(given)
        yield from of_the_program(given)
        yield from other_products(given, Dtype.BF16, Dtype.FP16)
        yield from frozen_parameters(given)
        yield from grid_shortfalls(given.grid)
        yield from _of_experts(given)
        yield from another_framework(given, "DeepSpeed")

    def files(self, given: Given) -> tuple[ExportFile, ...]:
        """See `Exporter`."""
        config = json.dumps(configuration(given), indent=2) + "\n"
        return ExportFile(name=CONFIG, text=config), _script(given)


DEEPSPEED: Final = DeepSpeed()


def grid_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """What its configuration cannot say of a strategy, experts apart."""
    if grid.pp > 1:
        yield Shortfall(
            what=f"pp {grid.pp}: its pipelines are programs (PipelineModule), not configuration",
            hint="pp 1",
        )
    yield from other_orders(grid, (*INNERMOST_FIRST, "pp"))
    yield from not_split_beside_tp(grid)
    yield from of_one_replica(grid)
    if grid.ring > 1:
        yield Shortfall(
            what=f"a ring of {grid.ring}: its sequence parallelism trades heads",
            hint=f"ulysses {grid.cp}",
        )
    if grid.cp > 1 and grid.tp > 1:
        yield Shortfall(
            what=f"cp {grid.cp} beside tp {grid.tp}: its mesh has one of them", hint="tp 1 or cp 1"
        )
    if grid.zero and grid.shard and grid.shard < grid.dp * grid.cp:
        what = (
            f"zero{grid.zero} in groups of {grid.shard}: MiCS was removed, and"
            " zero_hpz_partition_size shards gathered parameters alone"
        )
        yield Shortfall(what=what, hint="shards over all replicas")
    if grid.offload and not grid.zero:
        yield Shortfall(what="states on the host without ZeRO", hint="zero 1, 2 or 3")
    elif grid.offload not in (0, 100) and grid.zero < 3:
        yield Shortfall(
            what=f"{grid.offload} % of the states on the host with zero{grid.zero}",
            hint="all of them, or zero3",
        )
    yield from core_recomputed(grid)
    yield from some_recomputed(grid)
    yield from on_the_host(grid)
    yield from sliced(grid)


def _of_experts(given: Given) -> Iterator[Shortfall]:
    grid, model = given.grid, given.problem.model
    if grid.etp > 1:
        yield Shortfall(what=f"etp {grid.etp}: its experts are not cut", hint="etp 1")
    if grid.ep == 1:
        return
    if model.architecture not in PRESETS:
        known = ", ".join(PRESETS.values())
        yield Shortfall(
            what=f"ep {grid.ep} of {model.name}: it deals experts of {known}",
            hint="ep 1, or such a model",
        )
    if grid.cp > 1 and grid.zero == 3:
        yield Shortfall(what="ep beside cp with zero3", hint="zero 2")
    if grid.tp > 1 and grid.offload:
        yield Shortfall(what="ep beside tp with states on the host", hint="offload=0")
    if grid.tp * grid.cp > 1 and _data_first(grid):
        yield Shortfall(
            what="experts dealt outside replicas beside tp or cp",
            hint="ep inside dp in the order of ranks",
        )


def _data_first(grid: Grid) -> bool:
    """Copies of an expert are neighbours, and the members that share its layer's experts stand
    apart.
    """
    return grid.ep > 1 and grid.edp > 1 and grid.order.index("dp") < grid.order.index("ep")


def configuration(given: Given) -> Settings:
    """The configuration of a plan of which nothing is lacking."""
    return nested(
        [
            *_batch(given),
            *_numbers(given),
            *_states(given),
            *_parallel(given),
            *_recomputed(given),
            *_options(given),
        ]
    )


def _batch(given: Given) -> Iterator[Pair]:
    grid, batch = given.grid, given.problem.job.global_batch
    # With tensor parallelism its check of the batch counts every rank as a replica: it is given
    # what it does not check.
    if grid.tp == 1:
        yield "train_batch_size", batch
    yield "train_micro_batch_size_per_gpu", grid.microbatch
    yield "gradient_accumulation_steps", batch // (grid.dp * grid.microbatch)


def _numbers(given: Given) -> Iterator[Pair]:
    yield ("fp16.enabled" if given.problem.job.compute is Dtype.FP16 else "bf16.enabled"), True
    runtime = given.problem.runtime
    # Without ZeRO it adds gradients up in the parameters' format and takes no other.
    if given.grid.zero and runtime.framework == "DeepSpeed":
        yield "data_types.grad_accum_dtype", str(runtime.gradient_dtype)


def _states(given: Given) -> Iterator[Pair]:
    grid, runtime = given.grid, given.problem.runtime
    yield "zero_optimization.stage", grid.zero
    if grid.offload:
        yield "zero_optimization.offload_optimizer.device", "cpu"
        if grid.offload < 100:
            yield "zero_optimization.offload_optimizer.ratio", grid.offload / 100
    if not grid.zero or runtime.framework != "DeepSpeed":
        return
    # Sizes of buckets are elements of two bytes.
    yield "zero_optimization.reduce_bucket_size", runtime.bucket_bytes // 2
    yield "zero_optimization.allgather_bucket_size", runtime.bucket_bytes // 2
    if grid.zero == 3:
        yield "zero_optimization.stage3_prefetch_bucket_size", runtime.gather_bucket_bytes // 2
        yield "zero_optimization.stage3_max_reuse_distance", runtime.reuse_elements


def _parallel(given: Given) -> Iterator[Pair]:
    grid = given.grid
    if grid.tp > 1:
        yield "tensor_parallel.autotp_size", grid.tp
    if grid.cp > 1:
        yield "sequence_parallel_size", grid.cp
        yield "data_parallel_size", grid.dp
    if grid.ep > 1:
        yield "expert_parallel.enabled", True
        yield "expert_parallel.autoep_size", grid.ep
        yield "expert_parallel.preset_model", PRESETS[given.problem.model.architecture]
        if _data_first(grid):
            yield "use_data_before_expert_parallelism", True


def _recomputed(given: Given) -> Iterator[Pair]:
    if given.grid.recompute is not Recompute.NONE:
        yield "activation_checkpointing.partition_activations", False
        yield "activation_checkpointing.cpu_checkpointing", False


def _options(given: Given) -> Iterator[Pair]:
    # That a compiler fuses kernels is no setting of this version, but a call of the program.
    for flag in flags_set(given, "DeepSpeed", apart=("kernels", *OF_THE_PROGRAM)):
        yield from settings_of(flag)


def _program(given: Given) -> Iterator[str]:
    """What the training program does, which no configuration says."""
    grid, model = given.grid, given.problem.model
    yield (
        f"builds {model.name}, reads samples of {given.problem.job.sequence_length} tokens, and"
        " makes AdamW with its learning rate"
    )
    if grid.recompute is not Recompute.NONE:
        yield (
            "recomputes every layer: model.gradient_checkpointing_enable(), or"
            " deepspeed.checkpointing.checkpoint"
        )
    if grid.cp > 1:
        yield (
            "trades heads round attention: deepspeed.sequence.layer.DistributedAttention, or"
            " UlyssesSPAttentionHF"
        )
    runtime = given.problem.runtime
    if (
        runtime.framework == "DeepSpeed"
        and chosen(runtime, grid.options).element_kernels is ElementKernels.COMPILED
    ):
        yield "compiles: engine.compile()"


def _script(given: Given) -> ExportFile:
    return start_script(
        given,
        name=SCRIPT,
        made_for=f"DeepSpeed {DEEPSPEED.version}",
        before=[
            f"# {CONFIG} says batch, numbers, ZeRO and degrees. The program, the first argument,",
            *(f"# - {one_line(line)};" for line in _program(given)),
            "# - calls deepspeed.initialize with deepspeed.add_config_arguments.",
            'program="${1:?}"; shift',
        ],
        runs=torchrun(
            '"$program"', "--deepspeed", "--deepspeed_config", f'"$(dirname "$0")/{CONFIG}"'
        ),
    )
