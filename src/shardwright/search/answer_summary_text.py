"""The summary of an answer as lines of text: request, strategy, step time, speed and memory.

It is the same on every screen and in ``print``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shardwright.cost.step.dollars_and_joules import Spending
from shardwright.hardware.accelerator import Evidence
from shardwright.search.certificate_part_of_cluster_states import judged_by
from shardwright.search.search_request import Request
from shardwright.simulator.prediction import Counted, HostMemory, Prediction, host_lack
from shardwright.strategy.text.replace_unprintable_characters import printable
from shardwright.units import format_bytes, format_dollars, format_parameters, format_percent

Line = tuple[str, str]
"""A label (empty = none) and the text after the label."""

LABEL: Final = 10
"""Width of the label column."""
TIGHT: Final = 0.95
"""Fraction of a device's memory above which a plan may not fit, by errors of a few percent."""
NO_FIT: Final = "DOES NOT FIT"
WARNING: Final = (
    f"above {format_percent(TIGHT, digits=0)} it may run out in practice: keep some free"
)


def text_of(lines: Iterable[Line]) -> str:
    """Text of the lines, with labels in a column of fixed width."""
    return "\n".join(f"{label:<{LABEL}}{words}" if label else words for label, words in lines)


def answer_line(strategy: str, *, step_time_s: float, misfit: str = "") -> str:
    """The line of ``--quiet``: step seconds, tab, strategy, and tab, missing memory if any."""
    return "\t".join([f"{step_time_s:.9g} s", strategy, *([misfit] if misfit else [])]) + "\n"


def misfit_text(p: Prediction, *, classes: tuple[str, ...] = ()) -> str:
    """Text of the bytes that the fullest stage, or device class, and nodes lack; empty if it fits.

    Args:
        classes: text of the devices of each class, for a general plan.
    """
    if p.fits:
        return ""
    worst = max(p.stages, key=lambda stage: stage.reserved / stage.capacity_or(p.capacity_bytes))
    where = f"devices {classes[worst.rank]}" if classes else f"stage {worst.rank}"
    over = worst.reserved - worst.capacity_or(p.capacity_bytes)
    of_device = f"{where} by {format_bytes(over)}" if over > 0 else ""
    return f"{NO_FIT}: " + "; ".join(filter(None, (of_device, host_lack(p.host_memory))))


def summary(
    request: Request | None,
    prediction: Prediction,
    *,
    strategy: str,
    classes: tuple[str, ...] = (),
    fitting: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    searched: bool = False,
) -> list[Line]:
    """Lines (label, text) of the request, the strategy, the step and its memory.

    Args:
        request: None = unknown.
        strategy: text of the strategy.
        classes, fitting, notes: see `search.simulated_strategy.Simulation`.
        searched: True if the plan was searched among plans that leave the request's headroom free.
    """
    request_part = [*request_lines(request), ("", "")] if request else []
    runtime = [("Runtime", request.runtime)] if request and request.runtime else []
    return [
        *request_part,
        ("Model", model_text(prediction.model)),
        ("Strategy", strategy),
        *runtime,
        *(("Note", note) for note in notes),
        *prediction_lines(
            prediction, kept=kept_free(request, searched=searched), classes=classes, fitting=fitting
        ),
    ]


def request_lines(request: Request) -> list[Line]:
    """Lines (label, text) of the request, without the runtime."""
    devices = f", at most {request.max_devices:,} devices" if request.max_devices else ""
    restrictions = [f"{axis}={','.join(values)}" for axis, values in request.pins]
    restrictions += [f"not {axis}={','.join(values)}" for axis, values in request.excludes]
    question = (
        f"{request.model} on {request.cluster}{devices}: "
        f"{request.global_batch:,} sequences of {request.seq_len:,} tokens a step,"
        f" {request.precision}"
        f"{f', trained: {request.train}' if request.train else ''}"
        f"{f', teacher: {request.teacher}' if request.teacher else ''}"
    )
    goal = [request.objective] if request.objective != "time" else []
    goal += [f"at most {format_dollars(request.budget)} an hour"] if request.budget else []
    return [
        ("", question),
        *([("", f"pinned: {', '.join(restrictions)}")] if restrictions else []),
        *([("", f"objective: {', '.join(goal)}")] if goal else []),
        *(
            [("", f"scenarios of {request.scenarios}, judged by {judged_by(request.tail)}")]
            if request.scenarios
            else []
        ),
    ]


def model_text(model: Counted) -> str:
    """Text of the model's name, parameter counts (all, active, trained) and unread fields.

    Active and trained parameters are left out if they equal all parameters.
    """
    all_parameters, active, trained = (
        format_parameters(count) for count in (model.parameters, model.active, model.trainable)
    )
    text = f"{printable(model.name)}, {all_parameters} parameters"
    text += f", {active} of them for a token" if active != all_parameters else ""
    text += f", {trained} trained" if trained != all_parameters else ""
    return text + (f"; not read: {', '.join(model.unread)}" if model.unread else "")


