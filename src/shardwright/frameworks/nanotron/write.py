"""Exporter of nanotron's YAML and a start script.

Source: nanotron's main of 2025-04; of ranks, parallel/context.py
(`_init_process_group_without_moe`), of stages, models/base.py (`build_model`) and models/qwen.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

from shardwright.dtype import Dtype
from shardwright.frameworks.export.decoder_view_and_unsupported_layers import (
    decoder_of,
    unsupported_attention_shortfalls,
    unsupported_factor_shortfalls,
    unsupported_layer_shortfalls,
)
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    Exporter,
    ExportFile,
    PlanToExport,
    Shortfall,
    title,
)
from shardwright.frameworks.export.nest_dotted_settings import nested_sections, settings_of_flag
from shardwright.frameworks.export.plan_runtime_options_as_flags import option_flags_of_plan
from shardwright.frameworks.export.start_script import start_script, torchrun
from shardwright.frameworks.export.unsupported_plan_features import (
    job_shortfalls,
    other_framework_shortfalls,
    partial_recompute_shortfalls,
    rank_order_shortfalls,
    selective_recompute_shortfalls,
    universal_shortfalls,
)
from shardwright.frameworks.export.yaml_text import yaml_text
from shardwright.frameworks.nanotron.settings import SETTINGS
from shardwright.frameworks.settings.setting_table import (
    Pair,
    grid_values,
    in_section,
    written_settings,
)
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

FILE, SCRIPT = "nanotron.yaml", "train.sh"
INNERMOST_FIRST: Final = ("tp", "cp", "dp", "pp")
ENGINES: Final = ("1f1b", "gpipe")
"""Schedules that nanotron supports."""
MADE: Final = name_set("norm1 qkv rotary core proj residual1 norm2 up act down residual2")
"""Operators of nanotron's Qwen 2, which is a Llama without the biases."""


def _shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Parts of a plan that nanotron cannot express, each with a substitute or a hint."""
    shortfalls = tuple(_model_shortfalls(export.problem.model))
    yield from shortfalls
    yield from job_shortfalls(export, Dtype.BF16, Dtype.FP16)
    yield from _grid_shortfalls(export.grid)
    # The division into stages is known for models that nanotron supports.
    if all(shortfall.instead for shortfall in shortfalls):
        yield from _stage_shortfalls(export)
    yield from other_framework_shortfalls(export, "nanotron")


def _files(export: PlanToExport) -> tuple[ExportFile, ...]:
    """nanotron's YAML and the start script of a plan."""
    text = yaml_text(nested_sections(_written_settings(export)), comments=_comments(export))
    return ExportFile(name=FILE, text=text), _script(export)


NANOTRON: Final = Exporter(
    name="nanotron",
    version=SETTINGS.version,
    summary="the file of its trainer",
    shortfalls=_shortfalls,
    files=_files,
)


def _model_shortfalls(model: Model) -> Iterator[Shortfall]:
    """Parts of a model that nanotron cannot express."""
    decoder = decoder_of(model)
    if any(o.experts is not None for block in decoder.layers for o in block.operators):
        yield Shortfall(
            what=f"{model.name}: its layer of experts sends no tokens between devices",
            hint="a model without experts",
        )
        return
    unsupported = tuple(unsupported_layer_shortfalls(decoder, MADE))
    if unsupported:
        yield from unsupported
        return
    yield from unsupported_attention_shortfalls(decoder)
    yield from unsupported_factor_shortfalls(decoder)
    shape, settings = decoder.attention_shape, model.settings
    if shape.window:
        yield Shortfall(what=f"windows of {shape.window} positions", hint="attention over all")
    if shape.head_dim * shape.heads != model.hidden:
        yield Shortfall(
            what=f"{shape.heads} heads of {shape.head_dim} in a stream of {model.hidden}",
            hint="heads as wide as the stream",
        )
    biased = [
        len(o.parameters) > len(o.writes)
        for o in (
            *decoder.operators_named("proj"),
            *decoder.operators_named("up"),
            *decoder.operators_named("down"),
        )
    ]
    norms = decoder.operators_named("norm1")
    if (
        any(biased)
        or any(len(o.parameters) != 1 for o in norms)
        or any(not o.gated for o in decoder.operators_named("act"))
    ):
        yield Shortfall(
            what="biases behind attention, norms with biases or feed-forwards without gates",
            hint="a Llama or a Qwen 2",
        )
    if settings.rope_share != 1.0:
        yield Shortfall(
            what=f"rotary positions of {settings.rope_share:g} of a head", hint="of all of it"
        )
    if settings.longer is not None:
        yield Shortfall(
            what=f"rotary positions made longer by {type(settings.longer).__name__}",
            instead="positions as they were first trained",
        )


