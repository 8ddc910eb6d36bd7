"""Prediction of a plan: time, memory, parts of the step, and the sources of the numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.cost.kernels.measured_kernel_factors import attention_is_tabled
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.network.networks_of_plan_devices import group_problem, node_group_of
from shardwright.cost.step.dollars_and_joules import Spending, spending_of
from shardwright.cost.step.model_flops import model_flops
from shardwright.cost.step.price_origin_shares import priced_seconds, shares_by_origin
from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.hardware.cluster_network_levels import counts_by_group
from shardwright.model.ir.model_graph import Model
from shardwright.program.identity_cache_keys import Same
from shardwright.program.stages.stage_segments import working_devices
from shardwright.program.training_problem import Problem, under
from shardwright.simulator.busy_and_waiting_by_device_kind import kind_names, kind_times
from shardwright.simulator.cluster_texts_and_sources import cluster_sources, host_sources
from shardwright.simulator.prediction import Counted, Prediction, Source, StageMemory
from shardwright.simulator.simulate_plan import (
    SimulatedPlan,
    peak_flops,
    plan_of_grid,
    simulate_plan,
)
from shardwright.simulator.step_breakdown import breakdown, critical_class
from shardwright.simulator.step_time_interval import doubts, interval
from shardwright.simulator.traffic.network_egress_dollars import egress_usd
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.units import format_bytes, format_seconds


def predict_plan(
    problem: Problem, plan: Plan, result: SimulatedPlan | None = None, *, with_sources: bool = True
) -> Prediction:
    """Predict one legal plan: step time, memory, parts of the step, sources of the numbers.

    Its `stages` are the device classes of the program, each with its number of devices. The worst
    device is the one that fills the largest fraction of its memory: if it fits, all do. The
    denominator of MFU is the sum of the peaks of all devices that are in a stage; the other devices
    are idle. The interval is that of the critical class's kind.

    Args:
        result: simulation of `plan`, if it is known already.
        with_sources: also determine the sources of the numbers, a fifth of the work.

    Raises:
        StrategyError: as `simulate_plan`.
    """
    problem = under(problem, plan.options)
    simulated = result or simulate_plan(problem, plan)
    step, classes = simulated.step_time_s, simulated.program.classes
    kinds = [_node_group_of(problem, c.devices.first) for c in classes]
    capacity = [usable_bytes_of_node_group(problem, kind) for kind in kinds]
    fullest = max(
        range(len(classes)), key=lambda k: (simulated.memory[k].reserved / capacity[k], -k)
    )
    parts = breakdown(simulated)
    critical = group_problem(problem, kinds[critical_class(simulated)])
    reasons = doubts(
        critical,
        parts=parts,
        step_s=step,
        full=simulated.memory[fullest].reserved / capacity[fullest],
    )
    working = working_devices(Same(simulated.program.stages))
    peak = peak_flops(problem, working)
    causal, full = model_flops(problem)
    return Prediction(
        model=model_counts(problem.model),
        cluster=problem.cluster.described(),
        step_time_s=step,
        interval_s=interval(step, reasons),
        devices=len(working),
        idle_devices=problem.cluster.num_devices - len(working),
        doubts=reasons,
        tokens_per_s=problem.job.tokens_per_step / step,
        tokens_per_s_per_device=problem.job.tokens_per_step / step / len(working),
        mfu_causal=causal / step / peak,
        mfu_full=full / step / peak,
        allocated_bytes=simulated.memory[fullest].allocated,
        reserved_bytes=simulated.memory[fullest].reserved,
        capacity_bytes=capacity[fullest],
        full_bytes=_bytes_if_all_trained(problem, plan) if with_sources else 0,
        fits=simulated.memory[fullest].reserved <= capacity[fullest] and simulated.fits_hosts,
        stages=_stages(problem, simulated.memory, kinds),
        breakdown_s=parts,
        kinds=() if problem.cluster.is_uniform else kind_times(problem.cluster, simulated),
        sources=_sources(problem, plan, simulated) if with_sources else (),
        spending=step_spending(problem, simulated),
        host_memory=simulated.host_memory,
    )


def step_spending(problem: Problem, simulated: SimulatedPlan) -> Spending:
    """Dollars (egress included) and joules of one step of a simulated plan."""
    working = working_devices(Same(simulated.program.stages))
    egress, tokens = egress_usd(problem, simulated), problem.job.tokens_per_step
    return spending_of(
        problem.cluster, working, seconds=simulated.step_time_s, tokens=tokens, egress_usd=egress
    )


def _bytes_if_all_trained(problem: Problem, plan: Plan) -> int:
    """Simulated peak bytes of the fullest device if the base were trained whole; 0 without base."""
    if problem.model.base is None:
        return 0
    return max(
        memory.reserved
        for memory in simulate_plan(replace(problem, model=problem.model.base), plan).memory
    )


def model_counts(model: Model) -> Counted:
    """Parameter counts of a model, for comparison with published counts."""
    return Counted(
        name=model.name,
        parameters=model.num_parameters,
        active=model.num_active_parameters,
        trainable=model.num_trainable_parameters,
        unread=model.unread,
    )


def _stages(
    problem: Problem, memory: tuple[StageMemory, ...], kinds: list[int]
) -> tuple[StageMemory, ...]:
    """Memory of each device class; capacity and kind set in a mixed cluster, else capacity 0."""
    if problem.cluster.is_uniform:
        return tuple(replace(class_memory, capacity=0) for class_memory in memory)
    names = kind_names(problem.cluster)
    return tuple(
        replace(class_memory, capacity=usable_bytes_of_node_group(problem, k), kind=names[k])
        for class_memory, k in zip(memory, kinds, strict=True)
    )


def usable_bytes_of_node_group(problem: Problem, group: int) -> int:
    """Memory bytes of a group's device: the user's reserve is subtracted, the context is not."""
    return problem.cluster.groups[group].kind.accelerator.memory_bytes


def _node_group_of(problem: Problem, device: int) -> int:
    """Number of the node group of a device."""
    return 0 if problem.cluster.is_uniform else node_group_of(problem.cluster, device)


def predict(
    problem: Problem, grid: Grid, result: SimulatedPlan | None = None, *, with_sources: bool = True
) -> Prediction:
    """Predicted step seconds, memory, spending of one legal grid, simulated as its general plan."""
    return predict_plan(problem, plan_of_grid(problem, grid), result, with_sources=with_sources)


def _sources(problem: Problem, plan: Plan, simulated: SimulatedPlan) -> tuple[Source, ...]:
    """Sources of the cluster, used node kinds, host memory, assumptions and kernel seconds."""
    used = [
        group
        for group, count in enumerate(
            counts_by_group(problem.cluster, working_devices(Same(simulated.program.stages)))
        )
        if count
    ]
    node_sources = dict.fromkeys(
        _with_accelerator(problem, kind, s)
        for kind in used
        for s in problem_sources(group_problem(problem, kind))
    )
    vendors = dict.fromkeys(problem.cluster.groups[kind].kind.accelerator.vendor for kind in used)
    hosts = host_sources(problem.cluster, used) if simulated.host_memory else ()
    return (
        *cluster_sources(problem.cluster),
        *hosts,
        *_shared_library(tuple(vendors)),
        *_quantised_checkpoint(problem),
        *node_sources,
        *_kernel_sources(problem, simulated),
    )


def _quantised_checkpoint(problem: Problem) -> tuple[Source, ...]:
    """Source of the assumption that a quantised checkpoint trains in the job's format, or ()."""
    stored = problem.model.stored
    if stored is None:
        return ()
    return (
        Source(
            quantity=(
                f"weights in {problem.job.activation.value}, though the checkpoint stores"
                f" {stored.text()}"
            ),
            value=f"{problem.job.activation.value} in training",
            origin=Origin(
                evidence=Evidence.ASSUMED,
                reference="quantization_config of the model's configuration",
            ),
        ),
    )


