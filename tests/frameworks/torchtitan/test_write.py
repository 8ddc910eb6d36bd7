"""An exported configuration says the plan's strategy, field by field, and what torchtitan cannot
say is refused by name."""

from __future__ import annotations

import json
import runpy
import sys
from importlib.util import find_spec
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shardwright.api.exports.export_plan import export_plan, write_export
from shardwright.api.plan_and_problem_from_file import PlanOfProblem
from shardwright.cli.main import run
from shardwright.errors import StrategyError
from shardwright.frameworks.export.place_ranks_and_write_rank_map import HOSTS, RANKS, TABLE
from shardwright.frameworks.torchtitan.settings import FLAVORS
from shardwright.frameworks.torchtitan.write import FUNCTION, MODULE, ORDER, SCHEDULES, SCRIPT
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.frameworks.plans import BATCH, LENGTH, legal, stored
from tests.frameworks.torchtitan.torchtitan_stub import FullAC, TrainerConfig, stood_in
from tests.schedules.csv_reader import parse_action
from tests.tiers import in_both, numbers

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-70b")


def configured(one: PlanOfProblem, folder: Path, *, allow_lossy: bool = False) -> TrainerConfig:
    """What the exported module returns."""
    write_export(export_plan(one, target="torchtitan", allow_lossy=allow_lossy), folder)
    with stood_in():
        found: TrainerConfig = runpy.run_path(str(folder / f"{MODULE}.py"))[FUNCTION]()
    return found


def drawn(random: Random, model: str) -> Grid:
    """A random grid of degrees that torchtitan has, legal or not."""
    tp, cp, pp = random.choice((1, 2, 4, 8)), random.choice((1, 1, 2)), random.choice((1, 1, 2, 4))
    dp, zero = random.choice((1, 2, 4, 8)), random.choice((0, 2, 3))
    schedule = (
        random.choice(
            ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v", "v-half")
        )
        if pp > 1
        else "1f1b"
    )
    vpp = 2 if schedule in ("interleaved-1f1b", "zb-v", "dualpipe-v", "v-half") else 1
    return Grid(
        tp=tp,
        sp=tp > 1 and random.random() < 0.7,
        cp=cp if zero else 1,
        gather=cp > 1 and zero > 0,
        ep=random.choice((1, 2, 4)) if model == "qwen3-30b-a3b" and zero else 1,
        dp=dp,
        pp=pp,
        vpp=vpp,
        microbatch=random.choice((1, 2)),
        zero=zero,
        recompute=random.choice((Recompute.NONE, Recompute.FULL)),
        schedule=schedule,
    )


def said(found: TrainerConfig, folder: Path, *, layers: int) -> dict[str, Any]:
    """The strategy that a configuration is, worked out from its fields as torchtitan does."""
    own, training = found.parallelism, found.training
    replicas = own.data_parallel_replicate_degree * own.data_parallel_shard_degree
    sharded = own.data_parallel_shard_degree * own.context_parallel_degree > 1
    stages = own.module_fqns_per_model_part or [
        ["tok_embeddings", *(f"layers.{i}" for i in range(layers)), "norm", "lm_head"]
    ]
    assert [name for stage in stages for name in stage] == [
        "tok_embeddings",
        *(f"layers.{i}" for i in range(layers)),
        "norm",
        "lm_head",
    ]
    staged = own.pipeline_parallel_degree > 1
    per_microbatch = own.pipeline_parallel_microbatch_size if staged else training.local_batch_size
    assert training.global_batch_size == BATCH
    assert training.seq_len == LENGTH
    if staged:
        assert training.local_batch_size == BATCH // replicas
        assert training.disable_cuda_graphs
    order = ""
    if own.pipeline_parallel_schedule_csv:
        assert Path(own.pipeline_parallel_schedule_csv) == folder / ORDER
        order = (folder / ORDER).read_text()
    return {
        "tp": own.tensor_parallel_degree,
        "sp": own.enable_sequence_parallel and own.tensor_parallel_degree > 1,
        "cp": own.context_parallel_degree,
        "ep": own.expert_parallel_degree,
        "dp": replicas,
        "pp": own.pipeline_parallel_degree,
        "chunks": [sum(name.startswith("layers.") for name in stage) for stage in stages],
        "microbatch": per_microbatch,
        "zero": 0 if not sharded else 3 if own.fsdp_reshard_after_forward == "always" else 2,
        "full": isinstance(found.activation_checkpoint, FullAC.Config),
        "schedule": own.pipeline_parallel_schedule if staged and not order else "",
        "order": order,
    }