def _grid_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """Parts of a grid that nanotron cannot express."""
    if grid.pp > 1 and (grid.vpp > 1 or grid.schedule not in ENGINES):
        yield Shortfall(
            what=f"the schedule {grid.schedule} with {grid.vpp} chunks a rank", hint="1f1b or gpipe"
        )
    yield from rank_order_shortfalls(grid, INNERMOST_FIRST)
    if grid.zero > 1:
        yield Shortfall(
            what=f"zero{grid.zero}: its ZeRO ends with the optimizer's states", hint="zero1"
        )
    if grid.zero and grid.shard and grid.shard < grid.dp * grid.cp:
        yield Shortfall(
            what=f"zero{grid.zero} in groups of {grid.shard}", hint="shards over all replicas"
        )
    if grid.ulysses > 1 or grid.gather:
        yield Shortfall(
            what="context parallelism that trades heads or gathers keys", hint="a ring: ulysses 1"
        )
    if grid.offload:
        yield Shortfall(what=f"{grid.offload} % of the states on the host", hint="offload=0")
    yield from selective_recompute_shortfalls(grid)
    yield from partial_recompute_shortfalls(grid)
    yield from universal_shortfalls(grid)


def _stage_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Yield shortfalls of tp above key heads, and of stages unlike nanotron's own division."""
    grid, shape = export.grid, decoder_of(export.problem.model).attention_shape
    if grid.tp > shape.kv_heads:
        yield Shortfall(
            what=f"tp {grid.tp} with {shape.kv_heads} heads of keys",
            hint=f"tp at most {shape.kv_heads}",
        )
    if grid.pp == 1 or export.table is not None or grid.vpp > 1:
        return
    own_layers = stage_layers_by_cost(export.problem.model, grid.pp)
    if min(own_layers[:-1]) == 0:
        yield Shortfall(
            what=(
                f"pp {grid.pp}: it would leave a rank without layers,"
                f" {_comma_separated(own_layers)}"
            ),
            hint="a smaller pp",
        )
    elif own_layers != export.chunks:
        yield Shortfall(
            what=f"stages of {_comma_separated(export.chunks)} layers",
            instead=f"stages by its own costs, {_comma_separated(own_layers)}",
        )


def _comma_separated(numbers: tuple[int, ...]) -> str:
    """Numbers as text for a message, such as ``4, 4, 3``."""
    return ", ".join(map(str, numbers))


def stage_layers_by_cost(model: Model, pp: int) -> tuple[int, ...]:
    """Layers of each stage as nanotron divides them: equal shares of weights of layers and head.

    A stage ends with the layer at which the sum of costs exceeds the stage's share. The cost of a
    layer is the number of elements of its GEMM weights, that of the head vocabulary x width, that
    of the embedding 0.
    """
    decoder = decoder_of(model)
    shape, up = decoder.attention_shape, decoder.first_operator("up")
    assert up is not None, "models without a feed-forward are refused"
    layer = 4 * shape.heads * shape.head_dim * model.hidden + 3 * up.writes[0].size * model.hidden
    costs = [0, *[layer] * len(decoder.layers), 0, model.vocab * model.hidden, 0]
    sums = list(accumulate(costs))
    shares = [sums[-1] * ((rank + 1) / pp) for rank in range(pp)]
    counts, rank = [0] * pp, 0
    for place, total in enumerate(sums):
        counts[rank] += 0 < place <= len(decoder.layers)
        rank += total > shares[rank]
    return tuple(counts)


