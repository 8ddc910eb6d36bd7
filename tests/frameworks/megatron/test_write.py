"""Megatron-LM's arguments say a plan's strategy and its model, and what they cannot say is refused
by name."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from shardwright.api.exports.export_plan import export_plan, write_export
from shardwright.errors import StrategyError
from shardwright.frameworks.megatron.write import SCRIPT
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.layers_per_chunk import chunk_layers
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import num_layers
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from tests.frameworks.plans import facts_of, legal, stored
from tests.tiers import in_both, numbers

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3-no-mtp")
MAPPINGS = {False: ("tp", "cp", "dp", "pp"), True: ("tp", "cp", "pp", "dp")}

SAID = {
    "llama-3.1-8b": {
        "num-layers": "32",
        "hidden-size": "4096",
        "ffn-hidden-size": "14336",
        "num-attention-heads": "32",
        "group-query-attention": "",
        "num-query-groups": "8",
        "kv-channels": "128",
        "normalization": "RMSNorm",
        "norm-epsilon": "1e-05",
        "rotary-base": "500000",
        "rope-scaling-factor": "8",
        "position-embedding-type": "rope",
        "swiglu": "",
        "disable-bias-linear": "",
        "untie-embeddings-and-output-weights": "",
        "vocab-size": "128256",
    },
    "qwen3-30b-a3b": {
        "num-layers": "48",
        "num-experts": "128",
        "moe-router-topk": "8",
        "moe-ffn-hidden-size": "768",
        "moe-router-score-function": "softmax",
        "qk-layernorm": "",
        "num-query-groups": "4",
    },
    "deepseek-v3-no-mtp": {
        "num-layers": "61",
        "ffn-hidden-size": "18432",
        "multi-latent-attention": "",
        "q-lora-rank": "1536",
        "kv-lora-rank": "512",
        "qk-head-dim": "128",
        "qk-pos-emb-head-dim": "64",
        "v-head-dim": "128",
        "moe-layer-freq": "[0]*3+[1]*58",
        "moe-router-enable-expert-bias": "",
        "moe-router-num-groups": "8",
        "moe-router-group-topk": "4",
        "moe-shared-expert-intermediate-size": "2048",
        "moe-router-score-function": "sigmoid",
    },
    "qwen2.5-7b": {"add-qkv-bias": "", "disable-bias-linear": "", "num-query-groups": "4"},
    "mixtral-8x7b": {"num-experts": "8", "moe-router-topk": "2"},
}


def said(grid: Grid, model: str, folder: Path, *, allow_lossy: bool = False) -> dict[str, str]:
    """The arguments of the script, by name."""
    one = stored(grid, model=model, runtime="megatron-core")
    path, *_ = write_export(export_plan(one, target="megatron", allow_lossy=allow_lossy), folder)
    assert path.name == SCRIPT
    text = path.read_text()
    listed = shlex.split(text.partition("ARGUMENTS=(\n")[2].partition("\n)\n")[0])
    found: dict[str, str] = {}
    for word in listed:
        if word.startswith("--"):
            name = word.removeprefix("--")
            assert name not in found, "each stands once"
            found[name] = ""
        else:
            found[name] = f"{found[name]} {word}".strip()
    return found


def read_back(found: dict[str, str], model: str) -> Grid:
    """The grid that arguments are, by what Megatron-LM does with them."""
    pp, cp = int(found["pipeline-model-parallel-size"]), int(found["context-parallel-size"])
    vpp = int(found.get("num-virtual-stages-per-pipeline-rank", "1"))
    layers: tuple[int, ...] = ()
    if "pipeline-model-parallel-layout" in found:
        layers = tuple(
            stage.count("t") for stage in found["pipeline-model-parallel-layout"].split("|")
        )
        vpp = len(layers) // pp
    kind = found.get("cp-comm-type", "p2p")
    ulysses = {
        "a2a": cp,
        "a2a+p2p": int(found.get("hierarchical-context-parallel-sizes", "1 1").split()[0]),
    }.get(kind, 1)
    sharding = found.get("data-parallel-sharding-strategy", "")
    zero = {"optim_grads": 2, "optim_grads_params": 3}.get(
        sharding, int("use-distributed-optimizer" in found)
    )
    full = found.get("recompute-granularity") == "full"
    counted = (
        int(found["recompute-num-layers"]) if full and found["recompute-method"] == "block" else 0
    )
    even = chunk_layers(num_layers(load_model(model)), pp=pp, vpp=vpp) if pp > 1 else ()
    return Grid(
        tp=int(found["tensor-model-parallel-size"]),
        sp="sequence-parallel" in found,
        cp=cp,
        ulysses=ulysses,
        gather=kind == "allgather",
        ep=int(found.get("expert-model-parallel-size", "1")),
        etp=int(found.get("expert-tensor-parallel-size", "1")),
        pp=pp,
        vpp=vpp,
        microbatch=int(found["micro-batch-size"]),
        zero=zero,
        recompute=Recompute.FULL if full else Recompute(found.get("recompute-granularity", "none")),
        recompute_layers=counted,
        schedule="interleaved-1f1b" if vpp > 1 else "1f1b",
        layers=() if layers == even else layers,
        order=(
            *MAPPINGS["use-tp-pp-dp-mapping" in found][:2],
            "ep",
            *MAPPINGS["use-tp-pp-dp-mapping" in found][2:],
        ),
        offload=round(100 * float(found.get("optimizer-offload-fraction", "0"))),
    )


def drawn(random: Random, model: str) -> Grid:
    pp = random.choice((1, 1, 2, 4))
    vpp = random.choice((1, 2)) if pp > 1 else 1
    cp = random.choice((1, 1, 2, 4))
    tp = random.choice((1, 2, 4))
    full = random.random() < 0.3
    return Grid(
        tp=tp,
        sp=tp > 1 and random.random() < 0.7,
        cp=cp,
        ulysses=random.choice([n for n in (1, 2, 4) if cp % n == 0]),
        ep=random.choice((1, 2, 4)) if model != "llama-3.1-8b" else 1,
        dp=random.choice((1, 2, 4)),
        pp=pp,
        vpp=vpp,
        microbatch=random.choice((1, 2)),
        zero=random.choice((0, 1, 1)) if pp > 1 else random.choice((0, 1, 2, 3)),
        recompute=Recompute.FULL if full else random.choice((Recompute.NONE, Recompute.SELECTIVE)),
        recompute_layers=random.choice((0, 2)) if full else 0,
        schedule="interleaved-1f1b" if vpp > 1 else "1f1b",
        order=random.choice((("tp", "cp", "ep", "dp", "pp"), ("tp", "cp", "ep", "pp", "dp"))),
        offload=random.choice((0, 0, 50)),
    )


@in_both
@pytest.mark.parametrize("model", MODELS)
def test_random_strategies_are_read_back(model: str, tmp_path: Path) -> None:
    compared = 0
    for number in numbers(30, 200):
        grid = drawn(Random(f"{model} {number}"), model)
        if not legal(grid, model):
            continue
        grid = canonical(grid, facts=facts_of(grid, model))
        found = read_back(said(grid, model, tmp_path, allow_lossy=True), model)
        # Replicas are what devices are left, and an order of axes of one device is none.
        again = Grid(**{**{name: getattr(found, name) for name in Grid.__slots__}, "dp": grid.dp})
        if grid.dp == 1 or grid.pp == 1:
            again = Grid(
                **{**{name: getattr(again, name) for name in Grid.__slots__}, "order": grid.order}
            )
        assert again == grid, print_grid(grid)
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("model", SAID)
def test_models_are_said(model: str, tmp_path: Path) -> None:
    found = said(Grid(tp=2, sp=True, dp=4, zero=1), model, tmp_path, allow_lossy=True)
    assert {name: found.get(name) for name in SAID[model]} == SAID[model]


def test_options_are_its_flags(tmp_path: Path) -> None:
    found = said(parse_grid("tp2 sp dp4 zero1 grad_overlap=on"), "llama-3.1-8b", tmp_path)
    assert "overlap-grad-reduce" in found
    off = said(
        parse_grid("tp2 sp dp4 zero1 grad_overlap=off param_overlap=off"), "llama-3.1-8b", tmp_path
    )
    assert "overlap-grad-reduce" not in off


def test_overlaps_that_megatron_refuses_are_not_written(tmp_path: Path) -> None:
    """Parameters are gathered beside compute with the distributed optimizer alone, and where
    gradients are reduced beside it."""
    assert "overlap-param-gather" in said(parse_grid("tp2 sp dp4 zero1"), "llama-3.1-8b", tmp_path)
    assert "overlap-param-gather" not in said(
        parse_grid("tp2 sp dp4 zero0"), "llama-3.1-8b", tmp_path
    )
    with pytest.raises(StrategyError, match="param_overlap=on with grad_overlap=off"):
        said(parse_grid("tp2 sp dp4 zero1 grad_overlap=off"), "llama-3.1-8b", tmp_path)


def test_uneven_stages_are_a_layout(tmp_path: Path) -> None:
    found = said(parse_grid("pp4 layers=7,9,9,7 dp2 zero1"), "llama-3.1-8b", tmp_path)
    assert found["pipeline-model-parallel-layout"] == "|".join(
        ["E" + "t" * 7, "t" * 9, "t" * 9, "t" * 7 + "L"]
    )


def test_the_script_is_one(tmp_path: Path) -> None:
    said(parse_grid("tp2 dp4 zero1"), "llama-3.1-8b", tmp_path)
    subprocess.run(["bash", "-n", str(tmp_path / SCRIPT)], check=True)


@pytest.mark.parametrize(
    ("text", "model", "what"),
    [
        ("pp4 dp2 zero1 schedule=zb-h1", "llama-3.1-8b", "the schedule zb-h1"),
        ("pp2 dp4 zero3", "llama-3.1-8b", "zero3 with pp 2"),
        ("tp2 dp4 zero1 order=dp-tp-cp-ep-pp", "llama-3.1-8b", "ranks in the order"),
        ("dp8 zero1", "gpt-oss-20b", "sinks"),
        ("dp8 zero1", "deepseek-v3", "prediction modules"),
        ("dp8 zero1", "gemma-2-9b", "layers with post_norm1"),
        ("dp8 zero1", "falcon-h1-7b", "layers with"),
    ],
)
def test_what_they_cannot_say_is_named(text: str, model: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(StrategyError, match=r"\[export\.refused\]") as error:
        export_plan(
            stored(parse_grid(text), model=model, runtime="megatron-core"),
            target="megatron",
            allow_lossy=True,
        )
    assert what in str(error.value)


def installed() -> bool:
    """Megatron-LM, and not its core alone."""
    found = find_spec("megatron")
    places = found.submodule_search_locations if found is not None else None
    return any((Path(place) / "training" / "arguments.py").is_file() for place in places or ())


@pytest.mark.skipif(not installed(), reason="Megatron-LM is not installed")
@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("tp2 sp dp4 zero1", "llama-3.1-8b"),
        ("tp2 sp pp4 dp2 zero1 recompute=full", "llama-3.1-8b"),
        ("pp4 layers=7,9,9,7 dp2 zero1", "llama-3.1-8b"),
        ("tp2 sp pp2 vpp2 dp2 zero1 schedule=interleaved-1f1b", "llama-3.1-8b"),
        ("tp2 sp cp2 dp2 zero1", "llama-3.1-8b"),
        ("cp4 ulysses2 dp2 zero1", "llama-3.1-8b"),
        ("dp8 zero3", "llama-3.1-8b"),
        ("dp8 ep4 zero1", "qwen3-30b-a3b"),
        ("tp2 sp dp8 ep8 zero1", "deepseek-v3-no-mtp"),
        ("tp2 sp dp4 zero1 recompute=selective", "qwen2.5-7b"),
        ("dp8 ep8 zero1 offload=50", "mixtral-8x7b"),
    ],
)
def test_its_own_parser_takes_it(text: str, model: str, tmp_path: Path) -> None:
    grid = parse_grid(text)
    words = [
        word
        for name, value in said(grid, model, tmp_path, allow_lossy=True).items()
        for word in (f"--{name}", *value.split())
    ]
    exported = re.findall(
        r"^export (\w+)=\$\{\w+:-(\w+)\}$", (tmp_path / SCRIPT).read_text(), flags=re.MULTILINE
    )
    asked = {"devices": grid.devices, "words": words, "environment": dict(exported)}
    program = [sys.executable, str(Path(__file__).with_name("megatron_parser.py"))]
    done = subprocess.run(
        program, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-600:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    layers = num_layers(load_model(model))
    assert found == {
        "tp": grid.tp,
        "pp": grid.pp,
        "cp": grid.cp,
        "ep": grid.ep,
        "dp": grid.dp,
        "layers": layers,
    }
