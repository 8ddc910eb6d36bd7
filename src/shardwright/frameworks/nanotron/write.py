"""nanotron: the file of its trainer.

Source: nanotron's main of 2025-04; of ranks, parallel/context.py
(`_init_process_group_without_moe`), of stages, models/base.py (`build_model`) and models/qwen.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

from shardwright.dtype import Dtype
from shardwright.frameworks.export.common_shortfalls import (
    another_framework,
    core_recomputed,
    in_no_target,
    of_the_job,
    other_orders,
    some_recomputed,
)
from shardwright.frameworks.export.decoder import (
    decoder_of,
    factors,
    strange_attention,
    strange_layers,
)
from shardwright.frameworks.export.exporter import Exporter, ExportFile, Given, Shortfall, title
from shardwright.frameworks.export.nested_settings import nested, settings_of
from shardwright.frameworks.export.option_flags import flags_set
from shardwright.frameworks.export.start_script import start_script, torchrun
from shardwright.frameworks.export.yaml_text import yaml_text
from shardwright.frameworks.nanotron.settings import SETTINGS
from shardwright.frameworks.settings.name_lists import name_set
from shardwright.frameworks.settings.setting_table import (
    Pair,
    grid_values,
    in_section,
    written_settings,
)
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.grid import Grid, Recompute

FILE, SCRIPT = "nanotron.yaml", "train.sh"
INNERMOST_FIRST: Final = ("tp", "cp", "dp", "pp")
ENGINES: Final = ("1f1b", "gpipe")
"""Schedules that it has."""
MADE: Final = name_set("norm1 qkv rotary core proj residual1 norm2 up act down residual2")
"""Operators of its Qwen 2, which without biases is a Llama."""


def _shortfalls(given: Given) -> Iterator[Shortfall]:
    """The parts of a plan that nanotron cannot express, each with the reason."""
    lacking = tuple(_of_the_model(given.problem.model))
    yield from lacking
    yield from of_the_job(given, Dtype.BF16, Dtype.FP16)
    yield from _of_the_grid(given.grid)
    # What its stages cost is said of models that it has.
    if all(one.instead for one in lacking):
        yield from _of_stages(given)
    yield from another_framework(given, "nanotron")


def _files(given: Given) -> tuple[ExportFile, ...]:
    """The files of a plan of which nothing, or only what may be lost, is lacking."""
    text = yaml_text(nested(_settings(given)), comments=_comments(given))
    return ExportFile(name=FILE, text=text), _script(given)


NANOTRON: Final = Exporter(
    name="nanotron",
    version=SETTINGS.version,
    summary="the file of its trainer",
    shortfalls=_shortfalls,
    files=_files,
)


def _of_the_model(model: Model) -> Iterator[Shortfall]:
    decoder = decoder_of(model)
    if any(o.experts is not None for block in decoder.layers for o in block.operators):
        yield Shortfall(
            what=f"{model.name}: its layer of experts sends no tokens between devices",
            hint="a model without experts",
        )
        return
    strange = tuple(strange_layers(decoder, MADE))
    if strange:
        yield from strange
        return
    yield from strange_attention(decoder)
    yield from factors(decoder)
    shape, own = decoder.core, model.settings
    if shape.window:
        yield Shortfall(what=f"windows of {shape.window} positions", hint="attention over all")
    if shape.head_dim * shape.heads != model.hidden:
        yield Shortfall(
            what=f"{shape.heads} heads of {shape.head_dim} in a stream of {model.hidden}",
            hint="heads as wide as the stream",
        )
    biased = [
        len(o.parameters) > len(o.writes)
        for o in (*decoder.named("proj"), *decoder.named("up"), *decoder.named("down"))
    ]
    norms = decoder.named("norm1")
    if (
        any(biased)
        or any(len(o.parameters) != 1 for o in norms)
        or any(not o.gated for o in decoder.named("act"))
    ):
        yield Shortfall(
            what="biases behind attention, norms with biases or feed-forwards without gates",
            hint="a Llama or a Qwen 2",
        )
    if own.rope_share != 1.0:
        yield Shortfall(
            what=f"rotary positions of {own.rope_share:g} of a head", hint="of all of it"
        )
    if own.longer is not None:
        yield Shortfall(
            what=f"rotary positions made longer by {type(own.longer).__name__}",
            instead="positions as they were first trained",
        )


def _of_the_grid(grid: Grid) -> Iterator[Shortfall]:
    if grid.pp > 1 and (grid.vpp > 1 or grid.schedule not in ENGINES):
        yield Shortfall(
            what=f"the schedule {grid.schedule} with {grid.vpp} chunks a rank", hint="1f1b or gpipe"
        )
    yield from other_orders(grid, INNERMOST_FIRST)
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
    yield from core_recomputed(grid)
    yield from some_recomputed(grid)
    yield from in_no_target(grid)


def _of_stages(given: Given) -> Iterator[Shortfall]:
    grid, shape = given.grid, decoder_of(given.problem.model).core
    if grid.tp > shape.kv_heads:
        yield Shortfall(
            what=f"tp {grid.tp} with {shape.kv_heads} heads of keys",
            hint=f"tp at most {shape.kv_heads}",
        )
    if grid.pp == 1 or given.table is not None or grid.vpp > 1:
        return
    own = own_stages(given.problem.model, grid.pp)
    if min(own[:-1]) == 0:
        yield Shortfall(
            what=f"pp {grid.pp}: it would leave a rank without layers, {_listed(own)}",
            hint="a smaller pp",
        )
    elif own != given.chunks:
        yield Shortfall(
            what=f"stages of {_listed(given.chunks)} layers",
            instead=f"stages by its own costs, {_listed(own)}",
        )


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def own_stages(model: Model, pp: int) -> tuple[int, ...]:
    """Layers of each stage as nanotron cuts a model: a stage ends with the layer that takes the sum
    of costs past its share; a layer costs its products' elements, the head vocabulary times width,
    the embedding nothing.
    """
    decoder = decoder_of(model)
    shape, up = decoder.core, decoder.one("up")
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


def _settings(given: Given) -> Iterator[Pair]:
    known = tuple(written_settings(SETTINGS, _values(given)))
    yield "general.project", "shardwright"
    yield "general.run", "%date_%jobid"
    yield from in_section(known, "parallelism")
    for flag in flags_set(given, "nanotron"):
        yield from ((f"parallelism.{name}", value) for name, value in settings_of(flag))
    for name, value in _model(given):
        yield f"model.model_config.{name}", value
    yield "model.init_method.std", 0.02
    yield from in_section(known, "model")
    yield from in_section(known, "tokens")
    yield "tokens.train_steps", None
    yield from in_section(known, "optimizer")
    yield from _optimizer(given)


def _values(given: Given) -> dict[str, Any]:
    """The values of the table's fields."""
    grid, job = given.grid, given.problem.job
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


