"""Every parser of text that a user can hand to the project, with short valid samples; one that is
added belongs here too."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Final

from shardwright.api.report.report_content_of_answer_file import report_document
from shardwright.api.report.report_content_of_comparison_advice_or_serving import (
    report_of_other_answer,
)
from shardwright.calibrate.kineto_trace import parse_kineto
from shardwright.calibrate.parse_nccl_tests_output import parse_nccl_tests
from shardwright.cli.parsing.parse_memory_and_cost import (
    read_headroom,
    read_prices,
    read_reserve,
    read_tokens,
)
from shardwright.cli.parsing.parse_token_and_sequence_counts import read_batch, read_count
from shardwright.cli.parsing.shared_options import read_choices
from shardwright.cli.terminal.output_and_progress import plain
from shardwright.errors import ShardwrightError
from shardwright.files.canonical_json import to_text
from shardwright.files.comparison_advice_serving_document_classes import StoredAdvice
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, question_digest
from shardwright.files.profile_file import parse_profile, profile_document
from shardwright.files.read_comparison_advice_and_serving import parse_other_answer
from shardwright.files.read_plan_and_simulation_files import parse_saved, require_breakdown_sum
from shardwright.files.trace_file import parse_traces
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.frameworks.shell.run_script import read_script
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.files.read_cluster_file import cluster_from_yaml
from shardwright.hardware.files.weighted_cluster_conditions_file import states_from_yaml
from shardwright.hardware.inventories.cluster_from_inventories import cluster_from_inventories
from shardwright.hardware.inventories.detect_format_and_read_inventory import read_inventory
from shardwright.hardware.multiply_expression_counts_by_factor import multiply_counts
from shardwright.hardware.split_and_apply_scale_factors_of_cluster_text import (
    scale_cluster,
    split_scale_factors,
)
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import ServingJob
from shardwright.model.catalog.load_model_by_name import catalog_entry, load_model
from shardwright.model.families.huggingface_config import model_from_config, parse_config
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.report.page.report_page import report_html
from shardwright.report.screens.plan_screen import render_explained, render_explanation
from shardwright.runtime.parse_launch_arguments import options_from_arguments, parse_arguments
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.members.pinned_and_excluded_values import restricted
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.serving.traffic.draw_requests import draw_requests
from shardwright.serving.traffic.read_request_trace import parse_trace
from shardwright.strategy.text.grid_notation import changed_grid, parse_grid, print_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.translate_phrases_to_grid_notation import translate_phrases
from shardwright.validation.serving.row_to_serving_run import to_serving_run
from shardwright.validation.serving.serving_table_columns import SERVING_TABLE
from shardwright.validation.tables.csv_rows import parse_table
from shardwright.validation.tables.table_facts_from_toml import TableFacts, parse_facts
from shardwright.validation.training.cells_from_megatron_arguments import with_launch_cells
from shardwright.validation.training.row_to_training_run import to_training_run
from shardwright.validation.training.training_table_columns import (
    TRAINING_TABLE,
    TrainingMeasurement,
)
from tests.calibrate.profiles import profile
from tests.calibrate.test_kineto_trace import DOCUMENT
from tests.calibrate.test_parse_nccl_tests_output import NEW
from tests.files.other_answers import OTHER_KINDS
from tests.files.saved import UNEVEN, grid_plan, simulated
from tests.files.test_trace_file import TEXT as TRACES
from tests.frameworks.readers.all_readers import FRAMEWORKS
from tests.hardware.inventory_files import SAMPLES as INVENTORIES
from tests.hardware.test_slowdown_scenarios import FILE as SCENARIOS
from tests.search.problems import facts_of, real_problem
from tests.serving.traffic.test_read_request_trace import AZURE, MOONCAKE, OWN
from tests.validation.serving_tables import HEADER as SERVING_HEADER
from tests.validation.serving_tables import LINE as SERVING_LINE
from tests.validation.tables.test_table_facts_from_toml import HEADER, LINE
from tests.validation.test_serving_measurements import METRICS, PLAIN, POOLS
from tests.validation.training.test_cells_from_megatron_arguments import DENSE, LATENT, SPLIT

ROOT: Final = Path(__file__).resolve().parents[2]


PUBLISHED: Final = ROOT / "tests" / "launch_files" / "published"
_SUFFIXES: Final = (".slurm", ".sh", ".json", ".yaml", ".toml")
_ALIASES: Final = (
    "base_model: &m a/b\ntokenizer: *m\nsequence_len: &n 2048\nmicro_batch_size:"
    " 1\neval_sequence_len: *n\ndatasets: [&d {path: x, type: &t alpaca}, {<<: *d, path: y}, {<<:"
    " [*d], type: *t}]\n"
)
LAUNCH_FILES: Final = {
    **{
        suffix: tuple(path.read_text() for path in sorted(PUBLISHED.glob(f"*{suffix}")))
        for suffix in _SUFFIXES
    },
    ".yml": (_ALIASES,),
    ".py": (
        (
            "cfg.model.tensor_model_parallel_size = 4\ncfg.train.micro_batch_size ="
            " 1\nParallelismConfig(tensor_parallel_degree=2)\n"
        ),
    ),
}


SCRIPTS: Final = (
    ': "${TP:=4}"\nfor i in 1 2 "$@"; do A+=($i); done\nx ${A[@]} ${TP%.*} ${#A[@]} $((TP * 2))\n',
    (
        "case $1 in\n a|b) C=1 ;;\n *) C=${2:-3} ;;\nesac\nf() {\n local D=$1; shift\n x $D"
        ' $#\n}\nf "$C" y\n'
    ),
    (
        "while [ $N -lt 3 ]; do ((N++)); [[ $N == 2* && -n $B ]] || break; done\n(cd x; E=1)\nbash"
        " -c 'y $E' 2>&1 | tee log\n"
    ),
    (
        'cat <<EOF > ds.json\n{"stage": $Z}\nEOF\nsource env.sh\nif [ -f $X ]; then F=1; elif ((N >'
        " 1)); then F=2; else F=3; fi\nset -- a b\n"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """A parser and what it reads.

    Args:
        read: takes a text; returns whatever it means or raises an error of the project.
        samples: valid texts, short.
        others: texts that are mutated too, some of which are refused: what they mean is tested
            elsewhere.
        weight: its share of the inputs; slow ones have less.
    """

    name: str
    read: Callable[[str], object]
    samples: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    weight: float = 1.0


@cache
def parsers() -> tuple[Parser, ...]:
    """All of them. The first call simulates two plans for the samples of plan files."""
    model = load_model("llama-3.2-1b")
    space = standard_space_of_sample()
    grids = (
        "tp8 sp pp4 vpp2 dp2 mbs1 zero1",
        "tp=2 cp2 ulysses2 recompute=full zero3",
        "pp4 first=3 last=5 schedule=zb-h1 recompute=selective offload=50",
    )
    plans = (
        UNEVEN,
        *(
            (ROOT / "tests" / "strategy" / "zoo" / name).read_text()
            for name in ("02-tp-sp.plan", "08-uneven.plan")
        ),
    )
    table = f"{HEADER}\n{LINE}\nmine,run 8,gpt-3 175b,A100,64,2048,64,2,fp16,8,8,9.1\n"
    return (
        Parser(
            name="configuration",
            read=_configuration,
            samples=tuple(path.read_text() for path in sorted(CONFIGURATIONS.glob("*.json"))),
            weight=4,
        ),
        Parser(
            name="model",
            read=load_named,
            samples=("llama-3.1-405b", "meta-llama/Llama-3.1-8B", "deepseek-v3", "gpt3-175b"),
            weight=0.4,
        ),
        Parser(
            name="training",
            read=partial(trained, model),
            samples=("all", "lora:r16", "lora:r8:attn,mlp", "frozen:embed,head"),
        ),
        Parser(name="cluster", read=parse_cluster, samples=CLUSTERS),
        Parser(name="cluster with factors", read=_scaled_cluster, samples=SCALED_CLUSTERS),
        Parser(name="cluster file", read=cluster_from_yaml, samples=CLUSTER_FILES, weight=0.7),
        Parser(name="inventory", read=_inventory, samples=INVENTORIES),
        Parser(name="scenario file", read=states_from_yaml, samples=(SCENARIOS,), weight=0.5),
        Parser(
            name="runtime", read=load_runtime, samples=("megatron-core-0.12", "maxtext", "FSDP2")
        ),
        Parser(name="grid", read=_grid, samples=grids, weight=2),
        Parser(
            name="strategy words",
            read=_strategy_words,
            samples=("fsdp", "zero-3 and no recompute", "more tp", "tensor parallel 4"),
        ),
        Parser(
            name="changed grid",
            read=partial(changed_grid, parse_grid(grids[0])),
            samples=(*grids, "zero3", "tp4 dp16", "recompute=full"),
        ),
        Parser(name="notation", read=partial(parse_plan, model=model), samples=plans, weight=3),
        Parser(
            name="plan file",
            read=parse_saved,
            samples=(saved("tp2 sp pp2 dp4 mbs1 zero1"), saved(UNEVEN)),
            weight=1,
        ),
        Parser(
            name="explained plan",
            read=_explained,
            samples=(json.dumps(grid_plan()), saved("tp2 sp pp2 dp4 mbs1 zero1")),
            weight=0.4,
        ),
        Parser(
            name="other answer",
            read=_other_answer,
            samples=tuple(
                to_text(OTHER_KINDS[kind]()) for kind in ("strategies", "advice", "serving")
            ),
        ),
        Parser(name="profile", read=parse_profile, samples=(to_text(profile_document(profile())),)),
        Parser(name="trace", read=parse_traces, samples=(TRACES,)),
        Parser(name="requests", read=_requests, samples=(AZURE, MOONCAKE, OWN)),
        Parser(name="kineto", read=parse_kineto, samples=(json.dumps(DOCUMENT),)),
        Parser(name="nccl-tests", read=parse_nccl_tests, samples=(NEW,)),
        Parser(name="measurements", read=_rows, samples=(table,), weight=2),
        Parser(
            name="served",
            read=_served,
            samples=(
                f"{SERVING_HEADER}\n{SERVING_LINE}\n",
                f"{METRICS}\n{PLAIN}\n{POOLS}\n",
                POOLS_ROW,
            ),
            weight=2,
        ),
        Parser(
            name="launch", read=_launch, samples=(f"{DENSE} {SPLIT}", LATENT, "tp=2 --bf16: true")
        ),
        *(
            Parser(
                name=f"launch file{suffix}",
                read=partial(_launch_file, suffix),
                samples=samples,
                weight=0.5,
            )
            for suffix, samples in LAUNCH_FILES.items()
        ),
        Parser(name="shell script", read=partial(read_script, given={"2": "b"}), samples=SCRIPTS),
        *(
            Parser(
                name=f"launch of {framework}{suffix}",
                read=partial(_launch_file, suffix),
                others=texts,
                weight=0.3,
            )
            for (framework, suffix), texts in FRAMEWORKS.items()
        ),
        Parser(
            name="facts",
            read=_facts,
            samples=tuple(path.read_text() for path in sorted(FACTS.glob("*.toml"))[:4]),
        ),
        Parser(
            name="facts of serving",
            read=_serving_facts,
            samples=tuple(path.read_text() for path in sorted(SERVING_FACTS.glob("*.toml"))[:4]),
        ),
        Parser(
            name="pins",
            read=partial(_pinned, space),
            samples=(
                "tp=4,8",
                "zero1",
                "schedule=1f1b",
                "order=tp-cp-ep-dp-pp",
                "first=3",
                "vpp=1,2,4",
            ),
        ),
        Parser(name="counts", read=_count, samples=("8192", "8k", "4M tokens", "8,192", "1.5k")),
        Parser(
            name="sizes",
            read=_sizes,
            samples=("4", "4GiB", "5%", "15T", "300B", "2.5", "h100-sxm=2.5", "aws-p5.48xlarge=98"),
        ),
    )


CLUSTERS: Final = (
    "h100-sxm:16384",
    "gb200-nvl72:8",
    "a100-sxm-80gb:64",
    "tpu-v5p-256",
    "aws-p5.48xlarge:4 + a100-sxm:16",
    "h800-sxm:2048",
    "3x8xA100",
    "8 x NVIDIA H100 80GB HBM3",
    "h100-sxm:8@east/2.5usd+a100-sxm-80gb:8@west/1.2usd,east~west=25gbps/60ms/0.02usd",
)
CONFIGURATIONS: Final = ROOT / "tests" / "model" / "configs"
FACTS: Final = ROOT / "benchmarks" / "published" / "facts"
SERVING_FACTS: Final = ROOT / "benchmarks" / "published" / "serving" / "facts"
POOLS_ROW: Final = (
    "source_id,table_or_row,model_name,gpu,engine,options,workers,precision,isl,osl,concurrency,spec_decoding,guesses,acceptance,ttft_ms\nlab,1,deepseek-r1,gb300,trtllm"
    " 1.2.0rc6.post2,kv=fp8,1x(tp4ep4dp)+5x(tp8ep8),fp4,8192,1024,64,mtp,3,0.8,900\n"
)
CLUSTER_FILES: Final = (
    """name: two-kinds
