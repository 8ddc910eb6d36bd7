"""The zoo: plans of every form, each with the model, the cluster and the batch that it is for.
Other tests iterate over `zoo()`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.model_graph import Model
from shardwright.schedules.schedule_registry import SCHEDULES
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Role
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from tests.strategy.zoo_models import (
    adapted,
    dense,
    encoder_decoder,
    encoders_and_llm,
    hybrid,
    sparse,
    vision,
)

FOLDER: Final = Path(__file__).parent / "zoo"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooPlan:
    """A plan and its problem.

    Args:
        name: its file's, without the ending.
        text: in canonical form.
        cluster: an expression with as many devices as the plan.
        global_batch: samples a step.
        seq_len: text tokens a sample.
        others: tokens of a sample's other sequences.
    """

    name: str
    text: str
    model: Model
    cluster: str
    global_batch: int
    seq_len: int
    others: tuple[SequenceLength, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan that the text says."""
        return parse_plan(self.text)

    @property
    def job(self) -> TrainingJob:
        """The everyday job of these sizes."""
        text = SequenceLength(name="text", tokens=self.seq_len)
        return TrainingJob(sequences=(text, *self.others), global_batch=self.global_batch)

    @property
    def trains(self) -> bool:
        """Every lane trains (the plan for serving does not)."""
        return all(lane.role is Role.TRAIN for lane in self.plan.lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """What a plan is for; `cluster` empty: H100s in nodes of eight."""

    model: Callable[[], Model]
    batch: int
    seq_len: int = 2048
    cluster: str = ""
    others: tuple[tuple[str, int], ...] = ()


def _for(layers: int, batch: int, *, seq_len: int = 2048, cluster: str = "") -> _Problem:
    """For a small dense decoder."""
    return _Problem(
        model=partial(dense, layers=layers), batch=batch, seq_len=seq_len, cluster=cluster
    )


def _catalog(name: str, batch: int, *, seq_len: int) -> _Problem:
    return _Problem(model=partial(load_model, name), batch=batch, seq_len=seq_len)


_THREE: Final = "a100-sxm-80gb:2+v100-sxm-32gb:1"
_PROBLEMS: Final[Mapping[str, _Problem]] = MappingProxyType(
    {
        "01-grid3d": _catalog("llama-3-8b", 64, seq_len=4096),
        "02-tp-sp": _for(32, 32),
        "03-ring-cp": _for(32, 16),
        "04-ulysses": _for(32, 16),
        "04-usp": _for(32, 16),
        "05-ep-fold": _Problem(model=partial(sparse, dense_layers=1, layers=31), batch=64),
        "06-hsdp": _for(32, 128),
        "07-zero1-pp": _catalog("llama-2-70b", 256, seq_len=4096),
        "08-uneven": _for(78, 128),
        "09-llama405b": _catalog("llama-3.1-405b", 2048, seq_len=8192),
        "10-zb-v": _for(30, 64),
        "11-dualpipe": _for(62, 40),
        "11-dualpipe-v": _for(62, 20),
        "12-chimera": _for(8, 4),
        "13-terapipe": _for(24, 8),
        "14-survey3": _for(4, 12, cluster=_THREE),
        "15-tp-to-dp": _for(24, 16, cluster="a100-sxm-80gb:4+v100-sxm-32gb:2"),
        "16-unequal": _for(24, 24, cluster="h100-sxm:4+a100-sxm-80gb:2+v100-sxm-32gb:1"),
        "17-vocab-spread": _for(62, 32),
        "18-gqa-tp8": _Problem(model=partial(dense, layers=28, heads=32, kv_heads=4), batch=8),
        "19-deepseek-v3": _catalog("deepseek-v3", 15360, seq_len=4096),
        "20-vit-llm": _Problem(model=encoders_and_llm, batch=32),
        "21-seq1f1b-cp": _for(32, 16),
        "22-memory": _for(40, 64),
        "23-serve": _Problem(model=partial(sparse, dense_layers=1, layers=31), batch=1),
        "24-lora": _Problem(model=adapted, batch=32),
        "25-afd": _Problem(model=partial(sparse, dense_layers=1, layers=15), batch=32),
        "25-layerwise": _for(24, 64),
        "26-cp-gather": _for(8, 8),
        "27-zero2": _for(8, 16),
        "28-zero3": _for(8, 16),
        "29-offload": _for(8, 16),
        "30-selective": _for(8, 16),
        "31-full": _for(8, 8),
        "32-full-n": _for(8, 8),
        "33-first-last": _for(8, 8),
        "34-vpp": _for(8, 8),
        "35-layers": _for(8, 8),
        "36-ep": _Problem(model=sparse, batch=16),
        "37-gpipe": _for(8, 8),
        "38-pp-inside": _for(8, 8),
        "38-usp-tp": _for(8, 8),
        "39-eager-1f1b": _for(8, 8),
        "40-breadth-first": _for(8, 8),
        "41-looped-bfs": _for(8, 8),
        "42-zb-h1": _for(8, 8),
        "43-zb-h2": _for(8, 8),
        "44-v-half": _for(8, 8),
        "45-v-min": _for(8, 8),
        "46-gems": _for(8, 8),
        "47-chimera-named": _for(8, 8),
        "48-hanayo": _for(8, 4),
        "49-survey-heads-hidden": _for(4, 12, cluster=_THREE),
        "50-survey-five": _for(4, 15, cluster="a100-sxm-80gb:4+v100-sxm-32gb:1"),
        "51-weighted-widths": _for(8, 4, cluster="h100-sxm:1+a100-sxm-80gb:1"),
        "52-hidden": _for(8, 4),
        "53-tp2-dp2": _for(8, 8, cluster="a100-sxm-80gb:2+v100-sxm-32gb:2"),
        "54-tree-per-block": _for(8, 16),
        "55-overlapping": _for(8, 16),
        "56-unequal-small": _for(8, 8, cluster="h100-sxm:2+a100-sxm-80gb:2"),
        "57-encoder-decoder": _Problem(model=encoder_decoder, batch=8, others=(("encoder", 512),)),
        "58-encoder-beside-decoder": _Problem(
            model=encoder_decoder, batch=8, others=(("encoder", 512),)
        ),
        "59-vision": _Problem(model=vision, batch=8, others=(("image", 16),)),
        "60-hybrid": _Problem(model=hybrid, batch=8),
        "61-moe-mtp": _Problem(model=partial(sparse, predictors=1), batch=8),
        "62-ragged-tree": _for(8, 12),
        "63-weighted-ring": _for(8, 4, cluster="h100-sxm:1+a100-sxm-80gb:1"),
        "64-uneven-slices": _for(8, 4, seq_len=1536),
        "65-far-memory": _for(8, 4),
        "66-early-recompute": _for(8, 4),
        "67-overlapped-pairs": _for(8, 6),
        "68-vocabulary-in-stage": _for(8, 8),
        "69-weighted-experts": _Problem(model=sparse, batch=8),
        "70-spread-small": _for(8, 4),
        "71-lanes-of-trees": _for(8, 10),
    }
)


def _uniform(devices: int) -> str:
    """So many H100s: whole nodes and a smaller one."""
    whole, rest = devices // 8 * 8, devices % 8
    return "+".join(f"h100-sxm:{count}" for count in (whole, rest) if count)


def schedule_grid(name: str) -> str:
    """The grid that stands in the zoo for a schedule without a plan file."""
    return print_grid(parse_grid(f"pp4 dp1 mbs1 zero0 schedule={name}"))


def _plans_of_schedules(known: Iterable[ZooPlan]) -> Iterator[ZooPlan]:
    """A pipeline of four ranks for each schedule that no plan of `known` names, so that a new
    schedule is in the zoo without a file."""
    orders = [order for entry in known if entry.trains for order in entry.plan.orders]
    named = {order.schedule for order in orders if isinstance(order, NamedOrder)}
    for name in SCHEDULES:
        if name not in named:
            problem = _for(8, 8)
            model = problem.model()
            grid = parse_grid(schedule_grid(name))
            plan = plan_of(grid, model=model, global_batch=problem.batch)
            yield ZooPlan(
                name=f"schedule-{name}",
                text=print_plan(plan, name=name),
                model=model,
                cluster=_uniform(plan.devices),
                global_batch=problem.batch,
                seq_len=problem.seq_len,
            )


@lru_cache(maxsize=1)
def zoo() -> tuple[ZooPlan, ...]:
    """Every plan of the folder, in the order of their names, and one for each further schedule."""
    found: list[ZooPlan] = []
    for path in sorted(FOLDER.glob("*.plan")):
        text, problem = path.read_text(), _PROBLEMS[path.stem]
        devices = int(text.split("\n", 1)[0].split()[-1])
        others = tuple(SequenceLength(name=name, tokens=tokens) for name, tokens in problem.others)
        found.append(
            ZooPlan(
                name=path.stem,
                text=text,
                model=problem.model(),
                cluster=problem.cluster or _uniform(devices),
                global_batch=problem.batch,
                seq_len=problem.seq_len,
                others=others,
            )
        )
    return (*found, *_plans_of_schedules(found))


def zoo_plan(name: str) -> ZooPlan:
    """The plan of that name."""
    return next(plan for plan in zoo() if plan.name == name)