def planned(one: PlanOfProblem) -> dict[str, Any]:
    grid = one.grid
    assert grid is not None
    named = grid.pp > 1 and grid.schedule in SCHEDULES
    chunks = [
        sum(item.count for item in stage.items if not item.name)
        for stage in one.plan.lanes[0].stages
    ]
    return {
        "tp": grid.tp,
        "sp": grid.sp,
        "cp": grid.cp,
        "ep": grid.ep,
        "dp": grid.dp,
        "pp": grid.pp,
        "chunks": chunks,
        "microbatch": grid.microbatch,
        "zero": grid.zero if grid.dp * grid.cp > 1 else 0,
        "full": grid.recompute is Recompute.FULL,
        "schedule": SCHEDULES[grid.schedule] if named else "",
    }


@in_both
@pytest.mark.parametrize("model", MODELS)
def test_random_plans_are_said_in_its_fields(model: str, tmp_path: Path) -> None:
    refused: list[str] = []
    layers, compared, tables = (
        sum(run.count for run in load_model(model).runs if run.name not in ("embed", "head")),
        0,
        0,
    )
    for number in numbers(30, 200):
        random = Random(f"{model} {number}")
        grid = drawn(random, model)
        if not legal(grid, model):
            continue
        one, folder = stored(grid, model=model), tmp_path / str(number)
        try:
            found = said(configured(one, folder), folder, layers=layers)
        except StrategyError as error:
            refused.append(str(error))
            continue
        order = found.pop("order")
        assert found == planned(one), print_grid(grid)
        assert bool(order) == (grid.pp > 1 and grid.schedule not in SCHEDULES)
        if order:
            rows = action_rows(one.plan)
            cells = [
                [parse_action(cell) for cell in line.split(",") if cell]
                for line in order.strip().splitlines()
            ]
            assert [len(row) for row in cells] == [
                int(b - a) for a, b in zip(rows.row_start, rows.row_start[1:], strict=False)
            ]
            tables += 1
        compared += 1
    assert compared > 10
    assert tables
    assert all("[export.refused]" in one or "of one replica" in one for one in refused)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("tp2 dp4 zero1", "zero1 (instead: FSDP2"),
        ("cp4 ulysses4 dp2 zero3", "ulysses 4"),
        ("cp2 dp4 zero3", "a ring of 2 (instead: keys and values that are gathered"),
        ("pp2 dp4 schedule=dualpipe", "dualpipe: two lanes"),
        ("pp2 vpp4 dp4 schedule=hanayo", "waves of 4 chunks"),
        ("dp8 zero3 offload=50", "50 % of the states"),
        (
            "dp8 zero3 recompute=selective",
            "recompute of attention's core (instead: its selective policy",
        ),
        (
            "tp2 dp4 zero3 order=dp-tp-cp-ep-pp",
            "ranks in the order dp-tp (instead: ranks in its own order, tp-dp",
        ),
    ],
)
def test_what_it_cannot_say_is_named(text: str, what: str) -> None:
    grid = parse_grid(text)
    with pytest.raises(StrategyError, match=r"\[export\.(refused|lossy)\]") as error:
        export_plan(stored(grid), target="torchtitan")
    assert what in str(error.value)


def test_a_model_of_other_sizes_is_refused() -> None:
    with pytest.raises(StrategyError, match=r"its registries .* have no model of these sizes"):
        export_plan(stored(Grid(dp=8, zero=3), model="llama-2-7b"), target="torchtitan")


def test_another_framework_s_plan_is_exported_with_a_loss(tmp_path: Path) -> None:
    one = stored(Grid(tp=2, sp=True, dp=4, zero=3), runtime="megatron-core")
    with pytest.raises(StrategyError, match=r"export\.lossy"):
        export_plan(one, target="torchtitan")
    found = export_plan(one, target="torchtitan", allow_lossy=True)
    assert [loss.what for loss in found.losses if "overlaps and fuses" in loss.what]
    assert configured(one, tmp_path, allow_lossy=True).parallelism.tensor_parallel_degree == 2


