"""Every verb with answers that are wide: long names, full tables, numbers of many digits. Nothing
is searched or measured, and one step on one device is simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardwright.api import prove_or_train_plan as run_plan
from shardwright.api import simulate_strategy_and_verify_stored as simulate_strategy
from shardwright.api import verify_plan_file_by_repetition as verify_stored_answers
from shardwright.api.exports import exportable_frameworks as frameworks_for_plan
from shardwright.api.guide.make_serving_guide_of_request import make_serving_guide
from shardwright.api.launches import launch_advice
from shardwright.api.searches import gain_of_unsearched_options as unsearched_options
from shardwright.api.searches import grid_search
from shardwright.api.write_checkpoint_as_huggingface_weights import WrittenWeights
from shardwright.calibrate import run_and_check_calibration as calibrate_request
from shardwright.calibrate.calibration_settings_and_check_rows import CheckRow
from shardwright.cli.verb_table import VERBS
from shardwright.cli.verbs import guide, validate, web, weights
from shardwright.execute.launch.run_options_and_report import RunMemory, RunReport, RunStep
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import (
    document_of,
    plan_document,
    simulation_document,
    stored_plan,
)
from shardwright.frameworks.registry import TARGETS
from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.registry import Registry
from shardwright.report.screens import training_accuracy_screen as accuracy_screen
from shardwright.search.advice_answer import Advice, Change
from shardwright.search.grid.verify_certificate import Recheck
from shardwright.search.optimality_certificate import JointPart
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.prediction import Source
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.units import GIB
from shardwright.validation.errors.prediction_errors import ErrorStatistics, Validation
from shardwright.validation.training.sweep_and_scaling_checks import TrainingValidation
from shardwright.validation.training.training_table_reader_and_json import TRAINING
from tests.calibrate.profiles import profile
from tests.cli.answers import ANSWER, CERTIFICATE, PREDICTION, REQUEST, UNSEARCHED, stage
from tests.hardware.inventory_files import topo_matrix

ITEMS = (
    "parameters",
    "gradients",
    "optimizer",
    "workspace",
    "activations",
    "logits",
    "temporary",
    "fragmentation",
    "communication",
    "context",
)
STAGES = tuple(
    replace(
        stage(rank, layers=layers),
        items=tuple((name, (place + 1) * (rank + 10) * GIB) for place, name in enumerate(ITEMS)),
        allocated=(600 + rank) * GIB,
        reserved=(700 + rank) * GIB,
    )
    for rank, layers in enumerate(
        ("embed + 3 dense layer + 12 expert layer", "15 expert layer + mtp + head")
    )
)
SOURCES = (
    Source(
        quantity="nodes",
        value="2,048 nodes of 8 h100-sxm (scale-up domain of 8), 8 NICs of 400 Gb/s each",
        origin=Origin(evidence=Evidence.ASSUMED, reference="h100-sxm-x8"),
    ),
    Source(
        quantity="switches",
        value="a single non-blocking switch for all 16,384 devices",
        origin=Origin(evidence=Evidence.ASSUMED, reference="no switch tiers are given"),
    ),
    *PREDICTION.sources,
    Source(
        quantity="all_reduce of 16,384 devices",
        value="336.1 GB/s, 1.29 us",
        origin=Origin(
            evidence=Evidence.MEASURED,
            reference=f"https://example.org/{'a-page-without-blanks/' * 4}table.csv",
        ),
    ),
)
WIDE = replace(
    PREDICTION,
    tokens_per_s=123_456_789.0,
    tokens_per_s_per_device=123_456.7,
    allocated_bytes=601 * GIB,
    reserved_bytes=701 * GIB,
    capacity_bytes=720 * GIB,
    stages=STAGES,
    sources=SOURCES,
    breakdown_s=(
        ("gemm", 1.25),
        ("attention", 0.25),
        ("tp", 0.1),
        ("sharding", 0.1),
        ("slowdown", 0.1),
        ("bubble", 0.2),
    ),
)
LAYERS = parse_grid("tp2 sp pp16 dp2 layers=8,8,8,8,8,8,8,8,8,8,8,8,7,7,7,7 zero1")
PIPELINE = parse_plan("""plan pair devices 4
lane main samples 8 in 4
  stages embed+8 on 0
    all = t2
  stages 8+head on 2
    all = b2