def _written_settings(export: PlanToExport) -> Iterator[Pair]:
    """Yield (dotted name, value) of a plan's settings in nanotron's YAML."""
    written = tuple(written_settings(SETTINGS, _field_values(export)))
    yield "general.project", "shardwright"
    yield "general.run", "%date_%jobid"
    yield from in_section(written, "parallelism")
    for flag in option_flags_of_plan(export, "nanotron"):
        yield from ((f"parallelism.{name}", value) for name, value in settings_of_flag(flag))
    for name, value in _model_settings(export):
        yield f"model.model_config.{name}", value
    yield "model.init_method.std", 0.02
    yield from in_section(written, "model")
    yield from in_section(written, "tokens")
    yield "tokens.train_steps", None
    yield from in_section(written, "optimizer")
    yield from _optimizer_settings(export)


def _field_values(export: PlanToExport) -> dict[str, Any]:
    """Field of the settings table -> value to write for the plan."""
    grid, job = export.grid, export.problem.job
    return {
        **grid_values(grid),
        "ep": 1,
        "schedule": grid.schedule if grid.pp > 1 else "1f1b",
        "is_overlapped": False,
        "recompute": Recompute.NONE if grid.recompute is Recompute.NONE else Recompute.FULL,
        "precision": "fp16" if job.compute is Dtype.FP16 else "bf16",
        "seq_len": job.sequence_length,
        "microbatches": job.global_batch // (grid.dp * grid.microbatch),
    }


def _model_settings(export: PlanToExport) -> Iterator[Pair]:
    """Yield (name, value) of nanotron's model configuration, from the plan's model."""
    model = export.problem.model
    decoder, settings, length = (
        decoder_of(model),
        model.settings,
        export.problem.job.sequence_length,
    )
    shape, up, qkv = (
        decoder.attention_shape,
        decoder.first_operator("up"),
        decoder.first_operator("qkv"),
    )
    assert up is not None, "models without a feed-forward are refused"
    assert qkv is not None, "models without plain attention are refused"
    yield "is_qwen2_config", True
    yield "_attn_implementation", "ring" if export.grid.cp > 1 else "flash_attention_2"
    yield "num_hidden_layers", len(decoder.layers)
    yield "hidden_size", model.hidden
    yield "intermediate_size", up.writes[0].size
    yield "num_attention_heads", shape.heads
    yield "num_key_value_heads", shape.kv_heads
    yield "attention_bias", len(qkv.parameters) > len(qkv.writes)
    yield "hidden_act", settings.activation or "silu"
    yield "rms_norm_eps", settings.eps
    yield "rope_theta", settings.rope_base
    yield "rope_interleaved", False
    yield "max_position_embeddings", max(length, model.max_context or 0)
    yield "tie_word_embeddings", decoder.ties_embedding
    yield "vocab_size", model.vocab


def _optimizer_settings(export: PlanToExport) -> Iterator[Pair]:
    """Yield settings of the optimizer; values that no plan has are null."""
    runtime = export.problem.runtime
    yield "optimizer.accumulate_grad_in_fp32", runtime.gradient_dtype is Dtype.FP32
    yield "optimizer.clip_grad", None
    yield "optimizer.weight_decay", None
    yield "optimizer.optimizer_factory.name", "adamW"
    yield from (
        (f"optimizer.optimizer_factory.adam_{name}", None) for name in ("beta1", "beta2", "eps")
    )
    yield "optimizer.optimizer_factory.torch_adam_is_fused", True
    yield "optimizer.learning_rate_scheduler.learning_rate", None
    yield "optimizer.learning_rate_scheduler.lr_warmup_style", "linear"
    yield "optimizer.learning_rate_scheduler.lr_decay_style", "linear"


def _comments(export: PlanToExport) -> Iterator[str]:
    """Comment lines at the head of the YAML."""
    yield f"{title(export)}. Made by Shardwright for nanotron ({SETTINGS.version})."
    yield (
        "What is null is no part of a plan, nor are data_stages, tokenizer and checkpoints: set"
        " them."
    )


def _script(export: PlanToExport) -> ExportFile:
    """Start script of one node, which calls torchrun."""
    runs = torchrun("run_train.py", "--config-file", f'"$(dirname "$0")/{FILE}"')
    return start_script(export, name=SCRIPT, made_for=f"nanotron ({SETTINGS.version})", runs=runs)