def test_one_microbatch_is_gpipes_order(tmp_path: Path) -> None:
    """Which PyTorch's 1F1B refuses with fewer microbatches than stages."""
    for microbatch, name in ((BATCH // 2, "GPipe"), (1, "1F1B")):
        grid = parse_grid(f"pp4 dp2 mbs{microbatch} zero2")
        found = configured(
            stored(grid, model="llama-3.1-8b", runtime="torchtitan"), tmp_path, allow_lossy=True
        )
        assert found.parallelism.pipeline_parallel_schedule == name


def test_uneven_stages_are_listed(tmp_path: Path) -> None:
    found = configured(stored(Grid(pp=4, dp=2, zero=3, layers=(7, 9, 9, 7))), tmp_path)
    stages = found.parallelism.module_fqns_per_model_part
    assert stages is not None
    assert [len(stage) for stage in stages] == [8, 9, 9, 9]


def test_the_verb_writes_files_and_says_what_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, folder = tmp_path / "plan.json", tmp_path / "titan"
    words = [
        "llama-3.1-8b",
        "h100-sxm:8",
        "--seq-len",
        str(LENGTH),
        "--global-batch",
        "32",
        "--strategy",
        "tp2 sp dp4 zero1",
    ]
    assert run(["simulate", *words, "--runtime", "torchtitan", "-o", str(plan), "--quiet"]) in (
        0,
        5,
    )
    if not plan.exists():
        words[-1] = "tp2 sp dp4 zero2 recompute=selective"
        assert run(["simulate", *words, "--runtime", "torchtitan", "-o", str(plan), "--quiet"]) == 0
    capsys.readouterr()
    assert run(["export", str(plan), "--to", "torchtitan", "-o", str(folder)]) == 5
    assert "--allow-lossy" in capsys.readouterr().err
    assert not folder.exists()
    assert (
        run(
            [
                "export",
                str(plan),
                "--to",
                "torchtitan",
                "-o",
                str(folder),
                "--allow-lossy",
                "--json",
            ]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == "0.3.0"
    assert [Path(file).name for file in document["files"]] == [
        f"{MODULE}.py",
        SCRIPT,
        RANKS,
        TABLE,
        HOSTS,
    ]
    assert len(document["losses"]) == 1
    assert run(["export", str(plan), "--to", "torchtitam", "-o", str(folder)]) == 5
    assert "torchtitan" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan is not installed")
@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("tp8 sp dp2 zero3", "llama-3.1-8b"),
        ("tp2 sp dp4 zero2 pp2 schedule=zb-h1", "llama-3.1-8b"),
        ("tp2 sp cp2 cp-gather dp4 zero3 pp2 vpp2 schedule=zb-v", "llama-3.1-70b"),
        ("dp8 ep4 zero3 recompute=full", "qwen3-30b-a3b"),
        ("dp2 zero3 pp4 layers=7,9,9,7", "llama-3.1-8b"),
    ],
)
def test_its_own_parser_takes_it(
    text: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims

    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    write_export(export_plan(stored(parse_grid(text), model=model), target="torchtitan"), tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = ConfigManager().parse_args(["--module", MODULE, "--config", FUNCTION])
    dims, grid = (
        ParallelDims.from_config(found.parallelism, world_size=parse_grid(text).devices),
        parse_grid(text),
    )
    assert (dims.tp, dims.pp, dims.cp, dims.ep, dims.dp_replicate * dims.dp_shard) == (
        grid.tp,
        grid.pp,
        grid.cp,
        grid.ep,
        grid.dp,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan is not installed")
@pytest.mark.parametrize("name", FLAVORS)
def test_its_models_have_as_many_parameters(name: str) -> None:
    from importlib import import_module

    import torch

    module, flavor = FLAVORS[name]
    spec = import_module(f"torchtitan.models.{module}").model_registry(flavor)
    with torch.device("meta"):
        built = spec.model.build()
    # What corrects the choice of experts is no parameter there.
    model = load_model(name)
    routes = [
        (run.count, o)
        for run in model.runs
        for o in model.blocks[run.block].operators
        if o.kind is OperatorKind.ROUTE
    ]
    corrections = sum(count * p.size for count, route in routes for p in route.parameters)
    assert (
        sum(prod(p.shape) for p in dict.fromkeys(built.parameters()))
        == model.num_parameters - corrections
    )
