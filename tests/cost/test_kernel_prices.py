"""Kernels priced from tables: what the tables correct, where they stop, and that the record of who
answered adds up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_members_by_network_tier import span_of
from shardwright.cost.kernels.accelerator_rates import Machine, machine_of
from shardwright.cost.kernels.gemm_element_attention_seconds import (
    attention_flops,
    attention_seconds,
    gemm_seconds,
)
from shardwright.cost.kernels.measured_kernel_factors import gemm_grid_for, tile_padding
from shardwright.cost.network.grid_groups_and_collective_seconds import move_seconds, network_of
from shardwright.cost.part_phase_recompute_keys import ATTENTION, ELEMENT, GEMM
from shardwright.cost.step.price_origin_shares import FAMILIES, priced_seconds, shares_by_origin
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.dtype import Dtype
from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.catalog.measured_gemm_attention_collective_tables import gemm_correction
from shardwright.model.ir.operator import AttentionShape
from shardwright.program.stages.stage_segments import StageParts, plan_stages
from shardwright.program.training_problem import Problem
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
)
from shardwright.simulator.simulate_plan import plan_of_grid
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.program.small import RUNTIME, cluster_of, problem_of
from tests.strategies import dense_model, expert_model


def machine(
    name: str = "h100-sxm",
    *,
    compute: Dtype = Dtype.BF16,
    kernel: AttentionKernel = AttentionKernel.FLASH_3,
) -> Machine:
    return machine_of(
        accelerator(name), compute=compute, attention=kernel, elements=ElementKernels.FUSED
    )


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def without_grid(one: Machine) -> Machine:
    """The same rates on a device of a name that has no table."""
    return replace(one, accelerator=replace(one.accelerator, name="unnamed"))


class TestGemm:
    @pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "b200-sxm", "l40s"])
    def test_the_grid_multiplies_the_roofline(self, name: str) -> None:
        one = machine(name)
        grid = gemm_grid_for(one.accelerator, Dtype.BF16, one.gemm)
        assert grid is not None
        shape = {
            "m": ints(512, 4096, 1000, 128),
            "n": ints(2048, 8192, 3000, 50000),
            "k": ints(8192, 1024, 4096, 4096),
        }
        factor = gemm_correction(
            grid, **{side: value.astype(float) for side, value in shape.items()}
        )
        assert gemm_seconds(one, **shape) == pytest.approx(
            factor * gemm_seconds(without_grid(one), **shape), rel=1e-12
        )

    def test_small_shards_are_slow(self) -> None:
        """H100 bf16, n = 1024, k = 8192: .41, .56, .76, .81 of peak at m = 512 to 4096, as printed
        beside the tables (short runs)."""
        one = machine()
        m = ints(512, 1024, 2048, 4096)
        n, k = np.full(4, 1024), np.full(4, 8192)
        seconds = gemm_seconds(replace(one, gemm=replace(one.gemm, sustained=1.0)), m=m, n=n, k=k)
        share = 2.0 * m * n * k / seconds / one.peak
        assert share == pytest.approx([0.41, 0.56, 0.76, 0.81], rel=0.04)

    def test_rates_that_are_not_the_grids_are_left_alone(self) -> None:
        own = Origin(evidence=Evidence.MEASURED, reference="a profile")
        one = machine()
        mine = replace(one, gemm=replace(one.gemm, compute_efficiency=0.6, origin=own))
        shape = {"m": ints(512), "n": ints(512), "k": ints(4096)}
        assert gemm_grid_for(mine.accelerator, Dtype.BF16, mine.gemm) is None
        assert gemm_seconds(mine, **shape) == pytest.approx(
            gemm_seconds(without_grid(mine), **shape)
        )

    def test_half_precision_shares_a_grid_and_full_precision_has_none(self) -> None:
        half = machine(compute=Dtype.FP16)
        assert gemm_grid_for(half.accelerator, Dtype.FP16, half.gemm) is not None
        assert gemm_grid_for(half.accelerator, Dtype.FP32, half.gemm) is None

    def test_tiles_cost_whole(self) -> None:
        sides = np.array([64.0, 65.0, 4096.0, 4097.0, 1.0])
        whole = np.full(5, 128.0)
        expected = [1.0, 128 / 65, 1.0, 4160 / 4097, 64.0]
        for place in range(3):
            given = [sides if p == place else whole for p in range(3)]
            assert tile_padding(m=given[0], n=given[1], k=given[2]) == pytest.approx(expected)
        one = machine()
        even, ragged = (
            gemm_seconds(one, m=ints(m), n=ints(8192), k=ints(8192))[0] for m in (8192, 8193)
        )
        assert 1.0 < ragged / even < 1.03

    def test_time_falls_with_no_dimension_by_much(self) -> None:
        """Measured waves may make a larger product a little faster, never half as slow."""
        one = machine()
        m = ints(*range(256, 16384, 192))
        seconds = gemm_seconds(one, m=m, n=np.full_like(m, 4096), k=np.full_like(m, 4096))
        assert (seconds[1:] > 0.8 * seconds[:-1]).all()
        assert (seconds > 0.0).all()

    def test_narrow_experts_are_slower_than_their_roofline(self) -> None:
        one = machine()
        m, n, k, groups = ints(256), ints(1024), ints(2048), ints(16)
        shape = {"m": m, "n": n, "k": k, "groups": groups, "launches": ints(4)}
        priced = gemm_seconds(one, **shape, experts=(m, np.minimum(n, k)))
        assert priced[0] > 1.05 * gemm_seconds(one, **shape)[0]


class TestAttention:
    SHAPE = AttentionShape(heads=32, kv_heads=8, head_dim=128, value_dim=128)

    def seconds(
        self, one: Machine, shape: AttentionShape, *, length: int, heads: int = 32
    ) -> float:
        return float(
            attention_seconds(
                one, shape, tokens=ints(length), heads=ints(heads), context=length, backward=False
            )[0]
        )

    def share(self, one: Machine, shape: AttentionShape, *, length: int, heads: int = 32) -> float:
        flops = attention_flops(shape, tokens=ints(length), heads=ints(heads), context=length)[0]
        return float(
            flops / self.seconds(one, shape, length=length, heads=heads) / one.attention_peak
        )

    def test_narrow_heads_are_slower_and_wide_ones_faster(self) -> None:
        one = machine()
        narrow, wide = (replace(self.SHAPE, head_dim=d, value_dim=d) for d in (64, 256))
        shares = [self.share(one, shape, length=8192) for shape in (narrow, self.SHAPE, wide)]
        assert shares == sorted(shares)
        assert shares[0] < 0.9 * shares[1]

    def test_few_heads_do_not_fill_a_device(self) -> None:
        one = machine()
        assert self.share(one, self.SHAPE, length=2048, heads=4) < 0.8 * self.share(
            one, self.SHAPE, length=2048, heads=64
        )

    def test_an_older_kernel_keeps_its_curve_scaled_for_heads(self) -> None:
        old = machine(kernel=AttentionKernel.FLASH_2)
        curve = dict(old.attention.forward)
        assert self.share(old, self.SHAPE, length=8192) < 1.02 * curve[8192]
        assert self.share(old, self.SHAPE, length=8192) < self.share(
            machine(), self.SHAPE, length=8192
        )
        narrow = replace(self.SHAPE, head_dim=64, value_dim=64)
        assert self.share(old, narrow, length=8192) < 0.95 * self.share(
            old, self.SHAPE, length=8192
        )


class TestCollectives:
    def test_groups_inside_a_node_take_the_curve(self) -> None:
        network = network_of(cluster_of(64, node=8))
        sizes = ints(1, 2, 3, 4, 8, 16)
        span = span_of(
            network.tiers,
            ((sizes, np.ones_like(sizes)),),
            in_network_reduction=network.in_network_reduction,
        )
        volume = np.full(6, 500e6)
        priced = move_seconds(Collective.ALL_GATHER, volume=volume, span=span, network=network)
        plain = move_seconds(
            Collective.ALL_GATHER, volume=volume, span=span, network=replace(network, curves=())
        )
        assert priced[0] == 0.0
        measured = np.isin(sizes, (2, 4, 8))
        assert (priced[~measured] == plain[~measured]).all()
        assert (priced[measured] != plain[measured]).all()
        assert priced[measured] == pytest.approx(plain[measured], rel=0.35)

    def test_never_cheaper_for_more_bytes(self) -> None:
        network = network_of(cluster_of(8, node=8))
        volume = np.geomspace(1, 1e10, 300)
        for size in (2, 4, 8):
            span = span_of(network.tiers, ((np.full(300, size), np.ones(300, dtype=np.int64)),))
            for kind in (
                Collective.ALL_REDUCE,
                Collective.ALL_GATHER,
                Collective.REDUCE_SCATTER,
                Collective.ALL_TO_ALL,
            ):
                assert (
                    np.diff(move_seconds(kind, volume=volume, span=span, network=network)) >= 0.0
                ).all()


def stages_of(problem: Problem, grid: Grid) -> tuple[tuple[StageParts, ...], ...]:
    """The stages of the plan that a grid is."""
    return plan_stages(plan_of_grid(problem, grid), model=problem.model)


class TestWhoAnswered:
    @pytest.mark.parametrize("name", ["h100-sxm", "a100-sxm-40gb", "mi300x"])
    @pytest.mark.parametrize("experts", [False, True])
    def test_records_add_up_to_the_table(self, name: str, experts: bool) -> None:
        model = expert_model(dense=1, sparse=3, experts=8) if experts else dense_model(layers=4)
        grid = Grid(tp=2, sp=True, dp=4, ep=2 if experts else 1)
        problem = problem_of(model, cluster_of(8, node=8, accelerator=name), runtime=RUNTIME)
        records = priced_seconds(problem, stages_of(problem, grid))
        table = layer_table(problem, rows_of([grid])).seconds[:, :3, :, 0].sum(axis=1)
        for place in sorted({run.block for run in model.runs}):
            block = model.blocks[place]
            own = {
                f: sum(r.seconds for r in records if r.block == block.name and r.family == f)
                for f in FAMILIES
            }
            assert own["GEMM"] + own["experts' GEMM"] == pytest.approx(table[place, GEMM], rel=1e-9)
            assert own["attention"] + own["scan"] == pytest.approx(
                table[place, ATTENTION], rel=1e-9
            )
            assert own["element-wise"] == pytest.approx(table[place, ELEMENT], rel=1e-9)

    def test_evidence_follows_the_device(self) -> None:
        def largest(name: str) -> dict[str, Evidence]:
            problem = problem_of(
                dense_model(layers=4),
                cluster_of(8, node=8, accelerator=name),
                runtime=RUNTIME,
                seq_len=4096,
            )
            return {
                s.family: s.parts[0][1].evidence
                for s in shares_by_origin(
                    priced_seconds(problem, stages_of(problem, Grid(tp=8, sp=True)))
                )
            }

        assert largest("h100-sxm")["GEMM"] is Evidence.MEASURED
        assert largest("h100-sxm")["collectives"] is Evidence.MEASURED
        assert largest("a100-sxm-40gb")["GEMM"] is Evidence.ASSUMED
        assert largest("mi300x")["GEMM"] is Evidence.ASSUMED
        assert largest("mi300x")["collectives"] is Evidence.FITTED

    def test_shares_are_whole(self) -> None:
        problem = problem_of(dense_model(layers=4), cluster_of(8, node=8), runtime=RUNTIME)
        for share in shares_by_origin(
            priced_seconds(problem, stages_of(problem, Grid(tp=2, dp=4)))
        ):
            assert sum(part for part, _ in share.parts) == pytest.approx(1.0)
            assert [p for p, _ in share.parts] == sorted((p for p, _ in share.parts), reverse=True)