order 1f1b(main)
""")
SPACE = (
    "standard: 16,384 devices; tp {1, 2, 4, 8}; cp {1, 2, 4}; pp {1, 2, 4, 8, 16}; recompute {none,"
    " selective, full}; zero {0, 1, 2, 3}"
)
BEST = replace(
    ANSWER,
    prediction=WIDE,
    certificate=replace(
        CERTIFICATE, enumerated=44_236_800, illegal=44_027_188, duplicates=149_782, space=SPACE
    ),
)
ALL_MEASURED = ErrorStatistics(n=123, mean=0.0321, median=0.0273, worst=0.1812, bias=-0.0123)
TOO_LARGE: Any = [
    SimpleNamespace(
        run=SimpleNamespace(measurement=SimpleNamespace(source_id=name)), infeasible="too large"
    )
    for name in ("nemo-perf", "llama-3")
    for _ in range(12)
]
"""Rows of two sources; `error_statistics` of each is patched to be `ALL_MEASURED`."""
VALIDATION: TrainingValidation = Validation(fold="none", rows=tuple(TOO_LARGE), skipped=())
RUN = RunReport(
    steps=(
        RunStep(step=1, loss=2.5, norm=1.0, seconds=0.5),
        RunStep(step=2, loss=2.25, norm=0.9, seconds=0.25),
    ),
    tokens=1_048_576,
    predicted_s=0.2,
    memory=(
        RunMemory(
            devices=(0,), holds="embed + 32 layer + head", predicted=30 * GIB, measured=31 * GIB
        ),
    ),
    on="cuda",
    checkpoint=Path("/data/checkpoints/of-a-long-name/step-000000002"),
)


def general(name: str) -> Simulation:
    """A plan that no grid says."""
    request = replace(
        REQUEST, model="llama-3.2-1b", cluster="h100-sxm:4", global_batch=8, pins=(), excludes=()
    )
    return Simulation(
        request=request,
        name=name,
        grid=None,
        plan=PIPELINE,
        prediction=WIDE,
        classes=("0-1", "2-3"),
    )


def write_files(folder: Path) -> None:
    """best.json: of a search; joint.json: of a joint one; alone.json: on one device; some.txt;
    topo.txt: of a node; simulated.json: alone.json with the prediction of this version."""
    text = (
        "pp2 vpp1 zero0 tp2 dp1 mbs2 on ranks 0, tp1 dp2 mbs2 on ranks 1; 4 microbatches, 1f1b,"
        " layers 8 8"
    )
    joint = JointPart(
        pipelines=270,
        complete=True,
        tolerance=0.0,
        grids=2_211_840,
        grid_lower_s=2.0,
        grid_stopped_at=0,
    )
    request = replace(general("").request, space="joint")
    certificate = replace(BEST.certificate, joint=joint)
    alone = Simulation(
        request=replace(general("").request, cluster="h100-sxm:1"),
        name="",
        grid=Grid(),
        plan=None,
        prediction=WIDE,
    )
    (folder / "best.json").write_text(to_text(plan_document(BEST)))
    (folder / "joint.json").write_text(
        to_text(document_of(stored_plan(replace(general(text), request=request), certificate)))
    )
    (folder / "alone.json").write_text(to_text(simulation_document(alone)))
    own = simulate_strategy.simulation(alone.request, strategy="zero0")
    (folder / "simulated.json").write_text(to_text(simulation_document(own)))
    (folder / "some.txt").write_text("Some text.\n")
    (folder / "pretrain.sh").write_text(f"TP=2\npython pretrain_gpt.py {LAUNCHED}\n")
    (folder / "topo.txt").write_text(
        topo_matrix(8, lambda a, b: "NV18", cards=[*([n] for n in range(8)), []])
    )


LAUNCHED = (
    "--num-layers 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 256 --bf16"
    " --tensor-model-parallel-size $TP --beta 1"
)
JOB = ("--seq-len", "4096", "--global-batch", "256")
SCENES: dict[str, tuple[str, ...]] = {
    "plan": ("plan", "llama-2-7b", "h100-sxm:64", *JOB),
    "simulate": ("simulate", "llama-2-7b", "h100-sxm:64", *JOB, "--strategy", "tp2"),
    "compare": (
        "compare",
        "llama-2-7b",
        "h100-sxm:64",
        *JOB,
        *(word for n in (1, 2, 4, 8) for word in ("--strategy", f"tp{n}")),
    ),
    "explain": ("explain", "best.json"),
    "explain, of a joint search": ("explain", "joint.json"),
    "why": ("why", "alone.json", "tp4 zero3"),
    "advise": ("advise", "pretrain.sh", "llama-2-7b", "h100-sxm:64"),
    "check": ("check", "best.json"),
    "draw": ("draw", "joint.json"),
    "trace": ("trace", "joint.json"),
    "run": ("run", "alone.json", "--data", "some.npy", "--steps", "2"),
    "weights": ("weights", "kept", "--config", "config.json", "-o", "published"),
    "export": ("export", "alone.json", "--to", "torchtitan", "-o", "exported", "--allow-lossy"),
    "validate": ("validate", "table.csv"),
    "serve-simulate": (
        "serve-simulate",
        *(
            "llama-3.2-1b",
            "h100-sxm:8",
            "--deployment",
            "2x(tp1)",
            "--engine",
            "vllm-0.12",
            "--isl",
            "512",
            "--osl",
            "16",
        ),
        *("--concurrency", "8", "--requests", "16", "--slo", "ttft=1s,tpot=10ms"),
    ),
    "calibrate": ("calibrate", "--check"),
    "cluster": ("cluster", "read", "topo.txt", "--accelerator", "h100-sxm", "--nodes", "4"),
    "cluster show": ("cluster", "show", "meta-24k-roce:3072"),
    "tokenise": ("tokenise", "some.txt", "-o", "some.npy"),
    "schema": ("schema", "trace", "--output", "schema.json"),
    "catalog": ("catalog",),
    "catalog schedules": ("catalog", "schedules"),
}


def own_screens(scenes: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Commands of verbs that `scenes` lacks, in the order of `VERBS`: `SCREEN` of
    tests/cli/verbs/test_VERB.py."""
    found = {}
    shown = {words[0] for words in scenes.values()}
    for verb in VERBS:
        if verb in shown:
            continue
        name = f"tests.cli.verbs.test_{verb.replace('-', '_')}"
        if find_spec(name) is not None:
            found[verb] = (verb, *getattr(import_module(name), "SCREEN", ()))
    return found


