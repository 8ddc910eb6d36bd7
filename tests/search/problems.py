"""Small random problems and spaces: every member can be simulated."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import prod

from shardwright.hardware.cluster import FabricTier
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.model.blocks.dense_blocks import decoder_block, embedding_block, head_block
from shardwright.model.blocks.dense_transformer_operators import attention_operators, norm, residual
from shardwright.model.blocks.expert_blocks import moe_operators
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import AttentionShape, ExpertShape
from shardwright.program.strategy_rule_violations import facts_of
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.grid.members.enumerate_members import Members, enumerate_members
from shardwright.search.grid.members.grid_search_space import Space, on_all_devices
from shardwright.search.grid.members.legal_degrees_and_axis_orders import idle_meshes
from shardwright.search.grid.members.standard_and_exhaustive_space import (
    exhaustive_space,
    standard_space,
)
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.jobs import training_job

RUNTIMES = ("megatron-core", "torchtitan", "fsdp1", "megatron-2022", "deepspeed", "derived")
DEVICES = ("h100-sxm", "a100-sxm-80gb", "b200-sxm", "l40s", "mi300x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    problem: Problem
    facts: GridFacts
    space: Space


def small_model(generator: random.Random) -> Model:
    """A dense chain, one of layers with experts, or one that begins dense; 2-8 layers."""
    heads = generator.choice((4, 8, 32))
    kv_heads = generator.choice((heads, heads // 2, 2))
    head_dim, layers = generator.choice((16, 64, 128)), generator.randint(2, 8)
    hidden, vocab = heads * head_dim, generator.choice((1000, 32000))
    ffn = generator.choice((2, 4)) * hidden
    attention = AttentionShape(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim
    )
    tied = generator.random() < 0.3
    dense = decoder_block(
        "layer", hidden=hidden, attention=attention, ffn=ffn, gated=generator.random() < 0.5
    )
    blocks = [
        embedding_block(hidden=hidden, vocab=vocab),
        dense,
        head_block(hidden=hidden, vocab=vocab, tied=tied),
    ]
    kind = generator.choice(("dense", "dense", "experts", "mixed"))
    counts = [("layers", 1, layers)]
    if kind != "dense":
        shape = ExpertShape(experts=generator.choice((4, 8)), topk=2)
        routed = moe_operators(
            source="norm2",
            hidden=hidden,
            ffn=hidden,
            experts=shape,
            shared_ffn=generator.choice((0, hidden)),
        )
        blocks.append(
            Block(
                name="sparse",
                operators=(
                    norm("norm1", source=INPUT, hidden=hidden),
                    *attention_operators(source="norm1", hidden=hidden, shape=attention),
                    residual("residual1", source="proj", skip=INPUT, hidden=hidden),
                    norm("norm2", source="residual1", hidden=hidden),
                    *routed,
                    residual("residual2", source=routed[-1].name, skip="residual1", hidden=hidden),
                ),
            )
        )
        counts = (
            [("sparse", 3, layers)]
            if kind == "experts"
            else [("layers", 1, 1), ("sparse", 3, layers - 1)]
        )
        if kind == "experts":
            blocks[1] = blocks.pop()
            counts = [("sparse", 1, layers)]
    runs, before = [Run(name="embed", block=0, count=1)], "embed"
    for name, block, number in counts:
        runs.append(Run(name=name, block=block, count=number, inputs=(before,)))
        before = name
    runs.append(Run(name="head", block=2, count=1, inputs=(before,)))
    return Model(
        name=kind,
        architecture="Small",
        blocks=tuple(blocks),
        runs=tuple(runs),
        hidden=hidden,
        vocab=vocab,
    )


def runtime_called(name: str) -> Runtime:
    """A runtime of the catalog, or Megatron-Core with GPipe and blocking sends."""
    if name != "derived":
        return load_runtime(name)
    return replace(
        load_runtime("megatron-core"),
        name="derived",
        schedules=("gpipe", "1f1b", "interleaved-1f1b"),
        overlap_p2p=False,
    )


NODES = (2, 4, 8)
DOMAINS = (6, 12)
"""Islands that groups of a power of two do not divide."""


def small_problem(generator: random.Random, *, nodes: tuple[int, ...] = NODES) -> Problem:
    model = small_model(generator)
    node = generator.choice(nodes)
    devices = node * generator.choice(
        [n for n in (1, 2, 4, 3) if n * node <= max(16, 2 * max(nodes))]
    )
    cluster = parse_cluster(f"{generator.choice(DEVICES)}:8")
    group = cluster.groups[0]
    kind = replace(group.kind, num_devices=node, island=node, nics=min(group.kind.nics, node))
    fabric: tuple[FabricTier, ...] = ()
    if devices > 2 * node and generator.random() < 0.3:
        fabric = (
            FabricTier(name="leaf", num_devices=2 * node),
            FabricTier(name="spine", num_devices=0, oversubscription=2.0, latency_s=2e-6),
        )
    cluster = replace(
        cluster, groups=(replace(group, kind=kind, count=devices // node),), fabric=fabric
    )
    batch = devices * generator.choice((1, 1, 2, 4)) if generator.random() < 0.8 else 12
    job = training_job(seq_len=generator.choice((512, 2048, 4096)), global_batch=batch)
    return Problem(
        model=model, cluster=cluster, job=job, runtime=runtime_called(generator.choice(RUNTIMES))
    )


def thinned(space: Space, generator: random.Random, *, most: int) -> Space:
    """A random part of a space with at most `most` raw values combined; the plainest value of an
    axis mostly stays."""
    values = {axis: list(options) for axis, options in space.values}
    values["recompute_layers"].sort()
    while prod(map(len, values.values())) > most:
        axis = generator.choice([a for a, options in values.items() if len(options) > 1])
        values[axis].pop(generator.randrange(generator.random() < 0.97, len(values[axis])))
    return replace(space, values=tuple((axis, tuple(values[axis])) for axis, _ in space.values))


def small_case(seed: int, *, most: int = 3000, nodes: tuple[int, ...] = NODES) -> Case:
    generator = random.Random(seed)
    problem = small_problem(generator, nodes=nodes)
    facts = facts_of(problem)
    whole = generator.choice((standard_space, exhaustive_space))(problem, facts)
    space = thinned(whole, generator, most=most)
    return Case(
        problem=problem,
        facts=facts,
        space=space if generator.random() < 0.5 else on_all_devices(space),
    )


def every_member(problem: Problem, space: Space, facts: GridFacts) -> tuple[Members, ...]:
    """Members on all devices, and those that leave some idle."""
    return enumerate_members(problem, space, facts), enumerate_members(
        problem, space, facts, meshes=idle_meshes(space, facts)
    )


def real_problem(
    model: str,
    cluster: str,
    *,
    seq_len: int,
    global_batch: int,
    runtime: str = "megatron-core",
    precision: str = "bf16",
) -> Problem:
    """A problem of the catalog."""
    return Problem(
        model=load_model(model),
        cluster=parse_cluster(cluster),
        job=job_from_flags(seq_len=seq_len, global_batch=global_batch, precision=precision),
        runtime=load_runtime(runtime),
    )


def llama_405b() -> Case:
    """Llama 3.1 405B on 16,384 H100."""
    problem = real_problem("llama-3.1-405b", "h100-sxm:16384", seq_len=8192, global_batch=2048)
    facts = facts_of(problem)
    return Case(problem=problem, facts=facts, space=standard_space(problem, facts))


def gpt3_175b() -> Case:
    """GPT-3 175B on 4,096 A100, every choice that the planner knows."""
    problem = real_problem("gpt3-175b", "a100-sxm-80gb:4096", seq_len=2048, global_batch=1536)
    facts = facts_of(problem)
    return Case(problem=problem, facts=facts, space=exhaustive_space(problem, facts))


def only(space: Space, grid: Grid) -> Space:
    """The part of a space with this grid alone."""
    values: dict[str, int | str] = {
        "tp": grid.tp,
        "cp": grid.cp,
        "pp": grid.pp,
        "order": "-".join(grid.order),
        "ep": grid.ep,
        "etp": grid.etp,
        "sp": int(grid.sp),
        "ulysses": grid.ulysses,
        "gather": int(grid.gather),
        "mbs": grid.microbatch,
        "vpp": grid.vpp,
        "schedule": grid.schedule,
        "zero": grid.zero,
        "shard": grid.shard,
        "recompute": grid.recompute.value,
        "recompute_layers": grid.recompute_layers,
        "offload": grid.offload,
    }
    kept = tuple((axis, (values[axis],)) for axis, _ in space.values)
    return replace(space, values=kept, first=grid.first, last=grid.last, modules=(grid.options,))
