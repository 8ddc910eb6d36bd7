"""Accelerate's launch file says a plan's strategy, what its program has to do stands in its
comments, and what neither says is refused."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shardwright.api.exports.export_plan import export_plan, write_export
from shardwright.errors import StrategyError
from shardwright.frameworks.accelerate.write import FILE, SCRIPT
from shardwright.frameworks.deepspeed.write import CONFIG
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.frameworks.plans import BATCH, LENGTH, facts_of, legal, read_yaml, stored
from tests.tiers import in_both, numbers

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b")
PLANS = (
    "dp8 zero3",
    "dp16 zero3 shard=8 recompute=full mbs2",
    "dp8 zero2",
    "dp8 zero0",
    "tp4 dp4 zero3",
    "tp2 cp2 dp4 zero2",
    "cp4 cp-gather dp4 zero3",
    "cp4 ulysses4 dp4 zero3",
    "dp8 zero3 offload=100",
)


def said(grid: Grid, model: str, folder: Path) -> dict[str, Any]:
    one = stored(grid, model=model, runtime="deepspeed" if grid.ulysses > 1 else "torchtitan")
    paths = write_export(export_plan(one, target="accelerate", allow_lossy=True), folder)
    assert [path.name for path in paths[:-3]] == [
        FILE,
        *([CONFIG] if grid.ulysses > 1 else []),
        SCRIPT,
    ]
    found: dict[str, Any] = read_yaml(paths[0].read_text())
    return found


def read_back(found: dict[str, Any], folder: Path) -> Grid:
    """The grid that a launch file is, by what Accelerate does with it and with the program that its
    comments ask for."""
    text = (folder / FILE).read_text()
    micro, steps = (
        int(re.search(pattern, text)[1])
        for pattern in (r" (\d+) at once", r"gradient_accumulation_steps=(\d+)")
    )  # type: ignore[index]
    degrees = {
        key.removeprefix("parallelism_config_"): value
        for key, value in found.get("parallelism_config", {}).items()
    }
    if found["distributed_type"] == "DEEPSPEED":
        config = json.loads(
            (folder / found["deepspeed_config"]["deepspeed_config_file"]).read_text()
        )
        sp = degrees["sp_size"]
        assert degrees["sp_backend"] == "deepspeed"
        assert config["train_batch_size"] == micro * steps * found["num_processes"] // sp == BATCH
        assert "mixed_precision" not in found
        recompute = Recompute.FULL if "gradient_checkpointing_enable" in text else Recompute.NONE
        dp, zero = found["num_processes"] // sp, config["zero_optimization"]["stage"]
        return Grid(cp=sp, ulysses=sp, dp=dp, microbatch=micro, zero=zero, recompute=recompute)
    replicate, shard, tp, cp = (
        degrees.get(f"{axis}_size", 1) for axis in ("dp_replicate", "dp_shard", "tp", "cp")
    )
    if found["distributed_type"] == "MULTI_GPU":
        # Without a degree to shard over each process that is no member of tp is a replica.
        replicate, zero, recompute, offload = found["num_processes"] // tp, 0, Recompute.NONE, 0
    else:
        fsdp = found["fsdp_config"]
        assert fsdp["fsdp_version"] == 2
        zero = 3 if fsdp["fsdp_reshard_after_forward"] else 2
        recompute = Recompute.FULL if fsdp["fsdp_activation_checkpointing"] else Recompute.NONE
        offload = 100 * fsdp["fsdp_offload_params"]
    assert replicate * shard * tp * cp == found["num_processes"]
    assert micro * steps * replicate * shard == BATCH
    return Grid(
        tp=tp,
        cp=cp,
        gather=cp > 1 and degrees["cp_comm_strategy"] == "allgather",
        dp=replicate * shard,
        microbatch=micro,
        zero=zero,
        shard=shard * cp if replicate > 1 and zero else 0,
        recompute=recompute,
        offload=offload,
    )


def drawn(random: Random) -> Grid:
    cp = random.choice((1, 1, 2, 4))
    ulysses = random.choice((1, cp))
    tp = random.choice((1, 2, 4)) if ulysses == 1 else 1
    dp = random.choice((1, 2, 4, 8))
    zero = 0 if dp * cp == 1 else random.choice((0, 2, 3)) if cp == 1 else random.choice((2, 3))
    return Grid(
        tp=tp,
        cp=cp,
        ulysses=ulysses,
        gather=ulysses == 1 and random.random() < 0.5,
        dp=dp,
        microbatch=random.choice((1, 2)),
        zero=zero,
        shard=random.choice((0, 2 * cp)) if zero and dp > 2 and ulysses == 1 else 0,
        recompute=random.choice((Recompute.NONE, Recompute.FULL)) if zero else Recompute.NONE,
        offload=random.choice((0, 0, 100)) if zero and ulysses == 1 else 0,
    )


@in_both
@pytest.mark.parametrize("model", MODELS)
def test_random_strategies_are_read_back(model: str, tmp_path: Path) -> None:
    compared, refused = 0, []
    for number in numbers(30, 200):
        grid = drawn(Random(f"{model} {number}"))
        if not legal(grid, model):
            continue
        grid = canonical(grid, facts=facts_of(grid, model))
        try:
            found = said(grid, model, tmp_path)
        except StrategyError as error:
            refused.append(str(error))
            continue
        assert canonical(read_back(found, tmp_path), facts=facts_of(grid, model)) == grid, (
            print_grid(grid)
        )
        compared += 1
    assert compared > 10
    assert all(
        any(known in one for known in ("whole replicas", "without shards")) for one in refused
    )


def test_nodes_are_counted(tmp_path: Path) -> None:
    found = said(parse_grid("tp4 dp8 zero3"), MODELS[0], tmp_path)
    assert (found["num_machines"], found["num_processes"], found["rdzv_backend"]) == (
        4,
        32,
        "static",
    )
    assert f"samples of {LENGTH} tokens" in (tmp_path / FILE).read_text()


@pytest.mark.parametrize(
    ("text", "model", "what"),
    [
        ("pp4 dp2 zero3", "llama-3.1-8b", "pp 4: it has no pipelines"),
        ("pp4 dp2 zero3 layers=7,9,9,7", "llama-3.1-8b", "pp 4"),
        ("dp8 ep4 zero3", "qwen3-30b-a3b", "no degree of experts"),
        ("dp2 cp4 ulysses2 zero3", "llama-3.1-8b", "a ring of 2"),
        ("tp2 dp4 zero0", "llama-3.1-8b", "4 whole replicas beside tp 2"),
        ("dp8 zero1", "llama-3.1-8b", "zero1 (instead: FSDP2"),
        ("dp8 zero3 recompute=full:8", "llama-3.1-8b", "recompute of 8 layers a chunk (instead"),
        ("tp2 sp dp4 zero3", "llama-3.1-8b", "sp (instead"),
        ("dp8 zero3", "llama-3.1-8b", "overlaps and fuses"),
    ],
)
def test_what_it_cannot_say_is_named(text: str, model: str, what: str) -> None:
    with pytest.raises(StrategyError, match=r"\[export\.(refused|lossy)\]") as error:
        export_plan(stored(parse_grid(text), model=model), target="accelerate")
    assert what in str(error.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(find_spec("accelerate") is None, reason="Accelerate is not installed")
@pytest.mark.parametrize("text", PLANS)
def test_its_own_parser_takes_it(text: str, tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig

    grid = parse_grid(text)
    found = said(grid, MODELS[0], tmp_path)
    parsed = ClusterConfig.from_yaml_file(str(tmp_path / FILE))
    assert parsed.num_processes == grid.devices
    # Sections are arguments of its launcher, and nothing else checks their names.
    known = {action.dest for action in launch_command_parser()._actions}
    for section in ("fsdp_config", "parallelism_config", "deepspeed_config", "dynamo_config"):
        assert set(found.get(section, {})) <= known
    degrees = {
        key.removeprefix("parallelism_config_"): value
        for key, value in parsed.parallelism_config.items()
    }
    sizes = {key: value for key, value in degrees.items() if key.endswith(("_size", "_backend"))}
    config = ParallelismConfig(**sizes)
    assert config.total_size == (grid.devices if degrees else 1)
    assert (config.tp_size, config.cp_size * config.sp_size) == (grid.tp, grid.cp)
    if degrees:
        names, shape = config._get_mesh()
        order = [name for name in ("dp_replicate", "dp_shard", "cp", "sp", "tp") if name in names]
        assert list(names) == order
        assert len(shape) == len(order)
