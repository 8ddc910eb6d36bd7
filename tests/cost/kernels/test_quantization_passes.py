"""Recipes of few bits by hand: passes over operands, what travels in few bits, and what is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.kernels.quantization_passes import (
    COMPILED_REDUCTION,
    quantised_copies,
    recipe_passes,
    seconds_with_casts,
)
from shardwright.cost.lower_model_blocks_under_structure import block_context, programs_of
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.cost.tables.bytes_per_parameter_and_update_traffic import narrow_copies
from shardwright.cost.tables.mesh_synchronisation_table import mesh_table
from shardwright.dtype import Dtype
from shardwright.program.block.block_program import Exposure, Move, Phase
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.block.lower_block import lower_block
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import Scaling, TpOverlap
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import price_grid, rows_of
from tests.program.small import RUNTIME, cluster_of, problem_of
from tests.strategies import dense_model, expert_model

TE = replace(
    RUNTIME,
    name="te",
    saves_quantized=True,
    gathers_quantized=True,
    bucket_bytes=0,
    tp_overlap=TpOverlap.FUSED,
)
TORCHAO = replace(
    RUNTIME,
    name="torchao",
    saves_quantized=False,
    gathers_quantized=True,
    tp_overlap=TpOverlap.ASYNC,
)
MODEL, SPARSE = dense_model(layers=4), expert_model(dense=1, sparse=3, experts=8)
LAYER = 1


def problem(
    runtime: Runtime,
    *,
    scaling: Scaling = Scaling.CURRENT,
    compute: Dtype = Dtype.FP8,
    device: str = "h100-sxm",
    model: object = MODEL,
    devices: int = 8,
    **changes: object,
) -> Problem:
    words = "-".join(map(str, changes.values()))
    made = replace(runtime, name=f"{runtime.name}-{scaling}-{words}", scaling=scaling, **changes)  # type: ignore[arg-type]
    found = problem_of(model, cluster_of(devices, node=8, accelerator=device), runtime=made)  # type: ignore[arg-type]
    return replace(found, job=replace(found.job, compute=compute))


@pytest.mark.parametrize(
    ("device", "scaling", "compute", "traffic"),
    [
        # Read, write, write turned round.
        ("h100-sxm", Scaling.DELAYED, Dtype.FP8, 2 + 1 + 1),
        ("h100-sxm", Scaling.CURRENT, Dtype.FP8, 2 + 2 + 1 + 1),
        # Units that take any layout need no transposed copy.
        ("b200-sxm", Scaling.DELAYED, Dtype.FP8, 2 + 1),
        ("b200-sxm", Scaling.CURRENT, Dtype.FP8, 2 + 2 + 1),
        # Both forms, each with its scales.
        ("b200-sxm", Scaling.MX, Dtype.FP8, 2 + 2 * (1 + 1 / 32)),
        ("h100-sxm", Scaling.BLOCKWISE, Dtype.FP8, 2 + 2 * (1 + 4 / 128)),
        ("b200-sxm", Scaling.MX, Dtype.FP4, 3 * 2 + 2 * (0.5 + 1 / 16)),
    ],
)
def test_bytes_of_an_operand(device: str, scaling: Scaling, compute: Dtype, traffic: float) -> None:
    passes = recipe_passes(
        problem_machine(problem(TE, scaling=scaling, compute=compute, device=device))
    )
    assert passes.cast + passes.copy == pytest.approx(traffic)
    assert (passes.again, passes.gradient_again, passes.product) == (0.0, 0.0, 0.0)


def test_a_recipe_takes_the_place_of_the_cast_in_the_rate() -> None:
    """Current over delayed scaling: one more reading of the operand and two more kernels, nothing
    in the weight gradient."""
    sizes = {
        "m": np.array([8192]),
        "n": np.array([4096]),
        "k": np.array([2048]),
        "groups": 1,
        "members": 1,
    }
    machines = [problem_machine(problem(TE, scaling=s)) for s in (Scaling.DELAYED, Scaling.CURRENT)]
    device, spent = machines[0].accelerator, np.array([1.0])
    bandwidth = device.element_efficiency * device.memory_bandwidth
    for phase, side in ((Phase.F, 2048), (Phase.I, 4096)):
        delayed, current = (
            float(seconds_with_casts(m, spent, phase=phase, **sizes)[0]) for m in machines
        )  # type: ignore[arg-type]
        assert current - delayed == pytest.approx(2 * 8192 * side / bandwidth + 2 * device.launch_s)
        assert delayed - 1.0 == pytest.approx((2 + 1 + 1 - 3) * 8192 * side / bandwidth)
    weight = [float(seconds_with_casts(m, spent, phase=Phase.W, **sizes)[0]) for m in machines]  # type: ignore[arg-type]
    assert weight[0] == weight[1] == pytest.approx(1.0 - 3 * 8192 * 4096 / bandwidth)
    # Never below what the multiplications take at peak, or one pass over what they read and write.
    nothing = seconds_with_casts(machines[0], np.array([0.0]), phase=Phase.W, **sizes)  # type: ignore[arg-type]
    assert float(nothing[0]) >= 2.0 * 8192 * 4096 * 2048 / machines[0].peak


@pytest.mark.parametrize(
    ("device", "scaling", "compute", "kernels"),
    [
        ("h100-sxm", Scaling.DELAYED, Dtype.FP8, 0),
        ("h100-sxm", Scaling.CURRENT, Dtype.FP8, 3),
        ("h100-sxm", Scaling.BLOCKWISE, Dtype.FP8, 1),
        ("b200-sxm", Scaling.MX, Dtype.FP8, 1),
        ("b200-sxm", Scaling.MX, Dtype.FP4, 3),
    ],
)
def test_operands_of_experts_are_quantised_one_after_another(
    device: str, scaling: Scaling, compute: Dtype, kernels: int
) -> None:
    """Each local expert more launches the recipe's kernels once more on the device, but under a
    scale that was known before."""
    machine = problem_machine(problem(TE, scaling=scaling, compute=compute, device=device))
    sizes = {
        "m": np.array([512]),
        "n": np.array([4096]),
        "k": np.array([2048]),
        "groups": np.array([8]),
        "members": 1,
    }
    spent = np.array([1.0])
    for phase, again in ((Phase.F, kernels), (Phase.I, kernels), (Phase.W, 0)):
        one, eight = (
            float(seconds_with_casts(machine, spent, phase=phase, casts=c, **sizes)[0])
            for c in (1, np.array([8]))
        )  # type: ignore[arg-type]
        assert eight - one == pytest.approx(7 * again * machine.accelerator.launch_s)


def test_a_member_quantises_its_part_before_the_gather() -> None:
    sizes = {"m": np.array([8192]), "n": np.array([4096]), "k": np.array([2048]), "groups": 1}
    machine, spent = problem_machine(problem(TE, scaling=Scaling.DELAYED)), np.array([1.0])
    bandwidth = machine.accelerator.element_efficiency * machine.accelerator.memory_bandwidth
    alone, parts = (
        float(seconds_with_casts(machine, spent, phase=Phase.F, members=m, **sizes)[0])
        for m in (1, 4)
    )  # type: ignore[arg-type]
    # Three bytes an element of a quarter, then the whole is turned round: read and written.
    assert alone - parts == pytest.approx((4 - 3 / 4 - 2) * 8192 * 2048 / bandwidth)


def test_a_scale_a_row_is_found_again_along_the_tokens() -> None:
    passes = recipe_passes(problem_machine(problem(TORCHAO, scaling=Scaling.ROWWISE)))
    assert (passes.cast, passes.copy) == (3.0, 0.0)
    assert passes.again == passes.gradient_again == pytest.approx(3.0 * COMPILED_REDUCTION)
    assert passes.product == 4.0


def gathered(
    scaling: Scaling, *, on: bool, compute: Dtype = Dtype.FP8, model: object = MODEL
) -> tuple[float, float, float]:
    made = problem(TE, scaling=scaling, compute=compute, model=model, gathers_narrow=on)
    sync = mesh_table(made, rows_of([Grid(dp=8, zero=1)]), np.array([8])).sync
    elements = sync.dense[LAYER, 0] + sync.experts[LAYER, 0]
    return float(sync.gather[LAYER, 0]), float(sync.narrow[LAYER, 0]), float(elements)


@pytest.mark.parametrize("model", [MODEL, SPARSE])
def test_matrices_travel_in_eight_bits(model: object) -> None:
    wide, narrow, elements = gathered(Scaling.CURRENT, on=False, model=model)
    assert 0.9 * elements < narrow < elements
    quick = gathered(Scaling.CURRENT, on=True, model=model)[0]
    assert 0.45 * wide < quick < wide
    # Two forms travel as the 16 bits that both are made of; nothing is gathered in 4.
    assert gathered(Scaling.MX, on=True, model=model)[0] == wide
    assert (
        gathered(Scaling.MX, on=True, compute=Dtype.FP4, model=model)[0]
        == gathered(Scaling.MX, on=False, model=model)[0]
    )
    assert gathered(Scaling.CURRENT, on=True, compute=Dtype.BF16, model=model)[0] == wide


@pytest.mark.parametrize(
    ("device", "scaling", "on", "copies"),
    [
        ("h100-sxm", Scaling.CURRENT, False, 2.0),
        ("h100-sxm", Scaling.CURRENT, True, 0.0),
        ("b200-sxm", Scaling.CURRENT, False, 1.0),
        ("b200-sxm", Scaling.CURRENT, True, -1.0),
        ("b200-sxm", Scaling.MX, True, 2 / 32),
    ],
)
def test_quantised_weights_are_kept(device: str, scaling: Scaling, on: bool, copies: float) -> None:
    made = problem(TE, scaling=scaling, device=device, gathers_narrow=on)
    assert narrow_copies(made) == pytest.approx(copies)
    grid = Grid(dp=8, zero=1)
    wide = problem(TE, compute=Dtype.BF16, device=device)
    found = [
        dict(step_costs(p, grid, price_grid(p, grid)).static_bytes)["parameters"].sum()
        for p in (made, wide)
    ]
    elements = (
        price_grid(made, grid).layout.by_rank @ price_grid(made, grid).meshes.sync.narrow[:, 0]
    )
    assert found[0] - found[1] == int(elements.sum() * copies)


def moves(made: Problem) -> list[Move]:
    return [
        m
        for program in programs_of(made, Structure(sequence_parallel=True))
        for m in program.moves
        if m.kind is Collective.ALL_GATHER
    ]


def bytes_of(found: list[Move]) -> dict[tuple[str, Phase], int]:
    return {(m.operator, m.phase): sum(size.times for size in m.volume) for m in found}


def test_gathers_of_tensor_parallelism_are_quantised() -> None:
    """One form of 8 bits forward; backward two where scales run along the sum; the head's and other
    runtimes' stay."""
    wide, tensor, block = (
        bytes_of(moves(problem(TE, **how)))
        for how in ({"compute": Dtype.BF16}, {}, {"scaling": Scaling.MX})
    )  # type: ignore[arg-type]
    narrow = {key for key in wide if tensor[key] != wide[key]}
    assert narrow
    assert all(2 * tensor[key] == wide[key] for key in narrow)
    assert {operator for operator, _ in set(wide) - narrow} <= {"lookup", "logits"}
    for key in narrow:
        forms = 2 if key[1] is Phase.I else 1
        assert block[key] == int(wide[key] * forms * (1 + 1 / 32) / 2)
    assert bytes_of(moves(problem(TE, gathers_quantized=False))) == wide