accelerators:
  h100-capped: {like: h100-sxm, memory_gib: 78, sustained: 1.4, peak_tflops: {bf16: 800}}
nodes:
  - {accelerator: h100-capped, count: 16,\
 nic: {bandwidth_gbps: 400, reverse_bandwidth_gbps: 200, latency_us: 12.5}}
  - {instance: aws-p4d.24xlarge, count: 8}
fabric:
  - {name: leaf, devices: 64, rails: true}
  - {name: spine, oversubscription: 2, latency_us: 1.5}
""",
    (
        "nodes: [{accelerator: h100-sxm, count: 8}]\nfabric: [{name: leaf, devices: 32}, {name:"
        " spine, oversubscription: 3}]\n"
    ),
    (
        "nodes: [{accelerator: l40s, count: 2, island_devices: 4, node_tiers: [{name: sockets,"
        " devices: 8, bandwidth_gbps: 80}]}]\n"
    ),
    """nodes:
  - {accelerator: h100-sxm, count: 2, zone: east, dollars_per_device_hour: 2.5}
  - {accelerator: a100-sxm-80gb, count: 1, zone: west}
links:
  - {between: [east, west], bandwidth_gbps: 25, latency_ms: 60, egress_dollars_per_gigabyte: 0.02}
""",
)


def _other_answer(text: str) -> object:
    """Read a comparison, an advice or a serving result; make the page of an advice, too.

    The pages of the others search and simulate what their requests ask for.
    """
    found = parse_other_answer(text, name="answer")
    if isinstance(found, StoredAdvice):
        report_html(report_document(report_of_other_answer(found, Path("answer.json"))))
    return found


def standard_space_of_sample() -> Space:
    """The standard space of a small problem."""
    problem = real_problem("llama-3.2-1b", "h100-sxm:16", seq_len=2048, global_batch=32)
    return standard_space(problem, facts_of(problem))


def saved(strategy: str) -> str:
    return json.dumps(simulated(strategy))


def load_named(name: str) -> object:
    """By the catalog alone, so that no input opens a file of this machine."""
    entry = catalog_entry(name)
    return model_from_config(entry.config, name=entry.names[0])


SCALED_CLUSTERS: Final = (
    "h100-sxm:64,network=0.5x,memory=2x,price=1.5x",
    "8 x H100,network=2x",
    "a100-sxm-80gb:8@east+h100-sxm:8@west,east~west=25gbps/60ms,price=0.5x",
)


def _scaled_cluster(text: str) -> object:
    """A cluster of an expression with scale factors, and its text with other counts."""
    base, factors = split_scale_factors(text)
    cluster = scale_cluster(parse_cluster(base), factors)
    return cluster, multiply_counts(base, factor=Fraction(2))


def _inventory(text: str) -> object:
    found = read_inventory(text, name="t")
    try:
        return cluster_from_inventories([found], given={})
    except ShardwrightError:
        return cluster_from_inventories([found], given={"": "h100-sxm"})


def _configuration(text: str) -> object:
    return model_from_config(
        parse_config(_bytes(text), source="config.json"), name="m"
    ).num_parameters


def _explained(text: str) -> object:
    """As `explain` reads and shows a file, whose digest is made to fit: who tampers with one may do
    that too."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        body = json.loads(text)
        text = json.dumps({**body, "digest": question_digest(body)})
    found = parse_saved(text)
    require_breakdown_sum(found)
    answer = found.answer if isinstance(found, StoredPlan) else None
    return plain(
        render_explained(found.simulation) if answer is None else render_explanation(answer)
    )


