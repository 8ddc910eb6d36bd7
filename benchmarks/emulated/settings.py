"""The settings: a model, a cluster of emulated accelerators, and a plan each. Nothing in them is
fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from shardwright.dtype import Dtype
from shardwright.hardware.accelerator import Accelerator, Evidence, Origin
from shardwright.hardware.catalog.accelerator_from_data_sheet import accelerator_from_sheet
from shardwright.hardware.catalog.fitted_training_constants import SHIPPED
from shardwright.hardware.cluster import Cluster, Host, NodeGroup, NodeKind
from shardwright.hardware.link_and_network_tier import Link
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.orders.search_orders_of_plan import with_searched_orders
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_plan
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.parse_plan import parse_plan

HOSTS: Final = 4
_ASSUMED: Final = Origin(evidence=Evidence.ASSUMED, reference="emulated")

EXECUTOR: Final[Runtime] = replace(
    load_runtime("torchtitan-0.2 kernels=eager"),
    name="shardwright",
    framework="shardwright",
    version="0.1",
    # execute/distributed: posts never wait, and threads take what comes while a device computes.
    overlap_p2p=True,
    # emulated/rank: all actions, then sums bucket by bucket, update, gathers; nothing runs beside
    # them.
    overlap_grad_reduce=False,
    overlap_param_gather=False,
    gather_prefetch=0,
    reduce_every_microbatch=False,
    gathers_from_master=False,
    gather_copy_bytes=0,
    reduce_copy_bytes=0,
    # execute/messages: collectives are messages between each two members.
    collective_library="messages",
    facts=(),
    aliases=(),
)
"""What this package's own executor does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a card of some rate achieves, as calibrated: seconds of an empty message, and the share
    of the rate that long ones reach."""

    latency_s: float
    efficiency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One plan on one cluster.

    Args:
        plan: in the notation.
        speeds: GFLOP/s of every host's accelerator.
        mbit: Mb/s of every host's card.
        near_mbit: Mb/s within nodes of two hosts; 0.0 = every host is a node.
        layers, hidden, tokens, batch: of the model and the job.
        cluster: settings of one name differ in their plans alone.
    """

    name: str
    cluster: str
    plan: str
    speeds: tuple[float, ...] = (100.0,) * HOSTS
    mbit: tuple[float, ...] = (1000.0,) * HOSTS
    near_mbit: float = 0.0
    layers: int = 8
    hidden: int = 512
    tokens: int = 128
    batch: int = 8

    @property
    def model(self) -> Model:
        """A decoder with a small vocabulary."""
        sizes = {
            "hidden_size": self.hidden,
            "intermediate_size": 4 * self.hidden,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
        }
        config = {
            "architectures": ["LlamaForCausalLM"],
            **sizes,
            "num_hidden_layers": self.layers,
            "vocab_size": 512,
        }
        config |= {
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": self.tokens,
        }
        return model_from_config(config, name="emulated")

    @property
    def job(self) -> TrainingJob:
        """Everything that is sent has four bytes an element."""
        sequences = (SequenceLength(name="text", tokens=self.tokens),)
        return TrainingJob(
            sequences=sequences,
            global_batch=self.batch,
            activation=Dtype.FP32,
            parameter=Dtype.FP32,
        )

    @property
    def parsed(self) -> Plan:
        """The plan, with an order that is yet to be found left open."""
        return parse_plan(f"plan emulated devices {HOSTS}\n{self.plan}")

    def predicted(self, reaches: Mapping[float, Reach]) -> SimulatedPlan:
        """The step as the package simulates it; `program.plan` is the plan, with all its orders."""
        problem = self.problem(reaches)
        return simulate_plan(problem, with_searched_orders(problem, self.parsed))

    def problem(self, reaches: Mapping[float, Reach]) -> Problem:
        """What is predicted.

        Args:
            reaches: by Mb/s.
        """
        constants = replace(SHIPPED, jitter=0.0)  # hosts of an emulated cluster do not straggle
        return Problem(
            model=self.model,
            cluster=self._cluster(reaches),
            job=self.job,
            runtime=EXECUTOR,
            constants=constants,
        )

    def _cluster(self, reaches: Mapping[float, Reach]) -> Cluster:
        size = 2 if self.near_mbit else 1
        groups: list[NodeGroup] = []
        for first in range(0, HOSTS, size):
            card = _link(self.mbit[first], reaches)
            kind = NodeKind(
                name=f"emulated-{self.speeds[first]:g}-{self.mbit[first]:g}",
                accelerator=accelerator(self.speeds[first]),
                num_devices=size,
                island=size,
                scale_up=_link(self.near_mbit, reaches) if self.near_mbit else card,
                nics=size,
                nic=card,
                host=Host(memory_bytes=0, pcie=card),
            )
            if groups and groups[-1].kind == kind:
                groups[-1] = NodeGroup(kind=kind, count=groups[-1].count + 1)
            else:
                groups.append(NodeGroup(kind=kind, count=1))
        return Cluster(expression=self.cluster, groups=tuple(groups))


