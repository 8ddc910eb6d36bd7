"""Reader of Kineto (torch profiler) traces: kernel seconds by class, and sized collectives.

Events are told apart by their category (``kernel``, ``gpu_memcpy``, ``gpu_memset``) and kernels by
name. A collective's kind, elements, dtype and group come from the kernel's own arguments, or from
those of the ``record_param_comms`` with the same external id.

A collective's kernel also waits for the ranks that come late; the shortest of several equal calls
is nearest to the collective alone.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from shardwright.errors import DataError
from shardwright.hardware.profile.measured_rates import KernelShare
from shardwright.lazily_compiled_dataclass import dataclass

MAX_FILE_BYTES: Final = 1024**3
_LONGEST_S: Final = 1e6
_CLASSES: Final = (
    ("nccl", re.compile(r"nccl|rccl|msccl", re.IGNORECASE)),
    ("attention", re.compile(r"flash|fmha|attention|\bmha|sdpa", re.IGNORECASE)),
    (
        "gemm",
        re.compile(
            r"gemm|gemv|cutlass|xmma|nvjet|cublas|\bdot_kernel|tensile|Cijk_|splitK|convolve|implicit_",
            re.IGNORECASE,
        ),
    ),
    (
        "elementwise",
        re.compile(
            r"elementwise|vectorized|reduce_kernel|triton_(poi|red|per)|layer_?norm|rms_?norm|softmax|rotary|multi_tensor|"
            r"fused_(adam|dropout)|index|gather|scatter|embedding|cat_|copy_|\bCat|fill|dropout|cross_entropy|adam",
            re.IGNORECASE,
        ),
    ),
)
_MEMORY: Final = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
_ELEMENT_BYTES: Final = {
    "double": 8, "long": 8, "int64": 8, "float": 4, "float32": 4, "int": 4, "int32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2,
    "char": 1, "byte": 1, "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
# Names of torch's c10d (record_param_comms), without underscores and the words for one buffer or
# many.
_COLLECTIVES: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "scatter": "scatter",
    "gather": "gather",
    "send": "send",
    "recv": "send",
}
_NOISE: Final = re.compile(r"_|base|coalesced|intotensor|tensor|single|outofplace|oop|sparse")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCollective:
    """A collective kernel of a trace: bytes of the full buffer, ranks and seconds.

    Args:
        volume: bytes of the full buffer.
        num_devices: number of ranks.
        seconds: including the time that it waited for other ranks.
    """

    collective: str
    num_devices: int
    volume: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoTrace:
    """Kernel seconds and collectives of a Kineto trace.

    Args:
        kernels: seconds and calls by class, longest first.
        collectives: those whose size is known.
        unsized: number of collective kernels whose kind, size or group is not known.
        device_name: of the first device; empty = not known.
        memory_bytes: of the first device; 0 = not known.
    """

    kernels: tuple[KernelShare, ...]
    collectives: tuple[TracedCollective, ...]
    unsized: int
    device_name: str
    memory_bytes: int


def read_kineto(path: Path) -> KinetoTrace:
    """Read a Kineto trace from a JSON file, plain or gzipped.

    Raises:
        DataError: the file cannot be read, is too large, or is no trace.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise DataError(
            f"cannot read trace {path}: {reason}",
            hint="what torch.profiler's export_chrome_trace writes",
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise DataError(f"{path} is larger than {MAX_FILE_BYTES} bytes", hint="trace fewer steps")
    return parse_kineto(content.decode("utf-8", errors="replace"), name=str(path))


def parse_kineto(text: str, *, name: str = "trace") -> KinetoTrace:
    """Parse the JSON text of a Kineto trace; unknown events are left out.

    The text is an object with ``traceEvents``, or their list alone.

    Raises:
        DataError: the text is no such JSON, or holds no kernel.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise DataError(
            f"{name} is not JSON", hint="what torch.profiler's export_chrome_trace writes"
        ) from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise DataError(
            f"{name} is not a trace: it has no traceEvents",
            hint="what torch.profiler's export_chrome_trace writes",
        )
    events = [event for event in events if isinstance(event, dict)]
    issued = {
        _external_id(event): _event_arguments(event)
        for event in events
        if "Collective name" in _event_arguments(event) and _external_id(event)
    }
    times: dict[str, tuple[float, int]] = {}
    collectives: list[TracedCollective] = []
    unsized = 0
    for event in events:
        kind, seconds = kernel_class(event), _event_seconds(event)
        if not kind or seconds is None:
            continue
        total, calls = times.get(kind, (0.0, 0))
        times[kind] = (total + seconds, calls + 1)
        if kind == "nccl":
            collective = _traced_collective(_event_arguments(event), seconds) or _traced_collective(
                issued.get(_external_id(event), {}), seconds
            )
            collectives += [collective] if collective else []
            unsized += collective is None
    if not times:
        raise DataError(
            f"{name} holds no kernel of a device", hint="trace with ProfilerActivity.CUDA"
        )
    device_name, memory = _device_properties(document)
    return KinetoTrace(
        kernels=tuple(
            KernelShare(kind=kind, seconds=seconds, calls=calls)
            for kind, (seconds, calls) in sorted(
                times.items(), key=lambda item: (-item[1][0], item[0])
            )
        ),
        collectives=tuple(collectives),
        unsized=unsized,
        device_name=device_name,
        memory_bytes=memory,
    )


def kernel_class(event: Mapping[str, Any]) -> str:
    """Class of a device event: gemm, attention, nccl, elementwise, memcpy, other; empty = none.

    Empty for any other event.
    """
    category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
    if event.get("ph") != "X":
        return ""
    if category in _MEMORY:
        return "memcpy"
    if category != "kernel":
        return ""
    return next((kind for kind, pattern in _CLASSES if pattern.search(name)), "other")


def shortest_calls(
    collectives: Iterable[TracedCollective],
) -> dict[tuple[str, int], tuple[tuple[int, float], ...]]:
    """(collective, number of ranks) -> (bytes, shortest seconds of a call), sizes rising."""
    groups: dict[tuple[str, int], dict[int, float]] = {}
    for call in collectives:
        sizes = groups.setdefault((call.collective, call.num_devices), {})
        sizes[call.volume] = min(sizes.get(call.volume, math.inf), call.seconds)
    return {key: tuple(sorted(sizes.items())) for key, sizes in sorted(groups.items())}


def _event_arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments of an event; empty where it has none."""
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _external_id(event: Mapping[str, Any]) -> str:
    """External id of an event, which links a kernel to its CPU call; empty = none."""
    arguments = _event_arguments(event)
    return str(arguments.get("External id", arguments.get("external id", "")))


def _event_seconds(event: Mapping[str, Any]) -> float | None:
    """Duration of an event in seconds; None where it is missing or impossible.

    ``dur`` is in microseconds whatever displayTimeUnit says.
    """
    value = event.get("dur")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    seconds = value * 1e-6 if abs(value) < 1e15 else math.inf
    return seconds if 0 < seconds < _LONGEST_S else None


def _positive_count(arguments: Mapping[str, Any], name: str) -> int:
    """Positive whole number of an argument; 0 where it is none."""
    value = arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**53:
        return 0
    return value


def _traced_collective(arguments: Mapping[str, Any], seconds: float) -> TracedCollective | None:
    """Collective call with its larger message's bytes; None where kind, size or group is missing.

    The full buffer is the larger of input and output.
    """
    name = _NOISE.sub("", str(arguments.get("Collective name", "")).lower())
    kind = _COLLECTIVES.get(name, "")
    width = _ELEMENT_BYTES.get(str(arguments.get("dtype", "")).lower(), 0)
    elements = max(
        _positive_count(arguments, "In msg nelems"), _positive_count(arguments, "Out msg nelems")
    )
    devices = _positive_count(arguments, "Group size")
    if not kind or not width or not elements or devices < 2:
        return None
    return TracedCollective(
        collective=kind, num_devices=devices, volume=elements * width, seconds=seconds
    )


def _device_properties(document: Any) -> tuple[str, int]:
    """(name, memory bytes) of the trace's first device; ("", 0) where the trace does not say."""
    devices = document.get("deviceProperties") if isinstance(document, dict) else None
    properties = (
        devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    )
    return " ".join(str(properties.get("name", "")).split())[:60], _positive_count(
        properties, "totalGlobalMem"
    )
