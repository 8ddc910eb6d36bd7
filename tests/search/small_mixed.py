"""Small mixed problems for tests of searches: a few nodes of a few kinds, a dense model, and the
same with a node or bandwidth more."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.hardware.cluster import Cluster, FabricTier, NodeGroup, NodeKind
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.link_and_network_tier import Link
from shardwright.hardware.zone_link_record_and_price_checks import ZoneLink
from shardwright.job.training_job_from_flags import job_from_flags
from shardwright.model.blocks.dense_blocks import decoder_block, embedding_block, head_block
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import AttentionShape
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime

KINDS = ("h100-sxm", "a100-sxm-80gb", "a100-sxm-40gb", "v100-sxm-32gb")
RUNTIMES = ("megatron-core", "megatron-2022", "megatron-bridge")


def chain(generator: Random, *, layers: int) -> Model:
    """A dense chain that shares no weights."""
    heads, head_dim = generator.choice((8, 16, 32)), generator.choice((64, 128))
    hidden, vocab = heads * head_dim, generator.choice((1000, 32000))
    attention = AttentionShape(heads=heads, kv_heads=heads, head_dim=head_dim, value_dim=head_dim)
    layer = decoder_block(
        "layer", hidden=hidden, attention=attention, ffn=4 * hidden, gated=generator.random() < 0.5
    )
    return Model(
        name="drawn",
        blocks=(
            embedding_block(hidden=hidden, vocab=vocab),
            layer,
            head_block(hidden=hidden, vocab=vocab, tied=False),
        ),
        runs=(
            Run(name="embed", block=0, count=1, inputs=()),
            Run(name="layers", block=1, count=layers, inputs=("embed",)),
            Run(name="head", block=2, count=1, inputs=("layers",)),
        ),
        hidden=hidden,
        vocab=vocab,
    )


def drawn_mixed(
    generator: Random,
    *,
    most: int,
    layers: tuple[int, ...],
    batch: int,
    kinds: tuple[int, ...] = (2, 3),
) -> Problem:
    """A problem on up to `most` devices of two or three kinds, each kind in one node group of one
    zone."""
    while True:
        chosen = generator.sample(KINDS, generator.choice(kinds))
        groups = []
        for name in chosen:
            (node,) = parse_cluster(f"{name}:{generator.choice((1, 1, 2, 2, 4))}").groups
            groups.append(replace(node, count=generator.choice((1, 1, 1, 2, 3))))
        cluster = _named(tuple(groups))
        if 2 <= cluster.num_devices <= most:
            return Problem(
                model=chain(generator, layers=generator.choice(layers)),
                cluster=cluster,
                job=job_from_flags(
                    seq_len=generator.choice((256, 1024, 4096)),
                    global_batch=batch,
                    precision="fp16",
                ),
                runtime=load_runtime(generator.choice(RUNTIMES)),
            )


def zoned(problem: Problem, generator: Random) -> Problem:
    """The problem with each node group in a zone of its own, and links of 5 to 100 Gbit/s and 1 to
    40 ms, each direction by itself."""
    groups = tuple(
        replace(group, zone=f"zone{number}") for number, group in enumerate(problem.cluster.groups)
    )
    links = tuple(
        ZoneLink(
            source=source,
            target=target,
            link=Link(
                latency_s=generator.choice((1e-3, 10e-3, 40e-3)),
                bandwidth=generator.choice((5, 25, 100)) * 1e9 / 8,
                efficiency=1.0,
                origin=Origin(evidence=Evidence.ASSUMED, reference="drawn"),
            ),
        )
        for source, target in permutations([group.zone for group in groups], 2)
    )
    return replace(problem, cluster=replace(problem.cluster, groups=groups, links=links))


def with_one_card(problem: Problem) -> Problem:
    """The problem with one card in each node, which its devices share."""
    groups = tuple(
        replace(group, kind=replace(group.kind, nics=1)) for group in problem.cluster.groups
    )
    return replace(problem, cluster=replace(problem.cluster, groups=groups))


def _named(groups: tuple[NodeGroup, ...]) -> Cluster:
    names = (
        f"{group.count} x {group.kind.num_devices} {group.kind.accelerator.name}"
        for group in groups
    )
    return Cluster(expression=" + ".join(names), groups=groups)


def grown(problem: Problem, generator: Random) -> Problem:
    """The problem with one more node of one of its kinds."""
    groups = problem.cluster.groups
    place = generator.randrange(len(groups))
    more = replace(groups[place], count=groups[place].count + 1)
    return replace(problem, cluster=_named((*groups[:place], more, *groups[place + 1 :])))


def faster(cluster: Cluster, by: float, *, inside: bool = False) -> Cluster:
    """The cluster with more bandwidth between nodes and zones; `inside`: inside nodes too."""

    def link(one: Link) -> Link:
        return replace(
            one, bandwidth=one.bandwidth * by, reverse_bandwidth=one.reverse_bandwidth * by
        )

    def kind(one: NodeKind) -> NodeKind:
        return replace(
            one, nic=link(one.nic), scale_up=link(one.scale_up) if inside else one.scale_up
        )

    groups = tuple(replace(group, kind=kind(group.kind)) for group in cluster.groups)
    return replace(
        cluster,
        groups=groups,
        links=tuple(replace(wide, link=link(wide.link)) for wide in cluster.links),
    )


def tiered(problem: Problem) -> Problem:
    """The problem with switches of 4 devices below a spine that is half as fast as their cards."""
    spine = FabricTier(name="spine", num_devices=0, oversubscription=2.0, latency_s=4e-6)
    fabric = (FabricTier(name="leaf", num_devices=4, latency_s=1e-6), spine)
    return replace(problem, cluster=replace(problem.cluster, fabric=fabric))


def with_a_faster_link(cluster: Cluster, generator: Random) -> tuple[Cluster, str]:
    """The cluster with more bandwidth, or less latency, of one link: cards or insides of the nodes
    of a group, a tier of switches, or one zone to another; and what was changed in words.
    """
    by = generator.choice((1.01, 1.5, 2.0, 10.0))
    sooner = generator.random() < 0.3
    places = [("nic", n) for n in range(len(cluster.groups))] + [
        ("scale_up", n) for n in range(len(cluster.groups))
    ]
    places += [("tier", n) for n in range(len(cluster.fabric))] + [
        ("zones", n) for n in range(len(cluster.links))
    ] * 2
    what, place = generator.choice(places)

    def link(one: Link) -> Link:
        if sooner:
            return replace(one, latency_s=one.latency_s / by)
        return replace(
            one, bandwidth=one.bandwidth * by, reverse_bandwidth=one.reverse_bandwidth * by
        )

    groups, tiers, wide = list(cluster.groups), list(cluster.fabric), list(cluster.links)
    if what == "tier":
        tier = tiers[place]
        wider = max(tier.oversubscription / by, 1.0)
        tiers[place] = (
            replace(tier, latency_s=tier.latency_s / by)
            if sooner
            else replace(tier, oversubscription=wider)
        )
    elif what == "zones":
        wide[place] = replace(wide[place], link=link(wide[place].link))
    else:
        kind = groups[place].kind
        groups[place] = replace(
            groups[place], kind=replace(kind, **{what: link(getattr(kind, what))})
        )
    changed = replace(cluster, groups=tuple(groups), fabric=tuple(tiers), links=tuple(wide))
    return changed, f"{what} {place} {'latency' if sooner else 'bandwidth'} by {by:g}"