def kept_free(request: Request | None, *, searched: bool) -> str:
    """Text of device memory kept free: the reserve and, in a search, the headroom; empty = none."""
    if request is None:
        return ""
    size = (
        format_bytes(request.reserve_bytes)
        if request.reserve_bytes
        else format_percent(request.reserve_fraction)
    )
    reserve = (
        [f"{size} more is kept free (--memory-reserve)"]
        if request.reserve_bytes or request.reserve_fraction
        else []
    )
    share = f"plans leave {format_percent(request.headroom, digits=0)} of it free (--headroom)"
    return ", ".join([*([share] if searched and request.headroom else []), *reserve])


def prediction_lines(
    p: Prediction, *, kept: str = "", classes: tuple[str, ...] = (), fitting: tuple[str, ...] = ()
) -> list[Line]:
    """Lines (label, text) of cluster, step time, speed, cost, memory verdict and assumed inputs.

    Args:
        kept: text of the memory that is kept free.
        classes, fitting: see `verdict`.
    """
    low, high = p.interval_s
    source_of = {source.quantity: source for source in p.sources}
    network_sources = [
        source_of[name]
        for name in ("nodes", "switches", "links between zones")
        if name in source_of
    ]
    cluster = [
        (f"{s.value} (assumed)" if s.origin.evidence is Evidence.ASSUMED else s.value)
        for s in network_sources
    ] or [p.cluster]
    idle = f"{p.devices:,} of {p.devices + p.idle_devices:,}; {p.idle_devices:,} stay idle"
    assumed = dict.fromkeys(s.quantity for s in p.sources if s.origin.evidence is Evidence.ASSUMED)
    return [
        ("Cluster", "; ".join(cluster)),
        *([("Devices", idle)] if p.idle_devices else []),
        ("Step", f"{p.step_time_s:.4g} s (80 % interval {low:.4g} to {high:.4g} s)"),
        (
            "Speed",
            (
                f"{p.tokens_per_s:,.0f} tokens/s, {p.tokens_per_s_per_device:,.1f} tokens/s/device,"
                f" MFU {format_percent(p.mfu_causal)} (causal attention),"
                f" {format_percent(p.mfu_full)} (full)"
            ),
        ),
        *(
            [("Cost", cost_text(p.spending))]
            if p.spending is not None and p.spending.usd is not None
            else []
        ),
        ("Memory", verdict(p, kept=kept, classes=classes, fitting=fitting)),
        *([("Assumed", ", ".join(assumed))] if assumed else []),
    ]


def cost_text(spending: Spending) -> str:
    """Text of the dollars per step, per billion tokens and per hour, and the paid devices."""
    assert spending.usd is not None
    egress = (
        f", {format_dollars(spending.egress_usd)} of it for bytes between zones"
        if spending.egress_usd
        else ""
    )
    paid, working = sum(spending.paid_devices), sum(spending.working_devices)
    idle = f", {paid - working:,} of which idle in a node that works" if paid > working else ""
    return (
        f"{format_dollars(spending.usd)} a step{egress},"
        f" {format_dollars(spending.usd_per_billion_tokens or 0.0)} a billion tokens;"
        f" {format_dollars(spending.usd_per_hour or 0.0)} an hour for {paid:,} devices{idle}"
    )


def verdict(
    p: Prediction, *, kept: str = "", classes: tuple[str, ...] = (), fitting: tuple[str, ...] = ()
) -> str:
    """Text of the memory verdict: fill of the fullest device, or the missing bytes and remedies.

    A nearly full device adds a warning.

    Args:
        kept: text of the memory that is kept free.
        classes: text of the devices of each class, for a general plan.
        fitting: changes with which the plan fits.
    """
    room = p.capacity_bytes
    share = p.reserved_bytes / room
    if p.fits:
        fits = (
            f"fits: the fullest device holds {format_percent(share)} of the {format_bytes(room)}"
            " that a program can allocate"
        )
        fits += host_share(p.host_memory)
        if p.full_bytes:
            fits += (
                f", {format_bytes(p.full_bytes - p.reserved_bytes)} less than if all parameters"
                " were trained"
            )
        remark = WARNING if share > TIGHT else kept
        return f"{fits}; {remark}" if remark else fits
    hint = f"; fits with {' or '.join(fitting)}" if fitting else ""
    blocks = (
        "; the tensors fit, but the caching allocator's fragmentation does not: PyTorch would run,"
        " calling cudaFree and cudaMalloc in every step; that time is not predicted"
    )
    on_devices = p.reserved_bytes > p.capacity_bytes
    return (
        f"{misfit_text(p, classes=classes)}{hint}{blocks if on_devices and _tensors_fit(p) else ''}"
    )


def host_share(hosts: tuple[HostMemory, ...]) -> str:
    """Text of the host memory that the fullest node uses; empty if nothing is offloaded."""
    if not hosts:
        return ""
    host = hosts[0]
    used = (
        f"{format_percent(host.need / host.capacity)} of the {format_bytes(host.capacity)}"
        if host.capacity
        else format_bytes(host.need)
    )
    return (
        f", and the fullest node needs {used} of its host memory"
        if host.capacity
        else f", and the fullest node needs {used} of host memory"
    )


def _tensors_fit(p: Prediction) -> bool:
    """True if every stage fits without the fragmentation of the caching allocator."""
    return all(
        s.reserved - dict(s.items).get("fragmentation", 0) <= s.capacity_or(p.capacity_bytes)
        for s in p.stages
    )
