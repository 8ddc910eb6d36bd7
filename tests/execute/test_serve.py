"""A tiny server gives the logits of the unsplit model: any parts beside each other, in any order,
evicted and moved."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.serve.cached_operators import LatentReads
from shardwright.execute.serve.kv_cache_blocks import CacheBlockTables, KeyReach
from shardwright.execute.serve.padded_iteration_rows import RequestPart, padded_rows
from shardwright.execute.serve.remove_prediction_modules_and_check_model import require_served
from shardwright.execute.serve.serving_worker import CacheSize
from shardwright.execute.serve.undivided_model_logits import unsplit_logits
from shardwright.model.decode_state import Lifetime, decode_states
from shardwright.model.ir.numerical_constants import DynamicRotary, Longer, LongRotary
from tests.execute.served import (
    EVERY,
    FAMILIES,
    SEED,
    Degrees,
    family,
    moving,
    random_case,
    texts,
    tiny,
    worst,
)
from tests.execute.small_models import small_model
from tests.tiers import random_of, seeds

SOME: dict[str, tuple[str, tuple[Degrees, ...]]] = {
    "grouped queries tp2 pp2": ("grouped queries", ({"tp": 2, "pp": 2},)),
    "grouped queries tp2 to one and back": ("grouped queries", ({"tp": 2}, {})),
    "latent tp2": ("latent", ({"tp": 2},)),
    "latent one to tp2 and back": ("latent", ({}, {"tp": 2})),
    "experts tp2 ep2": ("experts", ({"tp": 2, "ep": 2},)),
    "experts dp2 ep2": ("experts", ({"dp": 2, "ep": 2},)),
    "sliding window pp2": ("sliding window", ({"pp": 2},)),
    "sliding window tp2 to one and back": ("sliding window", ({"tp": 2}, {})),
    "windows, sinks and experts ep2": ("windows, sinks and experts", ({"tp": 2, "ep": 2},)),
    "mamba-2 tp2": ("mamba-2", ({"tp": 2},)),
    "mamba-2 beside attention tp2 to one and back": ("mamba-2 beside attention", ({"tp": 2}, {})),
    "delta rule": ("delta rule", ({},)),
    "two widths of head tp2 to one and back": ("two widths of head", ({"tp": 2}, {})),
    "chunked attention": ("chunked attention", ({},)),
}


LONG = LongRotary(short=(1.0, 1.2), long=(1.0, 2.0), trained=6.0, scale=1.1)


def _part(request: int, tokens: int, past: int) -> RequestPart:
    return RequestPart(request=request, tokens=tokens, past=past)


COVERED = {
    "grouped queries tp2 to one and back",
    "latent tp2",
    "experts dp2 ep2",
    "sliding window pp2",
    "mamba-2 tp2",
}
"""Whose families and degrees others have: the proofs of every family have them."""


@pytest.mark.parametrize("name", [name for name in SOME if name not in COVERED])
def test_any_way_to_serve_gives_the_logits_of_the_unsplit_model(name: str) -> None:
    chosen, degrees = SOME[name]
    random_case(chosen, degrees, random_of(name))


@pytest.mark.proof
@pytest.mark.parametrize("case", EVERY, ids=str)
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_every_family_under_every_degree_gives_the_logits_of_the_unsplit_model(
    case: tuple[str, tuple[Degrees, ...]], seed: int
) -> None:
    name, degrees = case
    random_case(name, degrees, random_of(f"{case} {seed}"))


@pytest.mark.parametrize("absorb", LatentReads)
def test_latents_absorbed_or_expanded_give_the_same(absorb: LatentReads) -> None:
    model = family("latent")
    served = tiny(model, ({"tp": 2},), texts(model, lengths=(9,)), absorb=absorb)
    for part in (_part(0, 4, 0), _part(0, 1, 4), _part(0, 3, 5), _part(0, 1, 8)):
        served.iterate(0, [[part]])
    worst(served)


def test_greedy_answers_are_the_most_likely_tokens_of_the_unsplit_model() -> None:
    served = moving()
    assert [len(tokens) for tokens in served.tokens.values()] == [9, 6]
    for request, prompt in ((0, 5), (1, 4)):
        tokens = served.tokens[request]
        whole = unsplit_logits(
            served.workers[0].model, tokens, source=seeded(served.workers[0].model, seed=SEED)
        )
        assert tokens[prompt:] == whole[prompt - 1 : -1].argmax(-1).tolist()
    worst(served)


@pytest.mark.parametrize(
    ("name", "longer"),
    [("grouped queries", LONG), ("latent", DynamicRotary(factor=2.0, trained=6.0))],
)
def test_positions_that_differ_with_the_sequences_length_are_served_up_to_it(
    name: str, longer: Longer
) -> None:
    """Keys in the cache would have to be turned again."""
    model = family(name)
    model = replace(model, settings=replace(model.settings, longer=longer))
    served = tiny(model, ({},), texts(model, lengths=(6,)))
    for part in (_part(0, 4, 0), _part(0, 2, 4)):
        served.iterate(0, [[part]])
    worst(served)
    served = tiny(model, ({},), texts(model, lengths=(7,)))
    served.iterate(0, [[_part(0, 6, 0)]])
    with pytest.raises(StrategyError, match="beyond 6 "):
        served.iterate(0, [[_part(0, 1, 6)]])


def test_computed_anew_the_logits_are_the_same_again() -> None:
    model = family("mamba-2 beside attention")
    served = tiny(model, ({},), texts(model, lengths=(7, 6)))
    served.iterate(0, [[_part(0, 5, 0), _part(1, 6, 0)]])
    served.release(0, 0)
    served.iterate(0, [[_part(0, 3, 0)]])
    served.iterate(0, [[_part(0, 4, 3)]])
    assert [len(times) for times in served.logits[0].values()] == [2] * 5 + [1] * 2
    worst(served)


def test_blocks_of_a_window_are_given_back_as_it_slides() -> None:
    model = family("windows, sinks and experts")
    served = tiny(
        model, ({},), texts(model, lengths=(17,)), size=CacheSize(blocks=9, block_tokens=2)
    )
    tables = served.workers[0].tables[0]
    for past in range(0, 16, 2):
        served.iterate(0, [[_part(0, 2, past)]])
    assert sorted(
        (reach.window, tables.blocks - len(tables.free[reach])) for reach in tables.reaches
    ) == [(0, 8), (3, 2)]
    served.release(0, 0)
    assert [len(tables.free[reach]) for reach in tables.reaches] == [9, 9]


@pytest.mark.parametrize("name", FAMILIES)
def test_devices_keep_what_the_model_says_that_lives(name: str) -> None:
    model = family(name)
    served = tiny(
        model, ({"tp": 2},), texts(model, lengths=(5,)), size=CacheSize(blocks=8, block_tokens=4)
    )
    served.iterate(0, [[_part(0, 5, 0)]])
    for cache in served.workers[0].caches.values():
        for number, run in enumerate(model.runs):
            lives = decode_states(model.blocks[run.block])
            by_token = sum(
                page.shape[-1] for (_, spot), page in cache.pages.items() if spot.run == number
            )
            by_sequence = sum(
                state.numel() for (_, spot), state in cache.states.items() if spot.run == number
            )
            assert by_token == run.count * sum(
                one.elements(2) for one in lives if one.lifetime is Lifetime.TOKEN
            )
            assert by_sequence == run.count * sum(
                one.elements(2) for one in lives if one.lifetime is Lifetime.SEQUENCE
            )


def test_what_is_given_back_is_not_read_again() -> None:
    model = family("grouped queries")
    served = tiny(model, ({},), texts(model, lengths=(6, 6)))
    served.iterate(0, [[_part(0, 4, 0)]])
    held = next(iter(served.workers[0].tables[0].held.values())).blocks[0]
    pages = list(served.workers[0].caches[0].pages.values())
    assert not any(page[held].isnan().any() for page in pages)
    served.release(0, 0)
    assert all(page[held].isnan().all() for page in pages)


def test_a_lost_block_and_swapped_tables_are_seen() -> None:
    model = family("grouped queries")
    served = tiny(model, ({},), texts(model, lengths=(6, 6)))
    served.iterate(0, [[_part(0, 4, 0), _part(1, 4, 0)]])
    held = served.workers[0].tables[0].held
    (reach,) = served.workers[0].tables[0].reaches
    held[reach, 0], held[reach, 1] = held[reach, 1], held[reach, 0]
    served.iterate(0, [[_part(0, 1, 4)]])
    with pytest.raises(AssertionError, match="position 4"):
        worst(served)


def test_who_goes_on_elsewhere_than_the_cache_ends_is_refused() -> None:
    model = family("grouped queries")
    served = tiny(model, ({},), texts(model, lengths=(6,)))
    served.iterate(0, [[_part(0, 3, 0)]])
    for past in (0, 2, 4):
        with pytest.raises(StrategyError) as error:
            served.iterate(0, [[_part(0, 1, past)]])
        assert error.value.rule == "serve.past"


def test_a_full_cache_and_unknown_tokens_are_refused() -> None:
    model = family("grouped queries")
    served = tiny(
        model, ({},), texts(model, lengths=(6, 6)), size=CacheSize(blocks=2, block_tokens=4)
    )
    served.iterate(0, [[_part(0, 5, 0)]])
    with pytest.raises(StrategyError) as error:
        served.iterate(0, [[_part(1, 1, 0)]])
    assert error.value.rule == "serve.blocks"
    with pytest.raises(StrategyError) as error:
        served.iterate(0, [[_part(0, 2, 5)]])
    assert error.value.rule == "serve.tokens"
    with pytest.raises(StrategyError) as error:
        served.iterate(0, [[], []])
    assert error.value.rule == "serve.ranks"


@pytest.mark.parametrize("name", ["t5-11b", "deepseek-v3", "bert-base", "deepseek-v3.2"])
def test_models_that_are_not_served_are_refused_by_name(name: str) -> None:
    with pytest.raises(StrategyError) as error:
        require_served(small_model(name))
    assert error.value.rule == "serve.model"


def test_tables_hand_out_each_block_once() -> None:
    random = random_of("tables")
    tables = CacheBlockTables(
        reaches=(KeyReach(), KeyReach(window=5), KeyReach(window=4, chunked=True)),
        blocks=40,
        block_tokens=3,
    )
    for _ in range(400):
        request = random.randrange(4)
        past = tables.cached.get(request, 0)
        if past > 20 or (past and random.random() < 0.1):
            tables.release(request)
        else:
            tables.extend(request, past=past, end=past + random.randint(1, 6))
        for reach in tables.reaches:
            held = [
                block
                for (other, _), table in tables.held.items()
                if other == reach
                for block in table.blocks
            ]
            assert sorted([*held, *tables.free[reach]]) == list(range(40))
            for (other, who), table in tables.held.items():
                if other == reach:
                    first, end = table.first * 3, (table.first + len(table.blocks)) * 3
                    assert end - 3 < tables.cached[who] <= end
                    assert first <= reach.first(tables.cached[who])


def test_ranks_are_padded_to_the_busiest_one_and_to_captured_sizes() -> None:
    parts = [[_part(0, 3, 0)], [_part(1, 1, 4), _part(2, 1, 0)]]
    assert [row for row, _ in padded_rows(parts).parts] == [0, 3, 4]
    assert padded_rows(parts).count == 6
    assert padded_rows(parts, sizes=(1, 2, 4, 8)).count == 8
    assert padded_rows(parts, sizes=(1, 2)).count == 6