def test_a_compiler_joins_no_gather_that_is_cast_behind() -> None:
    tensor, rowwise = (
        {
            (m.operator, m.phase): m.exposure
            for m in moves(problem(TORCHAO, scaling=s, gathers_quantized=s is Scaling.CURRENT))
        }
        for s in (Scaling.CURRENT, Scaling.ROWWISE)
    )
    joined = {key for key, exposure in tensor.items() if exposure is Exposure.BESIDE_GEMM}
    assert joined
    assert {key for key in joined if rowwise[key] is Exposure.BESIDE_GEMM} <= {
        key for key in joined if key[0] == "logits"
    }


def test_forms_of_an_operand() -> None:
    made = {
        (d, s): quantised_copies(problem_machine(problem(TE, scaling=s, device=d)))
        for d in ("h100-sxm", "b200-sxm")
        for s in Scaling
    }
    assert {key for key, forms in made.items() if forms == 1} == {
        ("b200-sxm", s) for s in (Scaling.DELAYED, Scaling.CURRENT, Scaling.ROWWISE)
    }


def test_lowering_knows_the_bits() -> None:
    made = problem(TE)
    context = block_context(made, MODEL.blocks[LAYER])
    program = lower_block(MODEL.blocks[LAYER], Structure(sequence_parallel=True), context)
    casts = {(w.operator, w.phase): w.gathered for w in program.works if w.gathered[0]}
    assert casts
    assert set(casts.values()) == {("tp", 1)}
