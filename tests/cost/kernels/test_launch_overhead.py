"""Launches by the host, expert traffic beside compute, and what recipes of mixtures of experts
change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.kernels.accelerator_rates import OPERATOR_S
from shardwright.cost.kernels.launch_overhead import (
    DISPATCH_SHARE,
    PairedLayer,
    exposed_traffic,
    further_launches,
    launches,
)
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.lower_model_blocks_under_structure import programs_of
from shardwright.cost.part_phase_recompute_keys import ELEMENT, EP, LAUNCH
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable
from shardwright.program.block.block_program import BlockProgram, BlockWork, Phase
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed
from shardwright.program.block.operators_rerun_by_runtime_recompute_modules import (
    recomputed_operators,
)
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import Capture, ExpertDispatch
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.validation.training.measured_training_run import TrainingRun
from shardwright.validation.training.row_to_training_run import with_facts
from shardwright.validation.training.training_table_columns import TrainingMeasurement
from tests.cost.prices import rows_of
from tests.tiers import examples
from tests.validation.published import case_of, facts, rows

ROWS = {
    f"{r.table_or_row}|{r.model_name}|{r.gpu}": r
    for r in rows("training.csv")
    if r.source_id.startswith("mbridge")
}


def row(*words: str) -> TrainingMeasurement:
    return next(r for name, r in ROWS.items() if all(w in name for w in words))


def case(*words: str) -> TrainingRun:
    return case_of(row(*words))


def problem(made: TrainingRun, runtime: Runtime, *, host_launch: float | None = None) -> Problem:
    base = Problem(model=made.model, cluster=made.cluster, job=made.job, runtime=runtime)
    return (
        base
        if host_launch is None
        else replace(base, constants=replace(base.constants, host_launch=host_launch))
    )


def table(made: TrainingRun, runtime: Runtime, *, host_launch: float | None = None) -> LayerTable:
    return layer_table(problem(made, runtime, host_launch=host_launch), rows_of([made.grid]))


SMALL = case("26.02 ", "Qwen3_30B", "|B200")
SCALED = (
    "megatron-bridge fp8_attention=on fp8=mx expert_overlap=on grouped_experts=fused"
    " router_fusion=on graphs=iteration"
)
GRAPHED = (
    "megatron-bridge fp8_attention=on expert_overlap=on grouped_experts=fused graphs=iteration"
)
FLEX = load_runtime("megatron-bridge recompute_mla=on")


def layer(made: TrainingRun, runtime: Runtime, **changes: float) -> np.ndarray:
    """(phases, parts) seconds of the sparse layer."""
    index = next(i for i, b in enumerate(made.model.blocks) if b.name == "moe")
    return table(made, runtime, **changes).seconds[index, :, :, 0]


def test_a_host_that_takes_no_time_is_never_waited_for() -> None:
    for name in (
        "megatron-bridge recompute_mla=on",
        "megatron-bridge graphs=attention-router recompute_mla=on",
        "nemo-24.11",
    ):
        assert not table(SMALL, load_runtime(name), host_launch=0.0).seconds[:, :, LAUNCH].any()


def test_the_wait_grows_with_the_host_and_nothing_else_changes() -> None:
    slow, fast = layer(SMALL, FLEX, host_launch=8e-5), layer(SMALL, FLEX, host_launch=4e-5)
    assert (slow[:3, LAUNCH].sum(), fast[:3, LAUNCH].sum()) > (fast[:3, LAUNCH].sum(), 0.0)
    others = [i for i in range(slow.shape[1]) if i != LAUNCH]
    assert np.array_equal(slow[:3][:, others], fast[:3][:, others])
    # far above the device's seconds the wait is all of the host's
    huge, twice, thrice = (layer(SMALL, FLEX, host_launch=count * 1e-3)[:3] for count in (1, 2, 3))
    device = huge.sum() - huge[:, LAUNCH].sum()
    assert thrice.sum() - twice.sum() == pytest.approx(twice.sum() - huge.sum(), rel=1e-9)
    # but for kernels that compiled code launches by itself
    assert 0.99 < (twice.sum() - huge.sum()) / huge.sum() <= 1.0
    assert huge.sum() > device


def test_a_wider_graph_is_never_slower() -> None:
    order = (Capture.NONE, Capture.ROUTER, Capture.ATTENTION_ROUTER, Capture.ITERATION)
    spent = [layer(SMALL, replace(FLEX, name=c.value, capture=c))[:3].sum() for c in order]
    assert spent == sorted(spent, reverse=True)
    assert spent[0] > spent[-1]
    assert (
        layer(SMALL, replace(FLEX, name="all", capture=Capture.ITERATION))[:3, LAUNCH].sum() == 0.0
    )


def test_reading_counts_on_the_host_never_helps() -> None:
    for launch in (1e-6, 2e-5, 4e-5, 2e-4):
        apart = layer(SMALL, FLEX, host_launch=launch)[:3].sum()
        ahead = layer(
            SMALL, replace(FLEX, name="ahead", routing_on_host=False), host_launch=launch
        )[:3].sum()
        assert ahead <= apart * (1 + 1e-12)


def test_one_kernel_for_all_experts_launches_less() -> None:
    assert (
        layer(SMALL, replace(FLEX, name="fused", fused_experts=True))[:3, LAUNCH].sum()
        < layer(SMALL, FLEX)[:3, LAUNCH].sum()
    )


def work_of(program: BlockProgram, operator: str, phase: Phase) -> BlockWork:
    return next(w for w in program.works if w.operator == operator and w.phase is phase)


@pytest.mark.parametrize("local", [1, 16])
@pytest.mark.parametrize(("scaling", "kernels"), [("mx", 1), ("current", 3)])
def test_one_call_quantises_the_operands_of_all_experts(
    scaling: str, kernels: int, local: int
) -> None:
    """A call of cuBLAS's for each expert, and one of the quantiser's, which launches its kernels
    for every expert; the weight gradient finds its operands quantised."""
    runtime = load_runtime(f"megatron-bridge fp8={scaling}")
    made = problem(SMALL, runtime)
    machine, degrees = (
        problem_machine(made),
        {"ep": np.array([128 // local]), "mbs": np.ones(1, dtype=np.int64)},
    )
    for phase in Phase:
        work, quantised = work_of(SPARSE, "experts.down", phase), phase is not Phase.W
        assert launches(work, degrees, machine=machine, runtime=runtime)[0] == local + quantised
        assert further_launches(work, degrees, machine=machine, runtime=runtime)[0] == quantised * (
            kernels * local - 1
        )


def test_kernels_of_the_router_are_as_published() -> None:
    """72 in Megatron-Core, 31 fused; 14 of them are the preparation that a dispatcher of single
    copies has fused."""
    counts = {}
    for dispatcher in ("alltoall", "flex"):
        for fused in ("off", "on"):
            runtime = load_runtime(
                f"megatron-core-0.16 dispatcher={dispatcher} router_fusion={fused}"
            )
            programs = programs_of(
                problem(SMALL, runtime),
                Structure(sequence_parallel=False, gather=False, routed=True),
            )
            (moe,) = (p for p in programs if p.block == "moe")
            counts[dispatcher, fused] = 1 + work_of(moe, "route", Phase.F).further
    assert counts == {
        ("alltoall", "off"): 72,
        ("alltoall", "on"): 31,
        ("flex", "off"): 58,
        ("flex", "on"): 17,
    }


def test_a_kernel_of_the_router_costs_its_launch_on_the_device_and_an_operator_on_the_host() -> (
    None
):
    many, few = (replace(FLEX, name=str(n), router_kernels=n) for n in (114, 15))
    graphed = [replace(r, name=f"{r.name} graphed", capture=Capture.ITERATION) for r in (many, few)]
    launch_s = SMALL.cluster.node.accelerator.launch_s
    device = layer(SMALL, graphed[0]) - layer(SMALL, graphed[1])
    assert device[0, ELEMENT] == pytest.approx(99 * launch_s)
    assert np.count_nonzero(device[:3]) == 1
    waited = [layer(SMALL, r, host_launch=1e-3)[:3] for r in (many, few)]
    # the host is behind the device everywhere, so that a step grows by what the host does more
    assert waited[0].sum() - waited[1].sum() == pytest.approx(99 * OPERATOR_S)


def test_more_local_experts_take_the_host_longer() -> None:
    wide = replace(SMALL, grid=replace(SMALL.grid, ep=2))
    assert layer(wide, FLEX)[:3, LAUNCH].sum() > layer(SMALL, FLEX)[:3, LAUNCH].sum()


@examples(35, 500)
@given(compute=st.floats(0.0, 10.0), moved=st.floats(0.0, 10.0))
def test_overlap_lies_between_all_hidden_and_all_exposed(compute: float, moved: float) -> None:
    left = float(exposed_traffic(np.array([compute]), np.array([moved]))[0])
    assert DISPATCH_SHARE * moved <= left + 1e-12
    assert left <= moved
    # together they take at least as long as either, and as what the multiprocessors can do
    assert compute + left >= max(compute, moved * (1 - 1e-12)) - DISPATCH_SHARE * compute - 1e-12
    assert float(exposed_traffic(np.array([0.0]), np.array([moved]))[0]) == pytest.approx(moved)


def test_hidden_expert_traffic_is_counted_as_hidden() -> None:
    quick = {"host_launch": 0.0}
    shown, hidden = (
        layer(SMALL, FLEX, **quick),
        layer(SMALL, replace(FLEX, name="beside", expert_overlap=True), **quick),
    )
    assert 0.0 < hidden[:3, EP].sum() < shown[:3, EP].sum()
    assert hidden[:3].sum() < shown[:3].sum()
    tables = [
        table(SMALL, r, **quick) for r in (FLEX, replace(FLEX, name="beside", expert_overlap=True))
    ]
    gained = tables[1].overlappable - tables[0].overlappable
    lost = tables[0].seconds[:, :3, EP].sum(axis=1) - tables[1].seconds[:, :3, EP].sum(axis=1)
    assert gained == pytest.approx(lost)


def test_all_to_all_sends_more_and_sorts_again() -> None:
    once, every = (
        layer(SMALL, FLEX),
        layer(SMALL, replace(FLEX, name="every", expert_dispatch=ExpertDispatch.ALL_TO_ALL)),
    )
    assert every[:3, EP].sum() > once[:3, EP].sum()
    assert every[:3, ELEMENT].sum() > once[:3, ELEMENT].sum()


def test_eight_bit_attention_needs_an_eight_bit_job() -> None:
    eight = replace(FLEX, name="eight", attention_eight_bit=True)
    assert layer(SMALL, eight)[0, 1] < layer(SMALL, FLEX)[0, 1]
    bf16 = case("25.11", "Qwen3_235B", "GB200")
    assert np.array_equal(layer(bf16, eight)[0], layer(bf16, FLEX)[0])


def test_rebuilt_latents_trade_memory_for_time() -> None:
    made = case("26.04 ", "DeepSeekV3", "GB300")
    kept, again = replace(FLEX, name="kept", rebuilds_latent=False), FLEX
    quick = {"host_launch": 0.0}
    assert layer(made, again, **quick)[1].sum() > layer(made, kept, **quick)[1].sum()
    assert np.array_equal(layer(made, again, **quick)[0], layer(made, kept, **quick)[0])
    sizes = [table(made, r).saved_bytes[:, 0, 0] for r in (again, kept)]
    sparse = next(i for i, b in enumerate(made.model.blocks) if b.name == "moe")
    assert sizes[0][sparse] < 0.8 * sizes[1][sparse]
    assert {
        n.rsplit(".")[-1]
        for n in recomputed_operators(made.model.blocks[sparse].operators, FLEX).again
    } == {"q_up", "kv_up", "rotary"}
    assert all(not recomputed_operators(b.operators, FLEX).again for b in SMALL.model.blocks)
    assert np.array_equal(table(SMALL, kept).saved_bytes, table(SMALL, again).saved_bytes)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (
            ("26.06 ", "Qwen3_235B", "GB200"),
            f"{SCALED} recompute_mla=on",
        ),
        (
            ("26.06 ", "Qwen3_30B", "H100"),
            "megatron-bridge dispatcher=hybridep router_fusion=on recompute_mla=on",
        ),
        (
            ("26.04 ", "Qwen3_235B", "GB300"),
            "megatron-bridge fp8=mx router_fusion=on graphs=attention-router recompute_mla=on",
        ),
        (
            ("26.04.01", "Qwen3_235B", "H100"),
            (
                "megatron-bridge dispatcher=alltoall expert_overlap=on router_fusion=on"
                " recompute_mla=on"
            ),
        ),
        (
            ("25.09", "Qwen3_30B", "GB200"),
            (
                "megatron-bridge dispatcher=alltoall capacity=fixed router_fusion=on"
                " graphs=iteration recompute_mla=on"
            ),
        ),
        (("26.06 ", "DeepSeekV3", "GB300"), SCALED),
        (("26.04 ", "LLAMA3_70B", "H100"), "megatron-bridge"),
        (
            ("EP overlap off", "Qwen3-30B"),
            "megatron-bridge dispatcher=hybridep router_fusion=on graphs=router recompute_mla=on",
        ),
        (
            ("26.04.01", "Nemotron_3_Super L288"),
            "megatron-bridge fp8=mx dispatcher=hybridep recompute_norms=on recompute_moe_act=on",
        ),
        (
            ("25.11", "DGX-B200 L582"),
            (
                "megatron-bridge fp8=mx dispatcher=alltoall router_fusion=on graphs=router"
                " recompute_mla=on"
            ),
        ),
        (
            ("recompute=[]", "Moonlight"),
            "megatron-bridge tp_overlap=dgrad grad_check=on dispatcher=alltoall",
        ),
    ],
)
def test_recipe_of_a_row(words: tuple[str, ...], name: str) -> None:
    assert case(*words).runtime == name


def test_every_row_of_experts_has_a_recipe() -> None:
    """Rows of dense models run the plain runtime, but for what Llama 3's recipes set; those of
    experts and of hybrids what theirs set."""
    families = {
        "qwen3": True,
        "deepseek": True,
        "gpt": None,
        "nemotron": None,
        "moonlight": None,
        "llama3": None,
    }
    for measured in ROWS.values():
        wanted = next(
            (
                known
                for family, known in families.items()
                if measured.model_name.lower().startswith(family)
            ),
            False,
        )
        words = [w for w in case_of(measured).runtime.split() if not w.startswith("fp8")]
        assert wanted in (None, words != ["megatron-bridge"]), measured.table_or_row


def sparse_program() -> BlockProgram:
    programs = programs_of(
        problem(SMALL, FLEX), Structure(sequence_parallel=False, gather=False, routed=True)
    )
    return next(p for p in programs if p.block == "moe")


SPARSE = sparse_program()


def pair(
    *, forward: float, experts: float, backward: float, moved: float, launch: float = 0.0
) -> float:
    """Exposed seconds of a layer whose four moves take `moved` seconds each."""
    routed = next(o.name for o in SPARSE.operators if is_routed(o))
    other = next(o.name for o in SPARSE.operators if not is_routed(o))
    both = PairedLayer(SPARSE, rows=1)
    both.kernel(other, Phase.F, np.array([forward]))
    both.kernel(other, Phase.I, np.array([backward]))
    for phase in (Phase.F, Phase.I, Phase.W):
        both.kernel(routed, phase, np.array([experts / 3]))
    for phase in (Phase.F, Phase.I):
        for behind in (False, True):
            both.move(phase, np.array([moved]), behind=behind)
    return float(both.exposed(late=np.array([launch]))[0])


seconds = st.floats(0.0, 10.0)


@examples(35, 500)
@given(forward=seconds, experts=seconds, backward=seconds, moved=seconds)
def test_steps_of_a_pair_hide_no_more_than_all_compute_could(
    forward: float, experts: float, backward: float, moved: float
) -> None:
    left = pair(forward=forward, experts=experts, backward=backward, moved=moved)
    whole = float(
        exposed_traffic(np.array([forward + experts + backward]), np.array([4 * moved]))[0]
    )
    assert whole - 1e-9 <= left <= 4 * moved + 1e-9


def test_each_step_hides_only_what_runs_beside_it() -> None:
    # enough compute in all, but none beside the combine of the backward pass
    assert pair(forward=0.0, experts=100.0, backward=100.0, moved=1.0) == pytest.approx(
        1.0 + 3 * DISPATCH_SHARE
    )
    assert pair(forward=100.0, experts=100.0, backward=0.0, moved=1.0) == pytest.approx(
        1.0 + 3 * DISPATCH_SHARE
    )
    assert pair(forward=100.0, experts=0.0, backward=100.0, moved=1.0) == pytest.approx(
        2.0 + 2 * DISPATCH_SHARE
    )
    assert pair(
        forward=100.0, experts=0.0, backward=100.0, moved=1.0, launch=100.0
    ) == pytest.approx(4 * DISPATCH_SHARE)


def stage_layers(measured: TrainingMeasurement) -> tuple[int, ...]:
    row, _ = with_facts(measured, facts=facts())
    return row.stage_layers


def test_deepseek_has_the_stages_that_its_recipe_lists() -> None:
    assert case("26.04 ", "DeepSeekV3", "|B200").grid.last == 1
    assert case("26.04.01 ", "DeepSeekV3", "|B300").grid.last == 5
    for pp, last in ((4, 13), (8, 5), (16, 1)):
        counts = stage_layers(replace(row("26.04 ", "DeepSeekV3", "|B200"), pp=pp))
        assert (len(counts), sum(counts), counts[-1], len(set(counts[:-1]))) == (pp, 61, last, 1)
    assert stage_layers(row("26.04 ", "DeepSeekV3", "|GB200")) == ()
    assert stage_layers(row("26.04 ", "LLAMA3_70B", "|GB200")) == ()