def _strategy_words(text: str) -> None:
    of = parse_grid("tp2 sp pp2 dp8 mbs2 zero1")
    changed_grid(of, translate_phrases(text, of=of).text)


def _grid(text: str) -> object:
    grid = parse_grid(text, devices=64)
    assert parse_grid(print_grid(grid)) == grid
    return grid


def _rows(text: str) -> object:
    """As `validate` reads a table, up to a problem for each row."""
    return [
        to_training_run(row, facts=TableFacts(), default="megatron-core-0.12")
        for row in parse_table(_bytes(text), form=TRAINING_TABLE, source="table.csv")
    ]


def _launch_file(suffix: str, text: str) -> object:
    return launch_of_files([(f"file{suffix}", text)], model=load_model("llama-3.1-8b"), devices=384)


def _launch(text: str) -> object:
    """The arguments of a launch script, up to the options and the cells that they say."""
    options_from_arguments(load_runtime("megatron-core"), parse_arguments(text))
    empty = TrainingMeasurement(
        line=2,
        source_id="s",
        table_or_row="r",
        model_name="m",
        gpu="h100",
        gpu_count=8,
        launch=text,
    )
    return with_launch_cells(empty, assumptions=[])


def _requests(text: str) -> object:
    """As `serve-simulate` reads a file of requests, up to what is served."""
    return draw_requests(
        ServingJob(arrivals=parse_trace(_bytes(text), source="requests.csv")), block_tokens=16
    )


