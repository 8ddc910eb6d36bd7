"""Megatron-LM's command lines, read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from shardwright.api.exports.export_plan import export_plan, write_export
from shardwright.errors import DataError, ShardwrightError, StrategyError
from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.megatron.settings import MODEL_DEFAULTS, SETTINGS
from shardwright.frameworks.read_launch import read_launch
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.parallelism_grid import Recompute
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.frameworks.megatron.test_write import MODELS, drawn
from tests.frameworks.plans import BATCH, LENGTH, facts_of, legal, stored
from tests.tiers import in_both, numbers

LLAMA = """--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32\
 --group-query-attention --num-query-groups 8
 --swiglu --disable-bias-linear --normalization RMSNorm --untie-embeddings-and-output-weights\
 --position-embedding-type rope
 --rotary-base 500000 --seq-length 8192 --max-position-embeddings 8192 --attention-dropout 0\
 --hidden-dropout 0 --bf16 """
SPLIT = (
    "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2"
    " --use-distributed-optimizer "
)
SIZES = "--micro-batch-size 1 --global-batch-size 64 "
OPTIONS = (
    "grad_overlap=off",
    "param_overlap=off",
    "loss=te",
    "tp_overlap=dgrad",
    "recompute_norms=on",
    "grad_dtype=bf16",
)


def read(arguments: str, *, model: str = "llama-3.1-8b", devices: int = 16) -> Launch:
    return read_launch([arguments], model=load_model(model), devices=devices)


@in_both
@pytest.mark.parametrize("model", MODELS)
def test_exports_are_read_back(model: str, tmp_path: Path) -> None:
    compared = 0
    for number in numbers(30, 200):
        random = Random(f"{model} {number}")
        grid = drawn(random, model)
        if not legal(grid, model):
            continue
        lacking = {
            "tp_overlap": not (grid.tp > 1 and grid.sp),
            "param_overlap": not grid.zero or grid.dp * grid.cp == 1,
            "recompute_norms": grid.recompute is Recompute.FULL,
        }
        words = [
            word
            for word in OPTIONS
            if random.random() < 0.3 and not lacking.get(word.partition("=")[0])
        ]
        grid = canonical(
            replace(grid, options=parse_grid(" ".join(["dp1", *words])).options),
            facts=facts_of(grid, model),
        )
        if grid.zero and "grad_overlap=off" in words and "param_overlap=off" not in words:
            # Megatron-LM refuses the one without the other: a loss of the export.
            continue
        path, *_ = write_export(
            export_plan(
                stored(grid, model=model, runtime="megatron-core"),
                target="megatron",
                allow_lossy=True,
            ),
            tmp_path,
        )
        launch = read_launch([str(path)], model=load_model(model), devices=grid.devices)
        # The order of axes of one device is none.
        found = (
            launch.grid if grid.dp > 1 and grid.pp > 1 else replace(launch.grid, order=grid.order)
        )
        assert found == grid, f"{print_grid(found)} for {print_grid(grid)}"
        assert (launch.seq_len, launch.global_batch, launch.precision, launch.dropout) == (
            LENGTH,
            BATCH,
            "bf16",
            False,
        )
        known = {Verdict.UNDERSTOOD, Verdict.OF_THE_MODEL, Verdict.IGNORED, Verdict.IDLE}
        assert {one.verdict for one in launch.settings} <= known, launch.settings
        # An export does not write what Megatron-LM refuses; what does nothing is an overlap with
        # what is not there.
        assert launch.refused == ()
        assert {one.name.partition("-")[0] for one in launch.of(Verdict.IDLE)} <= {
            "overlap",
            "use",
            "fp8",
            "moe",
        }, launch.of(Verdict.IDLE)
        compared += 1
    assert compared > 5


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("", "tp2 sp pp2 dp4 mbs1 zero1 recompute=none schedule=1f1b"),
        ("--num-layers-per-virtual-pipeline-stage 4", "vpp4"),
        ("--decoder-first-pipeline-num-layers 15", "first=15"),
        ("--pipeline-model-parallel-layout Et*15|t*17L", "first=15"),
        ("--recompute-activations", "recompute=selective"),
        ("--checkpoint-activations", "recompute=full"),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3",
            "recompute=full:3",
        ),
        (
            "--recompute-granularity selective --recompute-modules layernorm mlp",
            "recompute=none recompute_norms=on recompute_mlp=on",
        ),
        ("--context-parallel-size 2 --cp-comm-type a2a", "cp2 ulysses2"),
        ("--num-distributed-optimizer-instances 2", "shard2"),
        ("--overlap-grad-reduce --overlap-param-gather", "zero1"),
        ("--optimizer-cpu-offload", "offload=100"),
    ],
)
def test_arguments_are_a_strategy(more: str, words: str) -> None:
    found = print_grid(read(f"{LLAMA} {SPLIT} {SIZES} {more}").grid).split()
    assert set(words.split()) <= set(found), found
    assert ("grad_overlap=off" in found) == ("overlap-grad" not in more)


def test_every_setting_has_a_verdict() -> None:
    launch = read(
        f"{LLAMA} {SPLIT} {SIZES} --lr 3e-4 --save /x --hiden-size 3 --fp32-residual-connection"
        " --hidden-size 8192 --num-layers 40"
    )
    verdicts = {one.name: one for one in launch.settings}
    assert verdicts["lr"].verdict is verdicts["save"].verdict is Verdict.IGNORED
    assert (verdicts["hiden-size"].verdict, "hidden-size" in verdicts["hiden-size"].means) == (
        Verdict.UNKNOWN,
        True,
    )
    assert "not counted" in verdicts["fp32-residual-connection"].means
    assert (verdicts["hidden-size"].verdict, verdicts["hidden-size"].means) == (
        Verdict.DIFFERENT,
        "MODEL: 4096",
    )
    assert {one.name for one in launch.of(Verdict.DIFFERENT)} == {"hidden-size", "num-layers"}


def test_what_a_launch_leaves_out_is_megatrons_default() -> None:
    bare = read(f"--num-layers 32 {SPLIT} --seq-length 4096 --micro-batch-size 2 --bf16")
    assert (bare.dropout, bare.global_batch, bare.seq_len) == (True, 8, 4096)
    missing = {one.name for one in bare.of(Verdict.DIFFERENT)}
    assert {"swiglu", "normalization", "disable-bias-linear", "hidden-size"} <= missing


@pytest.mark.parametrize("name", sorted(SETTINGS.understood))
def test_what_is_understood_changes_what_is_read(name: str) -> None:
    """Each argument, at some value, makes another launch: none is called understood for nothing."""
    model = (
        "mixtral-8x7b"
        if name.startswith("expert")
        else "deepseek-v2-lite"
        if name.startswith("account")
        else "llama-3.1-8b"
    )
    rest = "--num-experts 8"
    before = f"{LLAMA} {SPLIT} {SIZES} {rest} {NEEDED.get(name, '')}"
    values = VALUES.get(name, ("",))
    base = read(before, model=model)
    found = [read(f"{before} --{name} {value}", model=model) for value in values]
    assert any(replace(one, settings=()) != replace(base, settings=()) for one in found)


NEEDED = {
    "account-for-embedding-in-pipeline-split": "--pipeline-model-parallel-size 4",
    "account-for-loss-in-pipeline-split": "--pipeline-model-parallel-size 4",
    "cp-comm-type": "--context-parallel-size 2",
    "hierarchical-context-parallel-sizes": "--context-parallel-size 4 --cp-comm-type a2a+p2p",
    "data-parallel-sharding-strategy": "--use-megatron-fsdp",
    "recompute-method": "--recompute-granularity full --recompute-num-layers 2",
    "recompute-num-layers": "--recompute-granularity full --recompute-method block",
    "recompute-modules": "--recompute-granularity selective",
    "optimizer-offload-fraction": "--optimizer-cpu-offload",
    "num-virtual-stages-per-pipeline-rank": "",
    "use-distributed-optimizer": "--use-distributed-optimizer=false",
    "sequence-parallel": "--sequence-parallel=false",
    "encoder-seq-length": "--seq-length=false",
    "bf16": "--bf16=false",
    "fp16": "--bf16=false",
}
VALUES = {
    "tensor-model-parallel-size": ("4",),
    "pipeline-model-parallel-size": ("4",),
    "context-parallel-size": ("2",),
    "cp-comm-type": ("a2a",),
    "hierarchical-context-parallel-sizes": ("2 2",),
    "expert-model-parallel-size": ("2",),
    "expert-tensor-parallel-size": ("1",),
    "num-layers-per-virtual-pipeline-stage": ("4",),
    "num-virtual-stages-per-pipeline-rank": ("4",),
    "pipeline-model-parallel-layout": ("Et*15|t*17L",),
    "decoder-first-pipeline-num-layers": ("15",),
    "decoder-last-pipeline-num-layers": ("15",),
    "micro-batch-size": ("2",),
    "global-batch-size": ("128",),
    "seq-length": ("4096",),
    "encoder-seq-length": ("4096",),
    "num-distributed-optimizer-instances": ("2",),
    "data-parallel-sharding-strategy": ("optim_grads",),
    "zero-stage": ("3",),
    "recompute-granularity": ("full",),
    "recompute-method": ("block",),
    "recompute-num-layers": ("3",),
    "recompute-modules": ("layernorm",),
    "cpu-offloading-num-layers": ("2",),
    "optimizer-offload-fraction": ("0.5",),
    "fp8-format": ("hybrid",),
    "fp4-format": ("e2m1",),
    "attention-dropout": ("0.1",),
    "hidden-dropout": ("0.1",),
}


def test_no_argument_has_two_verdicts() -> None:
    tables = (SETTINGS.understood, SETTINGS.ignored, MODEL_DEFAULTS, SETTINGS.unmodelled)
    names = [name for table in tables for name in table]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (
            f"{LLAMA} --tensor-model-parallel-size 3",
            StrategyError,
            "does not divide the 16 devices",
        ),
        (f"{LLAMA} --tensor-model-parallel-size many", DataError, "not a whole number"),
        (
            f"{LLAMA} {SPLIT} --pipeline-model-parallel-layout t|t|t",
            ShardwrightError,
            "3 chunks for pp 2",
        ),
        (
            f"{LLAMA} {SPLIT} --pipeline-model-parallel-layout tt|tt",
            StrategyError,
            "lays out 4 layers, MODEL has 32",
        ),
        (f"{LLAMA} --tensor-model-parallel-size $TP", DataError, "the script does not say"),
        (
            f"{LLAMA} --use-megatron-fsdp --data-parallel-sharding-strategy all",
            DataError,
            "is not known here",
        ),
        (
            f"{LLAMA} --recompute-granularity selective --recompute-modules nothing",
            DataError,
            "not known here",
        ),
        (f"{LLAMA} --yaml-cfg mine.yaml", DataError, "YAML is not read"),
        ("--nothing --at-all", DataError, "no setting that only one framework has"),
    ],
)
def test_what_cannot_be_read_is_an_error(
    arguments: str, error: type[ShardwrightError], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        read(arguments)
    assert raised.value.hint


@in_both
def test_any_arguments_are_a_launch_or_an_error() -> None:
    words = [
        *f"{LLAMA} {SPLIT} {SIZES}".split(),
        *(f"--{name}" for name in (*SETTINGS.understood, *MODEL_DEFAULTS)),
        "0",
        "-1",
        "1e9",
        "x",
        "",
        "$A",
        "None",
    ]
    for number in numbers(60, 2000):
        random = Random(number)
        text = " ".join(["--num-layers 32", *random.choices(words, k=random.randrange(30))])
        try:
            read(text)
        except ShardwrightError:
            continue
