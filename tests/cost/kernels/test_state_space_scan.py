"""Bytes of a chunked scan against counts by hand, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.kernels.accelerator_rates import Machine, machine_of
from shardwright.cost.kernels.state_space_scan import (
    FLOPS_A_CLOCK,
    scan_bytes,
    scan_flops,
    scan_rate,
    scan_seconds,
)
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.model.ir.operator import ScanShape
from shardwright.program.training_problem import Problem
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
)
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.text.grid_notation import parse_grid

SHAPE = ScanShape(heads=8, head_dim=64, state=128, groups=2, chunk=256)
ONE = np.ones(1, dtype=np.int64)


def test_bytes_are_loads_and_stores_of_its_kernels() -> None:
    """8 heads x 64 = 512 of x; states 512 x 128 a chunk of 256 tokens: 256 a token; scores 2 x 256;
    B and C 2 x 128."""
    forward = 12 * 256 + 6 * 512 + 8 * 512 + 8 * 256
    backward = 34 * 256 + 22 * 512 + 24 * 512 + 24 * 256
    assert scan_bytes(SHAPE, tokens=ONE, heads=8 * ONE, backward=False)[0] == forward
    assert scan_bytes(SHAPE, tokens=ONE, heads=8 * ONE, backward=True)[0] == backward
    # on half the heads one group is left, of a single head's part no less than one
    assert scan_bytes(SHAPE, tokens=ONE, heads=4 * ONE, backward=False)[0] == forward / 2
    assert (
        scan_bytes(SHAPE, tokens=ONE, heads=ONE, backward=False)[0]
        == (12 * 256 + 6 * 512) / 8 + 8 * 256 + 8 * 128
    )


def _machine(device: str) -> Machine:
    return machine_of(
        accelerator(device),
        compute=Dtype.BF16,
        attention=AttentionKernel.FLASH_2,
        elements=ElementKernels.FUSED,
    )


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("state", "computes"), [(128, True), (16, False)])
def test_it_takes_the_longer_of_products_and_traffic(
    state: int, computes: bool, backward: bool
) -> None:
    """Small states leave little to multiply beside what is moved."""
    machine, tokens = _machine("h100"), 4096 * ONE
    shape = replace(SHAPE, state=state, chunk=256 if computes else 16)
    device = machine.accelerator
    spent = (
        scan_seconds(machine, shape, tokens=tokens, heads=8 * ONE, backward=backward)[0]
        - 4 * device.launch_s
    )
    moving = scan_bytes(shape, tokens=tokens, heads=8 * ONE, backward=backward)[0] / (
        device.element_efficiency * device.memory_bandwidth
    )
    computing = (
        scan_flops(shape, tokens=tokens, heads=8 * ONE)[0]
        * (2.5 if backward else 1.0)
        / scan_rate(machine)
    )
    assert spent == pytest.approx(max(moving, computing))
    assert bool(computing > moving) is computes


def test_its_kernels_go_with_multiprocessors_and_clock_and_not_with_the_peak() -> None:
    """A100: 108 x 1.41 GHz, H100: 132 x 1.83 GHz; H20 has a quarter of a Hopper's matrix rate and
    the same clock."""
    assert scan_rate(_machine("a100-sxm-80gb")) == pytest.approx(
        FLOPS_A_CLOCK * 108 * 1.41e9, rel=0.01
    )
    assert scan_rate(_machine("h100")) == pytest.approx(FLOPS_A_CLOCK * 132 * 1.83e9, rel=0.01)
    assert scan_rate(_machine("h20")) / scan_rate(_machine("h100")) == pytest.approx(
        78 / 132, rel=0.02
    )


def test_training_a_mamba_2_takes_what_was_published() -> None:
    """state-spaces/mamba#904: 48 layers of width 2048 on 4 x 4096 tokens, 239.2 TFLOP/s on H200 and
    360.4 on GB200 at 6 FLOPs for each of 1.4e9 parameters and token. What the rate was made from,
    so it tells whether the model's other kernels still leave so much.
    """
    fields = {
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_heads": 64,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 1,
    }
    rest = {
        "conv_kernel": 4,
        "chunk_size": 256,
        "vocab_size": 50288,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
    names = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2"}
    model = model_from_config({**names, **fields, **rest}, name="mamba2")
    for device, rate in (("h200", 239.2e12), ("gb200", 360.4e12)):
        problem = Problem(
            model=model,
            cluster=parse_cluster(f"{device}:1"),
            job=TrainingJob(sequences=(SequenceLength(name="text", tokens=4096),), global_batch=4),
            runtime=load_runtime("megatron-core"),
        )
        seconds = simulate_grid(
            problem, parse_grid("mbs4 dp1 zero0 recompute=none", devices=1)
        ).step_time_s
        assert seconds == pytest.approx(6 * 1.4e9 * 4 * 4096 / rate, rel=0.05)
