"""What is exported to a framework is read back as the same strategy, options and job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from shardwright.api.exports.export_plan import export_plan, write_export
from shardwright.errors import StrategyError
from shardwright.frameworks.launch.build_launch import effective_options
from shardwright.frameworks.read_launch import read_launch
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.runtime.list_and_set_runtime_options import offered_values
from shardwright.runtime.option_vocabulary import OF_EXPERTS, in_vocabulary_order
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import print_grid
from tests.frameworks.accelerate import test_write as test_accelerate
from tests.frameworks.deepspeed import test_write as test_deepspeed
from tests.frameworks.maxtext import test_write as test_maxtext
from tests.frameworks.megatron import test_write as test_megatron
from tests.frameworks.nanotron import test_write as test_nanotron
from tests.frameworks.plans import BATCH, LENGTH, facts_of, legal, stored
from tests.frameworks.torchtitan import test_write as test_torchtitan
from tests.tiers import in_both, in_proof, numbers

Drawn = Callable[[Random, str], Grid]
TARGETS: dict[str, tuple[tuple[str, ...], Drawn, str]] = {
    "deepspeed": (test_deepspeed.MODELS, test_deepspeed.drawn, "deepspeed"),
    "accelerate": (
        test_accelerate.MODELS,
        lambda random, _: test_accelerate.drawn(random),
        "torchtitan",
    ),
    "megatron-bridge": (test_megatron.MODELS, test_megatron.drawn, "megatron-bridge"),
    "flagscale": (test_megatron.MODELS, test_megatron.drawn, "megatron-core"),
    "maxtext": (test_maxtext.MODELS, test_maxtext.drawn, "maxtext"),
    "nanotron": (test_nanotron.MODELS, lambda random, _: test_nanotron.drawn(random), "nanotron"),
    "torchtitan": (test_torchtitan.MODELS, test_torchtitan.drawn, "torchtitan"),
}
SAMPLES_OF_PROGRAM = {"accelerate"}
"""Frameworks whose files leave the samples of a step to the program."""
LENGTH_OF_PROGRAM = {"accelerate", "deepspeed"}
"""Frameworks whose files leave the length of a sample to the program."""


SAME = (("remat", "minimal"),)
"""Options that say what a strategy says: MaxText's policy that a selective recompute is."""
OF_PROGRAM = ("kernels",)
"""Options that some frameworks' programs decide, not their files."""


def with_options(grid: Grid, random: Random, *, model: str, runtime: str) -> Grid:
    """The strategy with up to two options that are not at the runtime's own value."""
    base = load_runtime(runtime)
    pairs = [
        (name, value)
        for name, values in offered_values(base).items()
        for value in values
        if (name, value) not in (*base.own, *SAME) and name not in (*OF_EXPERTS, "fp8", *OF_PROGRAM)
    ]
    drawn = dict(random.sample(pairs, min(len(pairs), random.choice((0, 0, 1, 2)))))
    options = effective_options(in_vocabulary_order(drawn.items()), grid, load_model(model))
    return replace(grid, options=options)


PAIRS = [(target, model) for target, (models, _, _) in TARGETS.items() for model in models]
ALIKE = {
    ("flagscale", "llama-3.1-8b"),
    ("flagscale", "qwen3-30b-a3b"),
    ("megatron-bridge", "deepseek-v3-no-mtp"),
    ("nanotron", "llama-2-7b"),
    ("torchtitan", "llama-3.1-70b"),
}
"""Models of a target that are of a form with another, or drawn for another target as well."""


@in_both
@pytest.mark.parametrize(
    ("target", "model"), PAIRS if in_proof() else [pair for pair in PAIRS if pair not in ALIKE]
)
def test_exports_are_read_back(target: str, model: str, tmp_path: Path) -> None:
    _, drawn, runtime = TARGETS[target]
    compared = 0
    for number in numbers(15, 200):
        random = Random(f"{model} {number}")
        grid = drawn(random, model)
        by_deepspeed = target == "accelerate" and grid.ulysses > 1
        made_for = "deepspeed" if by_deepspeed else runtime
        if not legal(grid, model):
            continue
        grid = canonical(grid, facts=facts_of(grid, model))
        grid = with_options(grid, random, model=model, runtime=made_for)
        if not legal(grid, model):
            continue
        one = stored(grid, model=model, runtime=made_for)
        try:
            export = export_plan(one, target=target, allow_lossy=True)
        except StrategyError:
            continue
        # What a target does with another model's numbers is no matter of the strategy.
        if any("rotary positions" not in one.what for one in export.losses):
            continue
        write_export(export, tmp_path)
        files = [str(tmp_path / file.name) for file in export.files if not file.starts]
        launch = read_launch(files, model=load_model(model), devices=grid.devices, framework=target)
        found = (
            launch.grid if grid.dp > 1 and grid.pp > 1 else replace(launch.grid, order=grid.order)
        )
        if target in SAMPLES_OF_PROGRAM:
            found = replace(found, microbatch=grid.microbatch)
        else:
            assert launch.global_batch == BATCH
        assert launch.seq_len == (0 if target in LENGTH_OF_PROGRAM else LENGTH)
        assert launch.precision in ("bf16", "fp8")
        assert found == grid, f"{print_grid(found)} for {print_grid(grid)}"
        unknown = [one for one in launch.of(Verdict.UNKNOWN) if "buckets" not in one.means]
        assert not unknown, unknown
        compared += 1
    assert compared > (0 if target == "accelerate" else 2)
