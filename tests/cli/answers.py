"""An answer and a prediction as the search returns them, with numbers that are easy to follow."""

from dataclasses import replace

from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.search_answer import (
    Alternative,
    Answer,
    Goodput,
    OptionChange,
    Sensitivity,
    Unsearched,
)
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.prediction import Counted, Prediction, Source, StageMemory
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from shardwright.units import GIB

REQUEST = Request(
    model="llama-2-7b",
    cluster="h100-sxm:64",
    seq_len=4096,
    global_batch=256,
    pins=(("pp", ("4", "8")),),
    excludes=(("zero", ("3",)),),
    top=2,
    runtime="megatron-core-0.12",
    precision="bf16",
)
BEST = Grid(tp=2, sp=True, pp=4, dp=8, zero=1)


def stage(rank: int, *, layers: str = "8 layer", activations: int = 10 * GIB) -> StageMemory:
    items = (
        ("parameters", 4 * GIB),
        ("gradients", 8 * GIB),
        ("optimizer", 3 * GIB),
        ("activations", activations),
    )
    allocated = sum(size for _, size in items)
    return StageMemory(
        rank=rank,
        devices=16,
        layers=layers,
        items=items,
        allocated=allocated,
        reserved=allocated + 2 * GIB,
    )


PREDICTION = Prediction(
    devices=8,
    idle_devices=0,
    model=Counted(
        name="llama-2-7b",
        parameters=6_738_415_616,
        active=6_738_415_616,
        trainable=6_738_415_616,
        unread=("engram_slots",),
    ),
    cluster="64 x h100-sxm, 8 nodes of 8",
    step_time_s=2.0,
    interval_s=(1.9, 2.125),
    tokens_per_s=524288.0,
    tokens_per_s_per_device=8192.0,
    mfu_causal=1 / 3,
    mfu_full=0.375,
    allocated_bytes=30 * GIB,
    reserved_bytes=32 * GIB,
    fits=True,
    capacity_bytes=80 * GIB,
    full_bytes=0,
    stages=(
        stage(0, layers="embed + 8 layer", activations=15 * GIB),
        stage(1),
        stage(2),
        stage(3, layers="8 layer + head"),
    ),
    breakdown_s=(("gemm", 1.25), ("attention", 0.25), ("tp", 0.2), ("bubble", 0.3)),
    sources=(
        Source(
            quantity="peak bf16",
            value="989 TFLOP/s",
            origin=Origin(evidence=Evidence.PUBLISHED, reference="data sheet"),
        ),
        Source(
            quantity="network card",
            value="40 GB/s",
            origin=Origin(evidence=Evidence.ASSUMED, reference="0.8 of the line rate"),
        ),
    ),
)
CERTIFICATE = Certificate(
    space="standard: 64 devices; tp {1, 2}; pp {4, 8}",
    digest="0123456789abcdef",
    enumerated=1000,
    illegal=600,
    duplicates=100,
    infeasible=50,
    bounded_b0=200,
    bounded_b1=40,
    simulated=10,
    best_s=2.0,
    lower_bound_s=2.0,
    gap=0.0,
    optimal=True,
    universal_gap=0.4,
    infeasible_by_reason=(("memory bound", 50),),
)
ANSWER = Answer(
    grid=BEST,
    prediction=PREDICTION,
    certificate=CERTIFICATE,
    alternatives=(
        Alternative(
            grid=replace(BEST, tp=1, sp=False, dp=16),
            step_time_s=2.05,
            allocated_bytes=40 * GIB,
            changes=(("sharding", -0.06), ("bubble", 0.04), ("tp", 0.03)),
            indistinguishable=True,
        ),
        Alternative(
            grid=replace(BEST, recompute=Recompute.FULL),
            step_time_s=2.5,
            allocated_bytes=20 * GIB,
            changes=(("recompute", 0.6), ("bubble", -0.1)),
            indistinguishable=False,
        ),
    ),
    search_time_s=0.123456,
    sensitivity=Sensitivity(
        change="10 % less bandwidth between nodes", same_plan_s=2.1, best_s=2.1, best_grid=BEST
    ),
    goodput=Goodput(
        failures_per_day=0.5,
        checkpoint_interval_s=900.0,
        goodput=0.97,
        assumptions=("a restart takes 600 s", "a checkpoint takes 10 s"),
    ),
    request=REQUEST,
)


UNSEARCHED = Unsearched(
    fixed=(("loss", "plain"), ("grad_check", "on")),
    best=OptionChange(option="loss", value="te", step_time_s=1.96, gain=0.02),
)


def simulated(grid: Grid = BEST, prediction: Prediction = PREDICTION) -> Simulation:
    return Simulation(request=REQUEST, name="", grid=grid, plan=None, prediction=prediction)
