"""Registry of the collective algorithms and of the libraries that provide them.

A new algorithm is one file and one line here.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Final

from shardwright.collectives.algorithm_costs.algorithm_protocol import (
    Collective,
    CollectiveAlgorithm,
)
from shardwright.errors import RuntimeModelError, nearest
from shardwright.registry import Registry

ALGORITHMS: Final = Registry[CollectiveAlgorithm](
    "collective algorithm",
    {
        "ring": "shardwright.collectives.algorithm_costs.ring:RING",
        "double_binary_tree": (
            "shardwright.collectives.algorithm_costs.double_binary_tree:DOUBLE_BINARY_TREE"
        ),
        "nvlink_sharp": (
            "shardwright.collectives.algorithm_costs.nvlink_sharp_all_reduce:NVLINK_SHARP"
        ),
        "hierarchical": "shardwright.collectives.algorithm_costs.hierarchical_rings:HIERARCHICAL",
        "halving_doubling": (
            "shardwright.collectives.algorithm_costs.halving_doubling:HALVING_DOUBLING"
        ),
        "torus_2d": "shardwright.collectives.algorithm_costs.logical_2d_torus_rings:TORUS_2D",
        "pairwise": (
            "shardwright.collectives.algorithm_costs.all_to_all_pairwise_hierarchical:PAIRWISE"
        ),
        "hierarchical_all_to_all": (
            "shardwright.collectives.algorithm_costs.all_to_all_pairwise_hierarchical:HIERARCHICAL"
        ),
        "flat": ("shardwright.collectives.algorithm_costs.broadcast_scatter_gather_trees:FLAT"),
        "binomial_tree": (
            "shardwright.collectives.algorithm_costs.broadcast_scatter_gather_trees:BINOMIAL"
        ),
        "send": "shardwright.collectives.algorithm_costs.point_to_point:SEND",
        "tree": "shardwright.collectives.algorithm_costs.spanning_tree_all_reduce:TREE",
        "forest": "shardwright.collectives.algorithm_costs.spanning_tree_all_reduce:FOREST",
        "paired": "shardwright.collectives.algorithm_costs.spanning_tree_all_reduce:PAIRED",
        "straggler": "shardwright.collectives.algorithm_costs.straggler_aware_all_reduce:STRAGGLER",
        "one_shot": "shardwright.collectives.algorithm_costs.engine_all_reduce:ONE_SHOT",
        "two_shot": "shardwright.collectives.algorithm_costs.engine_all_reduce:TWO_SHOT",
        "multimem": "shardwright.collectives.algorithm_costs.engine_all_reduce:MULTIMEM",
        "low_latency": (
            "shardwright.collectives.algorithm_costs.serving_engine_token_all_to_all:LOW_LATENCY"
        ),
        "one_sided": (
            "shardwright.collectives.algorithm_costs.serving_engine_token_all_to_all:ONE_SIDED"
        ),
    },
    error=RuntimeModelError,
)
# Schedules of single messages, made for one group: only a library that runs given schedules has
# these.
SCHEDULED: Final = ("tree", "forest", "paired", "straggler")
# Kernels of serving engines, for sums and exchanges inside an island of a few megabytes.
ENGINE_ALGORITHMS: Final = ("one_shot", "two_shot", "multimem", "low_latency", "one_sided")
_NCCL: Final = ("ring", "double_binary_tree", "nvlink_sharp", "pairwise", "flat", "send")

ENGINES: Final = ("vllm", "sglang", "trtllm")

# What each library runs when nothing is tuned by hand. NCCL: src/graph/tuning.cc (ring, tree, NVLS)
# and src/enqueue.cc, where rooted collectives other than broadcast and all_to_all are grouped
# sends; its PAT (one device a node) and CollNet are not here. Messages:
# `execute.transport.collectives_as_messages` cuts a sum in even shares that go straight to their
# owners and back, which is the ring's bytes (and in place of its n - 1 hops one round, which the
# ring's latency is never below). Synthesised: MSCCL runs schedules that are written for a group on
# NCCL's transports, and what it has no schedule for as NCCL does
# (github.com/Azure/msccl-executor-nccl). Engines sum by one and two shots where that is faster
# than NCCL; with their option of multimem (symmetric memory) by the switch too. DeepEP and
# one-sided exchanges are libraries of their own, beside NCCL.
LIBRARIES: Final = MappingProxyType(
    {
        "any": tuple(name for name in ALGORITHMS if name not in (*SCHEDULED, *ENGINE_ALGORITHMS)),
        "nccl": _NCCL,
        "synthesised": _NCCL + SCHEDULED,
        "messages": ("ring", "pairwise", "flat", "send"),
        **dict.fromkeys(ENGINES, (*_NCCL, "one_shot", "two_shot")),
        **{
            f"{engine}-multimem": (*_NCCL, "one_shot", "two_shot", "multimem") for engine in ENGINES
        },
        "deepep": (*(name for name in _NCCL if name != "pairwise"), "low_latency"),
        "one-sided": (*(name for name in _NCCL if name != "pairwise"), "pairwise", "one_sided"),
    }
)

# A library's algorithms for a kind, where they are fewer than its algorithms could serve: NCCL
# broadcasts along its ring only (src/enqueue.cc, from memory).
ALGORITHMS_OF_KIND: Final = MappingProxyType(
    {(library, Collective.BROADCAST): ("ring",) for library in ("nccl", "synthesised")}
)

# Libraries that call NCCL for the collectives for which they have no algorithm: NCCL's buffers are
# allocated, and inside an island its kernels run.
OWN_KERNELS: Final = (
    *ENGINES,
    *(f"{engine}-multimem" for engine in ENGINES),
    "deepep",
    "one-sided",
)
CALL_NCCL: Final = ("nccl", "synthesised", *OWN_KERNELS)


@cache
def algorithm_named(name: str) -> CollectiveAlgorithm:
    """The registered collective algorithm with this name."""
    return ALGORITHMS.load(name)


@cache
def algorithms_for(kind: Collective, *, library: str = "any") -> tuple[CollectiveAlgorithm, ...]:
    """Algorithms of a library that can run `kind`, in order; RuntimeModelError if it is unknown.

    Ties go to the first.
    """
    if library not in LIBRARIES:
        raise RuntimeModelError(
            f"unknown collective library {library!r}", hint=nearest(library, LIBRARIES)
        )
    names = ALGORITHMS_OF_KIND.get((library, kind), LIBRARIES[library])
    return tuple(algorithm for algorithm in map(algorithm_named, names) if kind in algorithm.kinds)
