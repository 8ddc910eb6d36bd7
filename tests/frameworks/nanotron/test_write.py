"""nanotron's file says a plan's strategy and its model; where its stages would be cut otherwise
that is listed, and the rest is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from shardwright.api.exports.export_plan import export_plan, write_export
from shardwright.errors import StrategyError
from shardwright.frameworks.nanotron.write import FILE
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.layers_per_chunk import chunk_layers
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.frameworks.plans import BATCH, LENGTH, facts_of, legal, read_yaml, stored
from tests.tiers import in_both, numbers

MODELS = ("llama-2-7b", "qwen2.5-7b")

FIELDS = {
    "general": {"project", "run"},
    "parallelism": {
        *(
            "dp",
            "pp",
            "tp",
            "pp_engine",
            "tp_mode",
            "tp_linear_async_communication",
            "recompute_layer",
            "moe_layer_recompute",
        ),
        *("tp_recompute_allgather", "expert_parallel_size", "context_parallel_size"),
    },
    "model": {
        "model_config",
        "init_method",
        "dtype",
        "make_vocab_size_divisible_by",
        "ddp_bucket_cap_mb",
    },
    "tokens": {
        "sequence_length",
        "train_steps",
        "micro_batch_size",
        "batch_accumulation_per_replica",
        "val_check_interval",
    },
    "optimizer": {
        *(
            "optimizer_factory",
            "zero_stage",
            "weight_decay",
            "clip_grad",
            "accumulate_grad_in_fp32",
            "learning_rate_scheduler",
        ),
        "weight_decay_exclude_named_params",
    },
}
"""Names of its dataclasses (`Config` and what it holds); it takes no others."""
QWEN: frozenset[str] = frozenset(
    {
        *(
            "is_qwen2_config",
            "_attn_implementation",
            "num_hidden_layers",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
        ),
        *(
            "num_key_value_heads",
            "attention_bias",
            "hidden_act",
            "rms_norm_eps",
            "rope_theta",
            "rope_interleaved",
            "vocab_size",
        ),
        *("max_position_embeddings", "tie_word_embeddings"),
    }
)
"""Of its `Qwen2Config`, those that a model is said with."""


def said(grid: Grid, model: str, folder: Path, *, allow_lossy: bool = True) -> dict[str, Any]:
    one = stored(grid, model=model, runtime="nanotron")
    path, *_ = write_export(export_plan(one, target="nanotron", allow_lossy=allow_lossy), folder)
    assert path.name == FILE
    found: dict[str, Any] = read_yaml(path.read_text())
    for section, names in FIELDS.items():
        assert set(found[section]) <= names
    assert set(found) == set(FIELDS)
    assert set(found["model"]["model_config"]) == QWEN
    return found


def cut(config: dict[str, Any], pp: int) -> tuple[int, ...]:
    """Layers of each stage: blocks in order, the next stage after the one whose costs pass the
    stage's share, as its `build_model`."""
    width, ffn, layers = (
        config["hidden_size"],
        config["intermediate_size"],
        config["num_hidden_layers"],
    )
    cost = (
        4 * config["num_attention_heads"] * (width // config["num_attention_heads"]) * width
        + 3 * ffn * width
    )
    blocks = ["embedding", *["layer"] * layers, "norm", "head", "loss"]
    sums = np.cumsum(
        [{"layer": cost, "head": config["vocab_size"] * width}.get(block, 0) for block in blocks]
    )
    stage, counts = 0, [0] * pp
    for block, total in zip(blocks, sums, strict=True):
        counts[stage] += block == "layer"
        if total > sums[-1] * ((stage + 1) / pp):
            stage += 1
    return tuple(counts)


def read_back(found: dict[str, Any]) -> Grid:
    """The grid that a file is, by what nanotron does with it."""
    own, tokens = found["parallelism"], found["tokens"]
    pp = own["pp"]
    assert (
        tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"] * own["dp"] == BATCH
    )
    assert tokens["sequence_length"] == LENGTH
    ring = found["model"]["model_config"]["_attn_implementation"] == "ring"
    assert ring == (own["context_parallel_size"] > 1)
    return Grid(
        tp=own["tp"],
        sp=own["tp_mode"] == "REDUCE_SCATTER",
        cp=own["context_parallel_size"],
        ep=own["expert_parallel_size"],
        dp=own["dp"],
        pp=pp,
        microbatch=tokens["micro_batch_size"],
        zero=found["optimizer"]["zero_stage"],
        recompute=Recompute.FULL if own["recompute_layer"] else Recompute.NONE,
        schedule={"1f1b": "1f1b", "afab": "gpipe"}[own["pp_engine"]] if pp > 1 else "1f1b",
        layers=cut(found["model"]["model_config"], pp) if pp > 1 else (),
    )


def drawn(random: Random) -> Grid:
    tp, pp = random.choice((1, 2, 4)), random.choice((1, 2, 4))
    return Grid(
        tp=tp,
        sp=tp > 1 and random.random() < 0.7,
        cp=random.choice((1, 1, 2, 4)),
        dp=random.choice((1, 2, 4)),
        pp=pp,
        microbatch=random.choice((1, 2)),
        zero=random.choice((0, 1)),
        recompute=random.choice((Recompute.NONE, Recompute.FULL)),
        schedule=random.choice(("1f1b", "gpipe")) if pp > 1 else "1f1b",
    )


@in_both
@pytest.mark.parametrize("model", MODELS)
def test_random_strategies_are_read_back(model: str, tmp_path: Path) -> None:
    compared = 0
    layers = sum(run.count for run in load_model(model).runs if run.name not in ("embed", "head"))
    for number in numbers(30, 200):
        grid = drawn(Random(f"{model} {number}"))
        if not legal(grid, model):
            continue
        facts = facts_of(grid, model)
        grid = canonical(grid, facts=facts)
        found = read_back(said(grid, model, tmp_path))
        own = found.layers
        # Its own stages are what it would do instead, and are listed where they are not the plan's.
        losses = export_plan(
            stored(grid, model=model, runtime="nanotron"), target="nanotron", allow_lossy=True
        ).losses
        planned = chunk_layers(layers, pp=grid.pp)
        assert any("stages of" in loss.what for loss in losses) == (grid.pp > 1 and own != planned)
        again = canonical(replace(found, layers=() if grid.pp == 1 else planned), facts=facts)
        assert again == replace(grid, options=()), print_grid(grid)
        compared += 1
    assert compared > 10


def test_a_plan_of_its_own_stages_is_no_loss(tmp_path: Path) -> None:
    found = said(
        parse_grid("pp4 dp2 zero1 layers=9,8,8,7"), "llama-2-7b", tmp_path, allow_lossy=False
    )
    assert read_back(found).layers == (9, 8, 8, 7)


def test_a_model_is_said(tmp_path: Path) -> None:
    config = said(parse_grid("tp2 sp dp4 zero1 tp_overlap=dgrad"), "qwen2.5-7b", tmp_path)
    assert config["parallelism"]["tp_linear_async_communication"] is True
    assert config["optimizer"]["accumulate_grad_in_fp32"] is True
    assert config["model"]["model_config"] == {
        "is_qwen2_config": True,
        "_attn_implementation": "flash_attention_2",
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "attention_bias": True,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_interleaved": False,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    }


@pytest.mark.parametrize(
    ("text", "model", "what"),
    [
        ("dp8 zero2", "llama-2-7b", "zero2: its ZeRO ends"),
        (
            "pp2 vpp2 dp4 zero1 schedule=interleaved-1f1b",
            "llama-2-7b",
            "the schedule interleaved-1f1b",
        ),
        ("cp4 ulysses4 dp2 zero1", "llama-2-7b", "trades heads"),
        ("dp8 zero1", "mistral-nemo-12b", "32 heads of 128 in a stream of 5120"),
        ("dp8 ep4 zero1", "mixtral-8x7b", "sends no tokens"),
        ("dp8 zero1", "qwen3-8b", "layers with qk_norm"),
        ("dp8 zero1", "gpt-oss-20b", "sends no tokens"),
        ("tp8 dp1", "qwen2.5-7b", "tp 8 with 4 heads of keys"),
        (
            "pp4 dp2 zero1 layers=7,9,9,7",
            "llama-2-7b",
            "stages of 7, 9, 9, 7 layers (instead: stages by its own costs, 9, 8, 8, 7)",
        ),
        ("dp8 zero1", "llama-3.1-8b", "made longer by LongerRotary (instead"),
    ],
)
def test_what_it_cannot_say_is_named(text: str, model: str, what: str) -> None:
    with pytest.raises(StrategyError, match=r"\[export\.(refused|lossy)\]") as error:
        export_plan(stored(parse_grid(text), model=model, runtime="nanotron"), target="nanotron")
    assert what in str(error.value)
