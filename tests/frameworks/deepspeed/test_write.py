"""DeepSpeed's configuration says a plan's strategy, what its program has to do is written beside
it, and what neither says is refused."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shardwright.api.exports.export_plan import export_plan, write_export
from shardwright.errors import StrategyError
from shardwright.frameworks.deepspeed.write import CONFIG, SCRIPT
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.frameworks.plans import BATCH, facts_of, legal, stored
from tests.tiers import in_both, numbers

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b")
PLANS = (
    ("dp8 zero3", "llama-3.1-8b"),
    ("dp8 zero2 recompute=full mbs2", "llama-3.1-8b"),
    ("dp8 zero3 offload=50", "llama-3.1-8b"),
    ("cp4 ulysses4 dp2 zero3", "llama-3.1-8b"),
    ("tp2 dp4 zero1", "llama-3.1-8b"),
    ("dp8 ep4 zero2", "qwen3-30b-a3b"),
    ("dp8 zero0", "llama-3.2-1b"),
    (
        "dp8 zero3 param_offload=on cpu_checkpoints=on recompute=full kernels=compiled",
        "llama-3.1-8b",
    ),
)


def said(grid: Grid, model: str, folder: Path, *, allow_lossy: bool = False) -> dict[str, Any]:
    one = stored(grid, model=model, runtime="deepspeed")
    config, script, *_ = write_export(
        export_plan(one, target="deepspeed", allow_lossy=allow_lossy), folder
    )
    assert (config.name, script.name) == (CONFIG, SCRIPT)
    found: dict[str, Any] = json.loads(config.read_text())
    return found


def read_back(found: dict[str, Any], *, devices: int) -> Grid:
    """The grid that a configuration is on so many devices, by what DeepSpeed does with it."""
    tp = found.get("tensor_parallel", {}).get("autotp_size", 1)
    cp = found.get("sequence_parallel_size", 1)
    # Its mesh is replicas by members of one sequence, or replicas by tensor parallelism.
    dp = found.get("data_parallel_size", devices // tp)
    assert dp * cp * tp == devices
    micro, steps = found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]
    # Its check takes ranks that are no members of a sequence for replicas.
    assert found.get("train_batch_size", micro * steps * dp * tp) == micro * steps * dp * tp
    assert micro * steps * dp == BATCH
    zero, experts = found["zero_optimization"], found.get("expert_parallel", {"enabled": False})
    offloaded = zero.get("offload_optimizer", {})
    ep = experts["autoep_size"] if experts["enabled"] else 1
    apart = ep > 1 and found.get("use_data_before_expert_parallelism", False)
    return Grid(
        tp=tp,
        cp=cp,
        ulysses=cp,
        ep=ep,
        dp=dp,
        microbatch=micro,
        zero=zero["stage"],
        recompute=Recompute.FULL if "activation_checkpointing" in found else Recompute.NONE,
        offload=round(100 * offloaded.get("ratio", 1.0)) if offloaded.get("device") == "cpu" else 0,
        order=("tp", "cp", "dp", "ep", "pp") if apart else ("tp", "cp", "ep", "dp", "pp"),
    )


def drawn(random: Random, model: str) -> Grid:
    tp, cp = random.choice(((1, 1), (1, 1), (2, 1), (4, 1), (1, 2), (1, 4)))
    dp = random.choice((1, 2, 4, 8, 16))
    zero = random.choice((0, 1, 2, 3)) if dp * cp > 1 else 0
    ep = random.choice((1, 2, 4)) if model == "qwen3-30b-a3b" and tp == 1 else 1
    return Grid(
        tp=tp,
        cp=cp,
        ulysses=cp,
        ep=ep,
        dp=dp,
        microbatch=random.choice((1, 2)),
        zero=zero,
        recompute=random.choice((Recompute.NONE, Recompute.FULL)),
        offload=random.choice(((0,), (0,), (0, 100), (0, 30, 100))[zero]),
        order=random.choice((("tp", "cp", "ep", "dp", "pp"), ("tp", "cp", "dp", "ep", "pp"))),
    )


@in_both
@pytest.mark.parametrize("model", MODELS)
def test_random_strategies_are_read_back(model: str, tmp_path: Path) -> None:
    compared, refused = 0, []
    for number in numbers(30, 200):
        grid = drawn(Random(f"{model} {number}"), model)
        if not legal(grid, model):
            continue
        grid = canonical(grid, facts=facts_of(grid, model))
        try:
            found = said(grid, model, tmp_path)
        except StrategyError as error:
            refused.append(str(error))
            continue
        # An order of axes of one device is none, and a mesh of one replica has no shards.
        again = canonical(read_back(found, devices=grid.devices), facts=facts_of(grid, model))
        assert again == replace(grid, options=()), print_grid(grid)
        compared += 1
    assert compared > 10
    assert all(
        any(known in one for known in ("ep beside cp", "outside replicas", "without ZeRO"))
        for one in refused
    )


def test_states_and_buckets_are_what_the_plan_was_priced_with(tmp_path: Path) -> None:
    found = said(
        parse_grid("dp8 zero3 grad_overlap=off param_offload=on cpu_checkpoints=on recompute=full"),
        MODELS[0],
        tmp_path,
    )
    assert found["zero_optimization"] == {
        "stage": 3,
        "reduce_bucket_size": 500_000_000,
        "allgather_bucket_size": 500_000_000,
        "stage3_prefetch_bucket_size": 50_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
        "overlap_comm": False,
        "offload_param": {"device": "cpu"},
    }
    assert found["activation_checkpointing"] == {
        "partition_activations": True,
        "cpu_checkpointing": True,
    }
    assert found["data_types"] == {"grad_accum_dtype": "bf16"}


def test_what_the_program_does_is_written(tmp_path: Path) -> None:
    said(parse_grid("cp4 ulysses4 dp2 zero3 recompute=full kernels=compiled"), MODELS[0], tmp_path)
    script = (tmp_path / SCRIPT).read_text()
    subprocess.run(["bash", "-n", str(tmp_path / SCRIPT)], check=True)
    for words in (
        "0.19.8",
        "DistributedAttention",
        "gradient_checkpointing_enable",
        "engine.compile()",
        "8192 tokens",
    ):
        assert words in script


def test_options_of_the_program_are_no_settings(tmp_path: Path) -> None:
    """The program makes its optimizer and calls its loss: a key that DeepSpeed does not know is not
    written."""
    found = said(
        parse_grid("dp8 zero1 moments=8bit linear_loss=liger"),
        MODELS[0],
        tmp_path,
        allow_lossy=True,
    )
    plain = said(parse_grid("dp8 zero1"), MODELS[0], tmp_path / "plain", allow_lossy=True)
    assert found == plain


@pytest.mark.parametrize(
    ("text", "model", "what"),
    [
        ("pp4 dp2 zero1", "llama-3.1-8b", "pp 4: its pipelines are programs"),
        ("pp4 dp2 zero1 layers=7,9,9,7", "llama-3.1-8b", "pp 4"),
        ("cp4 dp2 zero3", "llama-3.1-8b", "a ring of 4"),
        ("tp2 cp2 ulysses2 dp2 zero1", "llama-3.1-8b", "cp 2 beside tp 2"),
        ("dp8 zero3 shard=4", "llama-3.1-8b", "zero3 in groups of 4"),
        ("dp8 zero1 offload=50", "llama-3.1-8b", "50 % of the states"),
        ("dp8 ep4 zero1", "gpt-oss-20b", "it deals experts of mixtral"),
        ("tp2 sp dp4 zero1", "llama-3.1-8b", "sp (instead: norms and residuals of all tokens"),
        (
            "dp8 zero1 recompute=selective",
            "llama-3.1-8b",
            "recompute of attention's core alone (instead",
        ),
        ("tp2 dp4 zero1 order=dp-tp-cp-ep-pp", "llama-3.1-8b", "ranks in the order dp-tp (instead"),
        (
            "dp8 zero1 moments=8bit",
            "llama-3.1-8b",
            "the option moments=8bit (instead: what the program",
        ),
        (
            "dp8 zero1 linear_loss=liger",
            "llama-3.1-8b",
            "the option linear_loss=liger (instead: what the program",
        ),
    ],
)
def test_what_it_cannot_say_is_named(text: str, model: str, what: str) -> None:
    with pytest.raises(StrategyError, match=r"\[export\.(refused|lossy)\]") as error:
        export_plan(stored(parse_grid(text), model=model, runtime="deepspeed"), target="deepspeed")
    assert what in str(error.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize(("text", "model"), PLANS)
def test_its_own_parser_takes_it(
    text: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepspeed.module_inject.auto_ep_config import validate_autoep_config
    from deepspeed.runtime import config

    grid = parse_grid(text)
    found = said(grid, model, tmp_path)
    # Alone it takes its process for the world: here it is asked for the replicas, as its groups
    # would be.
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(config.dist, "get_world_size", lambda *_, **__: grid.devices)
    parsed = config.DeepSpeedConfig(found)
    assert parsed.zero_optimization_stage == grid.zero
    assert (
        parsed.train_micro_batch_size_per_gpu * parsed.gradient_accumulation_steps * grid.dp
        == BATCH
    )
    assert parsed.bfloat16_config.enabled
    assert max(parsed.tensor_parallel_config.autotp_size, 1) == grid.tp
    assert (parsed.zero_config.offload_optimizer is not None) == (grid.offload > 0)
    assert parsed.expert_parallel_config.autoep_size == grid.ep
    validate_autoep_config(
        parsed.expert_parallel_config, grid.devices, 1, grid.tp, grid.cp, zero_stage=grid.zero
    )