SCREENS = SCENES | own_screens(SCENES)
"""A command of each verb, by its name."""
CATALOGS = {
    f"catalog {kind}": ("catalog", kind)
    for kind in ("accelerators", "instances", "clusters", "models", "runtimes")
}


NAMED = [
    "accelerate",
    "deepspeed",
    "flagscale",
    "maxtext",
    "megatron",
    "megatron-bridge",
    "nanotron",
    "torchtitan",
]
"""Export targets that screens list."""
WRITTEN = WrittenWeights(
    checkpoint=Path("kept/step-00000002"), step=2, dtype="bf16", files=(Path("some.txt"),)
)


GUIDES: dict[str, Any] = {}
"""By what was asked: a screen of any width shows the same."""


def _served(*asked: Any, progress: Any = None, **more: Any) -> Any:
    key = repr((asked, more))
    if key not in GUIDES:
        GUIDES[key] = make_serving_guide(*asked, progress=progress, **more)
    return GUIDES[key]


@contextmanager
def answering() -> Iterator[None]:
    """The library answers at once."""

    def simulation(request: Any, *, strategy: str) -> Simulation:
        seconds = 2.0 + int(strategy.removeprefix("tp")) / 8
        grid = replace(LAYERS, tp=int(strategy.removeprefix("tp")))
        return Simulation(
            request=REQUEST,
            name="",
            grid=grid,
            plan=None,
            prediction=replace(WIDE, step_time_s=seconds),
        )

    checked = Recheck(strategies=44_236_800, sampled=400, contenders=3, drift=1e-9, leaves=160)
    row = CheckRow("dense of many layers", 1.0, 0.9, 1.1, 0.8, 2**30, 2**31)
    with pytest.MonkeyPatch.context() as patch:
        # The lists of frameworks on screens do not change with a new target.
        named: Registry[Any] = Registry("target", {name: TARGETS.targets[name] for name in NAMED})
        patch.setattr(frameworks_for_plan, "TARGETS", named)
        patch.setattr(grid_search, "plan", lambda *_, **__: BEST)
        patch.setattr(unsearched_options, "unsearched_of", lambda _: UNSEARCHED)
        patch.setattr(simulate_strategy, "simulation", simulation)
        advised = Simulation(request=REQUEST, name="", grid=LAYERS, plan=None, prediction=WIDE)
        change = Change(
            text="tp4",
            grid=LAYERS,
            step_time_s=1.0,
            gain=0.5,
            added=(("tensor-model-parallel-size", "4"),),
        )
        found = Advice(
            broken=(),
            now=advised,
            changes=(change, change),
            considered=48,
            best=BEST,
            everything=change,
        )
        patch.setattr(launch_advice, "advise", lambda *_, **__: found)
        patch.setattr(verify_stored_answers, "check_file", lambda *_, **__: checked)
        patch.setattr(run_plan, "run", lambda *_, **__: RUN)
        patch.setattr(weights, "write_weights", lambda *_, **__: WRITTEN)
        patch.setattr(web, "serve", lambda *, announce, **_: announce("http://127.0.0.1:8765/"))
        patch.setattr(guide, "make_serving_guide", _served)
        patch.setattr(validate, "reader_of", lambda _: TRAINING)
        patch.setattr(accuracy_screen, "error_statistics", lambda *_: ALL_MEASURED)
        patch.setattr(
            validate, "accuracy", lambda *_, **__: SimpleNamespace(validation=lambda _: VALIDATION)
        )
        patch.setattr(calibrate_request, "calibrate", lambda *_, **__: profile())
        patch.setattr(calibrate_request, "check_calibration", lambda *_, **__: (row,))
        yield