def _model(given: Given) -> Iterator[Pair]:
    model = given.problem.model
    decoder, own, length = decoder_of(model), model.settings, given.problem.job.sequence_length
    shape, up, qkv = decoder.core, decoder.one("up"), decoder.one("qkv")
    assert up is not None, "models without a feed-forward are refused"
    assert qkv is not None, "models without plain attention are refused"
    head = model.blocks[model.runs[-1].block]
    yield "is_qwen2_config", True
    yield "_attn_implementation", "ring" if given.grid.cp > 1 else "flash_attention_2"
    yield "num_hidden_layers", len(decoder.layers)
    yield "hidden_size", model.hidden
    yield "intermediate_size", up.writes[0].size
    yield "num_attention_heads", shape.heads
    yield "num_key_value_heads", shape.kv_heads
    yield "attention_bias", len(qkv.parameters) > len(qkv.writes)
    yield "hidden_act", own.activation or "silu"
    yield "rms_norm_eps", own.eps
    yield "rope_theta", own.rope_base
    yield "rope_interleaved", False
    yield "max_position_embeddings", max(length, model.max_context or 0)
    yield "tie_word_embeddings", any(p.tied_to for o in head.operators for p in o.parameters)
    yield "vocab_size", model.vocab


def _optimizer(given: Given) -> Iterator[Pair]:
    runtime = given.problem.runtime
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


def _comments(given: Given) -> Iterator[str]:
    yield f"{title(given)}. Made by Shardwright for nanotron ({SETTINGS.version})."
    yield (
        "What is null is no part of a plan, nor are data_stages, tokenizer and checkpoints: set"
        " them."
    )


def _script(given: Given) -> ExportFile:
    runs = torchrun("run_train.py", "--config-file", f'"$(dirname "$0")/{FILE}"')
    return start_script(given, name=SCRIPT, made_for=f"nanotron ({SETTINGS.version})", runs=runs)