def accelerator(gflops: float) -> Accelerator:
    """An accelerator of so many GFLOP/s and a fifth of it in GB/s, priced by the stated defaults of
    a device without measurements."""
    made = accelerator_from_sheet(
        f"emulated-{gflops:g}",
        vendor="",
        memory_gib=4,
        memory_gb_per_s=gflops / 5,
        peaks=((Dtype.BF16, gflops * 1e9),),
        reference="emulated",
        sustained=1.0,
    )
    return replace(made, overlap_slowdown=1.0)


def _link(mbit: float, reaches: Mapping[float, Reach]) -> Link:
    reach = reaches[mbit]
    return Link(
        latency_s=reach.latency_s,
        bandwidth=mbit * 1e6 / 8,
        efficiency=reach.efficiency,
        origin=_ASSUMED,
    )


def _pipeline(stages: str, order: str) -> str:
    return f"lane main samples 8 in 8\n  stages {stages}\n    all = .\norder {order}\n"


def _replicas(stages: str, *, stride: int = 1, zero: str = "") -> str:
    return (
        f"{zero}lane main samples 8 in 4\n  stages {stages}\n    all = b2@{stride}\norder"
        " 1f1b(main)\n"
    )


_EVEN: Final = "embed+2, 2*2, 2+head on 0..3"
_UNEVEN: Final = "embed+1, 3, 3, 1+head on 0..3"
_CHUNKS: Final = "embed+1, 1*6, 1+head on (0..3)*2"
_VEE: Final = "embed+1, 1*6, 1+head on 0..3, 3..0"
_APART: Final = "embed+2, 2+head on 0, 2"
_WITHIN: Final = "embed+2, 2+head on 0, 1"
_SLOW: Final = (200.0,) * HOSTS
_FAST: Final = (1000.0,) * HOSTS
_MIXED: Final = (140.0, 140.0, 70.0, 70.0)


def _settings() -> Mapping[str, Setting]:
    uniform, slow = "4 equal, 1 Gb/s", "4 equal, 200 Mb/s, 256 tokens"
    mixed, nodes = "2 fast and 2 slow, 1 Gb/s", "2 nodes of 2, 1 Gb/s within, 200 Mb/s between"
    heavy = {"mbit": _SLOW, "tokens": 256, "speeds": (200.0,) * HOSTS}
    narrow = {"mbit": _SLOW, "hidden": 256, "layers": 4, "speeds": (12.5,) * HOSTS}
    found = (
        Setting(name="1F1B", cluster=uniform, plan=_pipeline(_EVEN, "1f1b(main)"), mbit=_FAST),
        Setting(name="1F1B, uneven stages", cluster=uniform, plan=_pipeline(_UNEVEN, "1f1b(main)")),
        Setting(
            name="order found for uneven stages",
            cluster=uniform,
            plan=_pipeline(_UNEVEN, "table-search(main)"),
        ),
        Setting(name="GPipe", cluster=uniform, plan=_pipeline(_EVEN, "gpipe(main)")),
        Setting(
            name="interleaved, 2 chunks",
            cluster=uniform,
            plan=_pipeline(_CHUNKS, "interleaved-1f1b(main)"),
        ),
        Setting(name="ZB-H1", cluster=uniform, plan=_pipeline(_EVEN, "zb-h1(main)")),
        Setting(
            name="DP2 x PP2", cluster="4 equal, 200 Mb/s, narrow", plan=_replicas(_APART), **narrow
        ),
        Setting(
            name="DP2 x PP2, ZeRO-2",
            cluster="4 equal, 200 Mb/s, narrow",
            plan=_replicas(_APART, zero="zero all: all/all/1\n"),
            **narrow,
        ),
        Setting(
            name="1F1B, slow links", cluster=slow, plan=_pipeline(_EVEN, "1f1b(main)"), **heavy
        ),
        Setting(
            name="interleaved, slow links",
            cluster=slow,
            plan=_pipeline(_CHUNKS, "interleaved-1f1b(main)"),
            **heavy,
        ),
        Setting(name="ZB-V, slow links", cluster=slow, plan=_pipeline(_VEE, "zb-v(main)"), **heavy),
        Setting(
            name="even stages, mixed speeds",
            cluster=mixed,
            plan=_pipeline(_EVEN, "1f1b(main)"),
            speeds=_MIXED,
        ),
        Setting(
            name="stages by speed, mixed speeds",
            cluster=mixed,
            plan=_pipeline("embed+3, 3, 1, 1+head on 0..3", "1f1b(main)"),
            speeds=_MIXED,
        ),
        Setting(
            name="1F1B, slow between nodes",
            cluster=nodes,
            plan=_pipeline(_EVEN, "1f1b(main)"),
            mbit=_SLOW,
            near_mbit=1000.0,
        ),
        Setting(
            name="DP2 within nodes",
            cluster=f"{nodes}, narrow",
            plan=_replicas(_APART),
            near_mbit=1000.0,
            **narrow,
        ),
        Setting(
            name="DP2 across nodes",
            cluster=f"{nodes}, narrow",
            plan=_replicas(_WITHIN, stride=2),
            near_mbit=1000.0,
            **narrow,
        ),
    )
    return MappingProxyType({s.name: s for s in found})


SETTINGS: Final = _settings()
"""By name, in the order of the table."""