_ACROSS_VENDORS: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference=(
        "FlagCX 0.5 joins NCCL and RCCL (https://github.com/FlagOpen/FlagCX, README); its rates are"
        " not published"
    ),
)


def _shared_library(vendors: tuple[str, ...]) -> tuple[Source, ...]:
    """Source of the assumption that one collective library spans vendors; () = fewer than two.

    The vendors' own libraries do not span two vendors.
    """
    if len(vendors) < 2:
        return ()
    quantity = f"one collective library over {' and '.join(vendors)}"
    return (Source(quantity=quantity, value="priced as the runtime's own", origin=_ACROSS_VENDORS),)


def _with_accelerator(problem: Problem, kind: int, source: Source) -> Source:
    """Prefix a source with its accelerator's name if the cluster has several kinds."""
    accelerators = {group.kind.accelerator.name for group in problem.cluster.groups}
    if len(accelerators) == 1:
        return source
    return replace(
        source, quantity=f"{problem.cluster.groups[kind].kind.accelerator.name} {source.quantity}"
    )


def _kernel_sources(problem: Problem, simulated: SimulatedPlan) -> tuple[Source, ...]:
    """One source for each kernel family: fractions of its seconds by origin, largest first.

    The origin is that of the largest fraction.
    """
    return tuple(
        Source(
            quantity=f"{share.family} time",
            value=", ".join(
                f"{part:.0%} {origin.evidence.value} ({origin.reference})"
                for part, origin in share.parts
            ),
            origin=share.parts[0][1],
        )
        for share in shares_by_origin(priced_seconds(problem, simulated.program.stages))
    )


