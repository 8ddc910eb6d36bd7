"""MaxText's configuration says a plan's strategy, with each axis cut where slices end, and what it
cannot say is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shardwright.api.exports.export_plan import export_plan, write_export
from shardwright.errors import StrategyError
from shardwright.frameworks.maxtext.settings import AXES
from shardwright.frameworks.maxtext.write import FILE
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.frameworks.plans import BATCH, LENGTH, facts_of, legal, read_yaml, stored
from tests.tiers import in_both, numbers

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b")
SLICES = {"h100-sxm": 8, "tpu-v5e": 256}
"""Devices of a slice: those of a node that share NVLink, and a pod."""
PLANS = (
    ("dp16 zero3 recompute=full", "llama-3.1-8b", "h100-sxm"),
    ("tp4 sp dp4 zero3 recompute=full mbs2", "llama-3.1-8b", "h100-sxm"),
    ("cp2 dp8 zero3 recompute=full", "llama-3.1-8b", "h100-sxm"),
    ("dp16 ep4 zero3 recompute=full", "qwen3-30b-a3b", "h100-sxm"),
    ("pp4 dp4 zero3 recompute=full schedule=gpipe", "llama-3.1-8b", "h100-sxm"),
    ("pp4 vpp2 dp2 zero3 recompute=full schedule=breadth-first", "llama-3.1-8b", "tpu-v5e"),
    ("dp8 zero1 recompute=selective", "llama-2-7b", "h100-sxm"),
    ("cp4 cp-gather dp2 zero3 recompute=full logits_parts=4", "llama-3.1-8b", "tpu-v5e"),
    ("dp32 zero3 shard=8 recompute=selective remat=save_qkv_proj", "llama-3.1-8b", "h100-sxm"),
    ("tp8 sp ep2 etp8 dp4 zero3 recompute=full", "mixtral-8x7b", "tpu-v5e"),
)


def said(
    grid: Grid, model: str, folder: Path, *, device: str = "h100-sxm", allow_lossy: bool = True
) -> dict[str, Any]:
    one = stored(grid, model=model, runtime="maxtext", device=device)
    path, *_ = write_export(export_plan(one, target="maxtext", allow_lossy=allow_lossy), folder)
    assert path.name == FILE
    found: dict[str, Any] = read_yaml(path.read_text())
    assert found["base_config"] == "base.yml"
    return found


def of_axes(found: dict[str, Any], kind: str) -> dict[str, int]:
    return {axis: found[f"{kind}_{name}_parallelism"] for axis, name in AXES.items()}


def spanned(grid: Grid, axis: str, slice_: int) -> int:
    """Slices that a group of an axis lies in, by ranks."""
    stride, degree = grid.strides()[axis], getattr(grid, axis)
    return len({rank * stride // slice_ for rank in range(degree)})


def read_back(found: dict[str, Any]) -> Grid:
    """The grid that a configuration is, by the rules of its mesh."""
    inside, between = of_axes(found, "ici"), of_axes(found, "dcn")
    size = {axis: inside[axis] * between[axis] for axis in inside}
    devices, steps = prod(size.values()), found["gradient_accumulation_steps"]
    assert round(found["per_device_batch_size"] * devices * steps) == BATCH
    assert found["max_target_length"] == LENGTH
    dp, pp = size["data"] * size["fsdp"] * size["expert"], size["stage"]
    # Parameters are cut over these three; whatever is left are copies.
    shards = size["fsdp"] * size["context"] * size["expert"]
    zero = 3 if shards > 1 else 1 if found.get("shard_optimizer_over_data") else 0
    strategy = found.get("context_parallel_strategy", "ring")
    tp = size["tensor"] * size["tensor_sequence"]
    microbatches = found["num_pipeline_microbatches"] if pp > 1 else steps
    vpp = found["num_pipeline_repeats"] if pp > 1 else 1
    return Grid(
        tp=tp,
        sp=size["tensor_sequence"] > 1,
        cp=size["context"],
        ulysses=size["context"] if strategy == "ulysses" else 1,
        gather=strategy == "all_gather",
        ep=size["expert"],
        etp=tp if size["expert"] > 1 else 1,
        dp=dp,
        pp=pp,
        vpp=vpp,
        microbatch=BATCH // (dp * microbatches),
        zero=zero,
        shard=shards if zero == 3 and size["data"] > 1 else 0,
        recompute={
            "full": Recompute.FULL,
            "minimal": Recompute.SELECTIVE,
            "minimal_with_context": Recompute.NONE,
        }[found["remat_policy"]],
        schedule=("breadth-first" if vpp > 1 else "gpipe") if pp > 1 else "1f1b",
        offload=100 * found["optimizer_memory_host_offload"],
    )


def drawn(random: Random, model: str) -> Grid:
    tp, cp, pp = random.choice((1, 1, 2, 4)), random.choice((1, 1, 2)), random.choice((1, 1, 2, 4))
    dp, vpp = random.choice((1, 2, 4, 8, 16)), random.choice((1, 2)) if pp > 1 else 1
    ep = (
        random.choice([n for n in (1, 2, 4) if dp % n == 0])
        if model == "qwen3-30b-a3b" and cp == 1
        else 1
    )
    zero = 3 if cp * ep > 1 else 0 if dp == 1 else random.choice((0, 1, 3))
    return Grid(
        tp=tp,
        sp=tp > 1 and (ep > 1 or random.random() < 0.5),
        cp=cp,
        gather=cp > 1 and random.random() < 0.5,
        ep=ep,
        etp=tp if ep > 1 else 1,
        dp=dp,
        pp=pp,
        vpp=vpp,
        microbatch=random.choice((1, 2)),
        zero=zero,
        shard=random.choice((0, dp * cp // 2)) if zero == 3 and dp % (2 * ep) == 0 else 0,
        recompute=random.choice(tuple(Recompute)),
        schedule="1f1b" if pp == 1 else "breadth-first" if vpp > 1 else "gpipe",
        order=random.choice((("tp", "cp", "ep", "dp", "pp"), ("tp", "cp", "ep", "pp", "dp"))),
        offload=random.choice((0, 0, 100)),
    )


@in_both
@pytest.mark.parametrize("model", MODELS)
def test_random_strategies_are_read_back(model: str, tmp_path: Path) -> None:
    compared, refused = 0, []
    for number in numbers(30, 200):
        random = Random(f"{model} {number}")
        grid, device = drawn(random, model), random.choice(tuple(SLICES))
        if not legal(grid, model):
            continue
        facts = facts_of(grid, model)
        grid = canonical(grid, facts=facts)
        try:
            found = said(grid, model, tmp_path, device=device)
        except StrategyError as error:
            refused.append(str(error))
            continue
        again = read_back(found)
        alone = replace(grid, order=again.order, options=())
        # A pipeline of one microbatch has no order, and experts of a model that has them are whole
        # where nothing is cut.
        assert canonical(again, facts=facts) == canonical(alone, facts=facts), print_grid(grid)
        inside, between = of_axes(found, "ici"), of_axes(found, "dcn")
        slice_ = min(SLICES[device], grid.devices)
        assert prod(inside.values()) == slice_
        assert spanned(grid, "tp", slice_) == between["tensor"] * between["tensor_sequence"]
        assert spanned(grid, "cp", slice_) == between["context"]
        assert spanned(grid, "pp", slice_) == between["stage"]
        assert spanned(grid, "dp", slice_) == between["data"] * between["fsdp"] * between["expert"]
        compared += 1
    assert compared > 10
    known = ("microbatches in", "shards over cp", "chunks of", "zero3 of one replica")
    assert all(any(words in one for words in known) for one in refused), refused


def test_options_are_its_settings(tmp_path: Path) -> None:
    found = said(
        parse_grid("dp8 zero3 recompute=selective remat=attention_offloaded logits_parts=8"),
        MODELS[0],
        tmp_path,
    )
    assert found["remat_policy"] == "custom"
    assert (found["decoder_layer_input"], found["query_proj"]) == ("offload", "offload")
    assert found["num_vocab_tiling"] == 8


def test_slices_are_of_islands(tmp_path: Path) -> None:
    found = said(
        parse_grid("tp8 sp dp64 zero3 recompute=full"), MODELS[0], tmp_path, device="tpu-v5e"
    )
    assert (
        found["hardware"],
        found["ici_tensor_sequence_parallelism"],
        found["ici_fsdp_parallelism"],
    ) == ("tpu", 8, 32)
    assert (found["dcn_fsdp_parallelism"], found["dcn_data_parallelism"]) == (2, 1)


@pytest.mark.parametrize(
    ("text", "model", "device", "what"),
    [
        ("pp4 dp2 zero3 recompute=full", "llama-3.1-8b", "h100-sxm", "the schedule 1f1b"),
        (
            "pp4 dp2 zero3 recompute=full schedule=gpipe layers=7,9,9,7",
            "llama-3.1-8b",
            "h100-sxm",
            "chunks of 7, 9, 9, 7 layers",
        ),
        ("cp4 ulysses4 dp2 zero3 recompute=full", "llama-3.1-8b", "h100-sxm", "ulysses 4 on GPUs"),
        ("tp2 sp dp4 ep2 zero3 recompute=full", "mixtral-8x7b", "h100-sxm", "etp 1 with tp 2"),
        ("dp8 zero3 recompute=full", "opt-6.7b", "h100-sxm", "no model of these sizes"),
        (
            "tp2 dp4 zero3 recompute=full order=dp-tp-cp-ep-pp",
            "llama-3.1-8b",
            "h100-sxm",
            "fsdp-tensor inside a slice (instead",
        ),
        ("dp8 zero2 recompute=full", "llama-3.1-8b", "h100-sxm", "zero2 (instead"),
        ("dp8 zero3", "llama-3.1-8b", "h100-sxm", "no recompute (instead: minimal_with_context"),
        (
            "dp8 ep4 zero3 recompute=full",
            "qwen3-30b-a3b",
            "h100-sxm",
            "by the base 1e+06 (instead: by the base 1e+07",
        ),
    ],
)
def test_what_it_cannot_say_is_named(text: str, model: str, device: str, what: str) -> None:
    with pytest.raises(StrategyError, match=r"\[export\.(refused|lossy)\]") as error:
        export_plan(
            stored(parse_grid(text), model=model, runtime="maxtext", device=device),
            target="maxtext",
        )
    assert what in str(error.value)


def installed() -> bool:
    """MaxText, and what its configuration is merged with."""
    return all(find_spec(name) is not None for name in ("maxtext", "omegaconf", "jinja2"))


@pytest.mark.skipif(not installed(), reason="MaxText is not installed")
@pytest.mark.parametrize(("text", "model", "device"), PLANS)
def test_its_own_parser_takes_it(text: str, model: str, device: str, tmp_path: Path) -> None:
    grid = parse_grid(text)
    found = said(grid, model, tmp_path, device=device)
    slices = max(grid.devices // SLICES[device], 1)
    asked = {"file": str(tmp_path / FILE), "devices": grid.devices, "slices": slices}
    program = [sys.executable, str(Path(__file__).with_name("maxtext_parser.py"))]
    done = subprocess.run(
        program, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-600:]
    parsed = json.loads(done.stdout.strip().splitlines()[-1])
    assert parsed["global_batch_size_to_train_on"] == BATCH
    assert parsed["model_name"] == found["model_name"]
    for kind in ("ici", "dcn"):
        axes = dict(zip(parsed["mesh_axes"], parsed[f"{kind}_parallelism"], strict=True))
        assert {axis: axes[axis] for axis in AXES} == of_axes(found, kind)
        assert prod(axes.values()) == (slices if kind == "dcn" else grid.devices // slices)
