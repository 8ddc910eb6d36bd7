"""Small models, degrees and random scripts of iterations, and how a server is held against the
unsplit model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from random import Random

import torch

from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.proof.model_with_divided_widths import narrower_model
from shardwright.execute.proof.proof_result import TOLERANCE
from shardwright.execute.serve.iterations_on_workers import Server, TaskRunner, create_server
from shardwright.execute.serve.padded_iteration_rows import RequestPart
from shardwright.execute.serve.remove_prediction_modules_and_check_model import served_model
from shardwright.execute.serve.serving_worker import CacheSize
from shardwright.execute.serve.undivided_model_logits import unsplit_logits
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan
from tests.execute.published_configs import PUBLISHED
from tests.execute.small_models import small_model
from tests.strategy.zoo_models import dense, sparse
from tests.tiers import many

SEED = 3


def twice(name: str) -> Model:
    """A small catalog model whose layers are each there twice."""
    model = small_model(name)
    return replace(
        model,
        runs=tuple(
            replace(run, count=2 if run.name.startswith("layers") else 1) for run in model.runs
        ),
    )


FAMILIES: dict[str, Callable[[], Model]] = {
    "grouped queries": lambda: narrower_model(dense(layers=2)),
    "latent": partial(small_model, "deepseek-v2-lite"),
    "latent queries": partial(small_model, "deepseek-v3"),
    "experts": lambda: narrower_model(sparse(dense_layers=1, layers=1)),
    "sliding window": partial(twice, "mistral-7b"),
    "windows, sinks and experts": partial(small_model, "gpt-oss-20b"),
    "chunked attention": partial(small_model, "llama-4-scout-text"),
    "two widths of head": lambda: model_from_config(PUBLISHED["gemma4"], name="gemma"),
    "soft caps": partial(small_model, "gemma-2-2b"),
    "mamba-2": partial(twice, "mamba-codestral-7b"),
    "mamba-2 beside attention": partial(small_model, "falcon-h1-7b"),
    "mamba-2, attention and experts": partial(small_model, "nemotron-3-nano"),
    "mamba-1 and attention": partial(small_model, "jamba-v0.1"),
    "delta rule": partial(small_model, "qwen3-next-80b-a3b"),
    "biased by distance": partial(small_model, "bloom-7b1"),
    "learned positions": partial(small_model, "gpt2"),
}
Degrees = Mapping[str, int]


@lru_cache(maxsize=32)
def family(name: str) -> Model:
    return served_model(FAMILIES[name]())


def plan(model: Model, degrees: Degrees) -> Plan:
    grid = Grid(**degrees)
    return plan_of(grid, model=model, global_batch=grid.dp)


def texts(model: Model, *, lengths: Sequence[int], seed: int = 1) -> dict[int, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        r: torch.randint(0, model.vocab, (n,), generator=generator).tolist()
        for r, n in enumerate(lengths)
    }


def tiny(
    model: Model, degrees: Sequence[Degrees], known: Mapping[int, Sequence[int]], **more: object
) -> Server:
    """A server whose requests have their whole text from the start."""
    plans = [plan(model, one) for one in degrees]
    answers: dict[int, list[int]] = {r: [] for r in known}
    return create_server(
        model, plans, prompts=known, answers=answers, source=seeded(model, seed=SEED), **more
    )  # type: ignore[arg-type]


def moving(run_tasks: TaskRunner | None = None, here: frozenset[int] | None = None) -> Server:
    """Greedy requests that go from a worker of two devices to one of two other ones, and one of
    them back."""
    model = family("experts")
    plans = [plan(model, {"tp": 2, "ep": 2}), plan(model, {"pp": 2})]
    served = create_server(
        model,
        plans,
        prompts=texts(model, lengths=(5, 4)),
        source=seeded(model, seed=SEED),
        run_tasks=run_tasks,
        local_devices=here,
    )

    def iterate(worker: int, *parts: tuple[int, int, int]) -> None:
        served.iterate(
            worker,
            [
                [
                    RequestPart(request=request, tokens=tokens, past=past)
                    for request, tokens, past in parts
                ]
            ],
        )

    iterate(0, (0, 5, 0), (1, 2, 0))
    served.send(0, source=0, target=1)
    served.store_sent_cache(1, 0, end=5)
    iterate(1, (0, 1, 5))
    iterate(0, (1, 2, 2))
    served.send(1, source=0, target=1)
    served.store_sent_cache(1, 1, end=4)
    iterate(1, (0, 1, 6), (1, 1, 4))
    served.send(0, source=1, target=0)
    served.store_sent_cache(0, 0, end=7)
    iterate(0, (0, 1, 7))
    return served


@dataclass(slots=True)
class _Place:
    """Where a request is, and how much of it is cached there."""

    worker: int
    rank: int
    cached: int = 0


@dataclass(slots=True)
class Script:
    """A random way to serve all of some texts: unlike parts beside each other, evictions, moves
    between workers."""

    random: Random
    lengths: Sequence[int]
    ranks: Sequence[int]
    places: dict[int, _Place] = field(default_factory=dict)

    def run(self, served: Server) -> None:
        for request in range(len(self.lengths)):
            self.places[request] = _Place(worker=0, rank=self.random.randrange(self.ranks[0]))
        while left := [r for r, p in self.places.items() if p.cached < self.lengths[r]]:
            chosen = self.random.choice(left)
            self._move(served, chosen)
            place = self.places[chosen]
            if place.cached and self.random.random() < 0.15:
                served.release(place.worker, chosen, rank=place.rank)
                place.cached = 0
            self._iterate(served, place.worker, left)

    def _move(self, served: Server, request: int) -> None:
        place = self.places[request]
        if len(self.ranks) == 1 or self.random.random() < 0.6:
            return
        other, rank = 1 - place.worker, self.random.randrange(self.ranks[1 - place.worker])
        if place.cached:
            served.send(request, source=place.worker, target=other, ranks=(place.rank, rank))
            served.store_sent_cache(other, request, end=place.cached, rank=rank)
        self.places[request] = _Place(worker=other, rank=rank, cached=place.cached)

    def _iterate(self, served: Server, worker: int, left: Sequence[int]) -> None:
        here = [r for r in left if self.places[r].worker == worker and self.random.random() < 0.8]
        ranks: list[list[RequestPart]] = [[] for _ in range(self.ranks[worker])]
        for request in here:
            place = self.places[request]
            most = self.lengths[request] - place.cached
            tokens = min(most, self.random.choice((1, 1, 2, 5, 9)))
            ranks[place.rank].append(RequestPart(request=request, tokens=tokens, past=place.cached))
            place.cached += tokens
        if here:
            served.iterate(worker, ranks)


def worst(served: Server) -> float:
    """Largest difference of any logit, whenever it was computed, from the unsplit model's; every
    position was computed."""
    found = 0.0
    for request, text in served.tokens.items():
        whole = unsplit_logits(
            served.workers[0].model, text, source=seeded(served.workers[0].model, seed=SEED)
        )
        known = served.logits[request]
        assert sorted(known) == list(range(max(known) + 1))
        for position, computed in known.items():
            for logits in computed:
                difference = float((logits - whole[position]).abs().max())
                assert difference <= TOLERANCE, (
                    f"request {request}, position {position}: {difference:.1e}"
                )
                found = max(found, difference)
    return found


def random_case(name: str, degrees: Sequence[Degrees], random: Random) -> None:
    """A family under degrees, served by a random script and held against the unsplit model."""
    model = family(name)
    lengths = [random.randint(4, many(12, 17)) for _ in range(many(2, 3))]
    size = CacheSize(blocks=64, block_tokens=random.randint(1, 5))
    served = tiny(
        model, degrees, texts(model, lengths=lengths), size=size, sizes=random.choice(((), (4, 8)))
    )
    Script(random=random, lengths=lengths, ranks=[one.get("dp", 1) for one in degrees]).run(served)
    for request, length in enumerate(lengths):
        assert sorted(served.logits[request]) == list(range(length))
    worst(served)


EXPERTS = frozenset(
    {
        "latent",
        "latent queries",
        "experts",
        "windows, sinks and experts",
        "chunked attention",
        "mamba-2, attention and experts",
        "delta rule",
    }
)
"""Families with routed experts."""
DEGREES: tuple[tuple[Degrees, ...], ...] = (
    *(({},), ({"tp": 2},), ({"pp": 2},), ({"tp": 2, "pp": 2},), ({"dp": 2},)),
    *(({"tp": 2}, {}), ({}, {"tp": 2}), ({"tp": 2, "pp": 2}, {"dp": 2}), ({"tp": 4}, {"tp": 2})),
)
OF_EXPERTS: tuple[tuple[Degrees, ...], ...] = (
    ({"tp": 2, "ep": 2},),
    ({"dp": 2, "ep": 2},),
    ({"dp": 2, "tp": 2, "ep": 2, "etp": 2},),
)
EVERY = [
    (name, degrees)
    for name in FAMILIES
    for degrees in (*DEGREES, *(OF_EXPERTS if name in EXPERTS else ()))
]
"""All families under all degrees that they have a use for."""