def problem_sources(problem: Problem) -> tuple[Source, ...]:
    """Rates and sizes of the first kind of node that every prediction uses, with their sources."""
    node, machine = problem.cluster.node, problem_machine(problem)
    device = node.accelerator
    gemm = machine.gemm
    return (
        Source(
            quantity=f"peak {machine.compute.value}",
            value=f"{machine.peak / 1e12:.4g} TFLOP/s",
            origin=device.origin,
        ),
        Source(quantity="memory", value=format_bytes(device.memory_bytes), origin=device.origin),
        Source(
            quantity="memory bandwidth",
            value=f"{device.memory_bandwidth / 1e12:.4g} TB/s",
            origin=device.origin,
        ),
        Source(
            quantity=f"GEMM rates {gemm.dtype.value}",
            value=(
                f"ec {gemm.compute_efficiency} em {gemm.memory_efficiency} q {gemm.exponent} x"
                f" {gemm.sustained}"
            ),
            origin=gemm.origin,
        ),
        *_attention_curve(machine),
        Source(
            quantity="scale-up link",
            value=_link_text(node.scale_up.achieved, node.scale_up.latency_s),
            origin=node.scale_up.origin,
        ),
        *(
            Source(
                quantity=f"{tier.name} of a node",
                value=(
                    f"{tier.num_devices} devices,"
                    f" {_link_text(tier.link.achieved, tier.link.latency_s)} a unit below"
                ),
                origin=tier.link.origin,
            )
            for tier in node.node_tiers
        ),
        Source(
            quantity="network card",
            value=_link_text(node.nic.achieved, node.nic.latency_s),
            origin=node.nic.origin,
        ),
    )


def _attention_curve(machine: Machine) -> tuple[Source, ...]:
    """Source of the attention kernel's rate curve, unless a measured table replaces the curve."""
    if attention_is_tabled(machine.accelerator, machine.attention):
        return ()
    curve = ", ".join(f"{length}: {share}" for length, share in machine.attention.forward)
    return (
        Source(
            quantity=f"attention {machine.attention.generation}",
            value=curve,
            origin=machine.attention.origin,
        ),
    )


def _link_text(bandwidth: float, latency: float) -> str:
    """Text of a link's bandwidth in GB/s and its latency."""
    return f"{bandwidth / 1e9:.4g} GB/s, {format_seconds(latency)}"
