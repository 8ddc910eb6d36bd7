"""Modules that run again in backward, as a search tries them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright
from shardwright.api.request_to_problem import facts_of, problem_of, space_of
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.program.training_problem import under
from shardwright.runtime.framework_description import Options
from shardwright.runtime.option_vocabulary import in_vocabulary_order
from shardwright.search.grid.members.default_runtime_and_recompute_options import (
    LADDER,
    module_ladder,
    pinned_modules,
    without_modules,
)
from shardwright.search.grid.members.enumerate_members import enumerate_members
from shardwright.search.search_request import Request
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.search.problems import real_problem
from tests.tiers import examples

MIXTRAL = Request(model="mixtral-8x7b", cluster="h100-sxm:16", seq_len=4096, global_batch=64)


@pytest.mark.parametrize(
    ("model", "runtime", "last"),
    [
        ("llama-3.1-8b", "megatron-core", ("recompute_norms", "recompute_mlp")),
        (
            "qwen3-235b-a22b",
            "megatron-core",
            ("recompute_norms", "recompute_moe_act", "recompute_moe"),
        ),
        ("deepseek-v3", "megatron-core", LADDER),
        ("deepseek-v3", "torchtitan", ()),
    ],
)
def test_a_ladder_has_what_the_runtime_and_the_model_have(
    model: str, runtime: str, last: tuple[str, ...]
) -> None:
    problem = real_problem(model, "h100-sxm:64", seq_len=4096, global_batch=64, runtime=runtime)
    ladder = module_ladder(problem)
    assert ladder[0] == ()
    assert {name for name, _ in ladder[-1]} == set(last)
    assert [len(options) for options in ladder] == list(range(len(last) + 1))


def test_each_step_of_a_ladder_takes_longer_and_keeps_less() -> None:
    """Of DeepSeek-V3's three kinds of layers, one after another; the rows of one table equal tables
    of their own, bit for bit."""
    problem = real_problem("deepseek-v3", "h100-sxm:64", seq_len=4096, global_batch=64)
    ladder, rows = module_ladder(problem), rows_of([Grid(dp=64, ep=8), Grid(dp=64, ep=64)])
    table = layer_table(problem, rows, modules=ladder)
    seconds, saved = table.seconds[:, :3].sum(axis=(1, 2)), table.saved_bytes[:, 0]
    for number, options in enumerate(ladder):
        here = slice(2 * number, 2 * number + 2)
        alone = layer_table(under(problem, options), rows)
        assert (alone.seconds == table.seconds[..., here]).all()
        assert (alone.saved_bytes == table.saved_bytes[..., here]).all()
        if number:
            before = slice(2 * number - 2, 2 * number)
            assert (seconds[:, here] >= seconds[:, before]).all()
            assert (saved[:, here] <= saved[:, before]).all()
            assert (saved[:, here] < saved[:, before]).any()


def rungs(*numbers: int) -> tuple[Options, ...]:
    """Steps of a ladder of four modules, by how many are on."""
    names = ("recompute_norms", "recompute_mla", "recompute_moe_act", "recompute_moe")
    return tuple(tuple((name, "on") for name in names[:number]) for number in numbers)


OWN = dict.fromkeys(LADDER, "off")


@pytest.mark.parametrize(
    ("pins", "found"),
    [
        ({"recompute_moe": ("on",)}, rungs(4)),
        ({"recompute_moe": ("on", "off")}, rungs(0, 1, 2, 3, 4)),
        ({"recompute_moe_act": ("off",), "recompute_norms": ("on",)}, rungs(1, 2)),
        # What no step has: the last step with all that is switched on, without what is switched
        # off.
        ({"recompute_moe": ("on",), "recompute_norms": ("off",)}, (rungs(4)[0][1:],)),
        # No step has it: it is set on every one.
        (
            {"recompute_shared": ("on",)},
            tuple(
                in_vocabulary_order((*step, ("recompute_shared", "on")))
                for step in rungs(0, 1, 2, 3, 4)
            ),
        ),
    ],
)
def test_pins_keep_the_steps_of_the_ladder_that_have_them(
    pins: dict[str, tuple[str, ...]], found: tuple[Options, ...]
) -> None:
    assert pinned_modules(rungs(0, 1, 2, 3, 4), pins, runtime_values=OWN) == found


def test_an_option_behind_the_runtime_is_decided() -> None:
    asked = replace(MIXTRAL, runtime="megatron-core recompute_norms=off")
    problem = problem_of(asked)
    space = space_of(asked, problem, facts_of(problem))
    assert space.option_values("recompute_norms") == ("off",)
    assert space.modules == ((),)


@examples(25, 500)
@given(
    pins=st.dictionaries(
        st.sampled_from(LADDER),
        st.sets(st.sampled_from(("on", "off")), min_size=1).map(tuple),
        max_size=4,
    ),
    excludes=st.dictionaries(st.sampled_from(LADDER), st.sampled_from(("on", "off")), max_size=2),
)
def test_the_first_set_of_modules_runs_the_least_again(
    pins: dict[str, tuple[str, ...]], excludes: dict[str, str]
) -> None:
    """Bounds of whole meshes count on it, whatever is pinned and excluded."""
    problem = real_problem("deepseek-v3", "h100-sxm:64", seq_len=4096, global_batch=64)
    sets = pinned_modules(module_ladder(problem), pins, runtime_values=OWN)
    for name, value in excludes.items():
        sets = without_modules(sets, name, (value,), runtime_values=OWN)
    on = [{name for name, value in chosen if value == "on"} for chosen in sets]
    assert all(on[0] <= other for other in on)
    assert len(set(sets)) == len(sets)


def test_where_memory_is_short_modules_win_over_whole_layers() -> None:
    """The same problem without the steps in between is slower: DeepSeek-V3 on 256 devices with room
    for states and little else."""
    asked = Request(
        model="deepseek-v3",
        cluster="h200-sxm:256",
        seq_len=4096,
        global_batch=1024,
        use_all=True,
        top=0,
    )
    found = shardwright.plan(asked)
    without = shardwright.plan(replace(asked, pins=tuple((name, ("off",)) for name in LADDER)))
    assert any(name in LADDER for name, _ in found.grid.options)
    assert found.certificate.optimal
    assert found.certificate.best_s < 0.99 * without.certificate.best_s


def test_modules_beside_whole_layers_are_illegal() -> None:
    problem = real_problem("llama-3.1-8b", "h100-sxm:8", seq_len=4096, global_batch=8)
    facts = facts_of(problem)
    space = space_of(
        Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=4096, global_batch=8),
        problem,
        facts,
    )
    plain, ladder = (
        enumerate_members(problem, replace(space, modules=((),)), facts),
        enumerate_members(problem, space, facts),
    )
    assert ladder.enumerated == 3 * plain.enumerated
    assert plain.num_members < ladder.num_members < 2 * plain.num_members
