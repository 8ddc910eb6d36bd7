"""The device of this rank, and what carries tensors to other ranks' devices."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shardwright.errors import UsageError
from shardwright.execute.launch.run_report import AUTO, MESSAGES
from shardwright.execute.transport.group_collectives import GLOO, NCCL


def own_device(text: str, environment: Mapping[str, str]) -> torch.device:
    """The device that this rank computes on, which is PyTorch's current one from now on.

    Ranks of a host take its GPUs in turn, by ``LOCAL_RANK``; more ranks than GPUs share them.

    Args:
        text: ``cpu``, ``cuda``, or empty = an accelerator if there is one.

    Raises:
        UsageError: there is no such device.
    """
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text == "cuda" and not here:
        raise UsageError("there is no CUDA device here", hint="--on cpu")
    if text not in ("", "cpu", "cuda"):
        raise UsageError(
            f"--on {text[:40]!r} is no device that runs plans",
            hint="cpu or cuda: ranks take a host's GPUs in turn",
        )
    if text == "cpu" or not here:
        return torch.device("cpu")
    found = torch.device("cuda", int(environment.get("LOCAL_RANK", "0")) % here)
    torch.cuda.set_device(found)
    return found


def backend_of(transport: str, on: torch.device, environment: Mapping[str, str]) -> str:
    """The backend of torch.distributed whose communicators carry tensors between ranks; empty =
    messages by the host.

    Args:
        transport: one of `TRANSPORTS`. By itself it is NCCL where each rank has a GPU of its own,
            and gloo on a processor.

    Raises:
        UsageError: ranks that share a GPU cannot be a group of NCCL.
    """
    if on.type != "cuda":
        return "" if transport == MESSAGES else GLOO
    shared = int(environment.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()
    if transport == MESSAGES or (transport == AUTO and shared):
        return ""
    if shared:
        raise UsageError(
            "ranks that share a GPU cannot meet in NCCL",
            hint=f"--transport {MESSAGES}, or a GPU for each rank",
        )
    return NCCL