def _facts(text: str) -> object:
    return parse_facts(_bytes(text), name="facts.toml", form=TRAINING_TABLE)


def _serving_facts(text: str) -> TableFacts:
    return parse_facts(_bytes(text), name="facts.toml", form=SERVING_TABLE)


def _served(text: str) -> object:
    return [
        to_serving_run(row, facts=TableFacts(), default="vllm")
        for row in parse_table(_bytes(text), form=SERVING_TABLE, source="table.csv")
    ]


def _pinned(space: Space, text: str) -> object:
    choices = dict(read_choices([text], flag="--pin"))
    with suppress(ShardwrightError):
        restricted(space, pins={}, excludes=choices)
    return restricted(space, pins=choices, excludes={})


def _count(text: str) -> object:
    with suppress(ShardwrightError):
        read_batch(text, "", seq_len=4096)
    with suppress(ShardwrightError):
        read_batch("", text, seq_len=4096)
    return read_count(text, flag="--seq-len")


def _sizes(text: str) -> object:
    readers: tuple[Callable[[str], object], ...] = (
        read_reserve,
        read_tokens,
        read_headroom,
        lambda word: read_prices([word]),
    )
    for read in readers:
        with suppress(ShardwrightError):
            read(text)
    return None


def _bytes(text: str) -> bytes:
    """Of a file; half characters are what an editor that knows no UTF-8 leaves."""
    return text.encode("utf-8", errors="surrogatepass")
