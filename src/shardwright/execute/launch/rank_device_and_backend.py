"""The torch device of this rank, and the backend that carries tensors between ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shardwright.errors import UsageError
from shardwright.execute.launch.run_options_and_report import AUTO, MESSAGES
from shardwright.execute.transport.torch_distributed_collectives import GLOO, NCCL


def own_device(text: str, environment: Mapping[str, str]) -> torch.device:
    """Choose and set this rank's device; `text`: cpu, cuda, or empty = a GPU if there is one.

    Ranks of a host take its GPUs in turn, by ``LOCAL_RANK``; if there are more ranks than GPUs,
    ranks share them.

    Args:
        text: ``cpu``, ``cuda``, or empty = an accelerator if there is one.

    Raises:
        UsageError: there is no such device.
    """
    device_count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text == "cuda" and not device_count:
        raise UsageError("there is no CUDA device here", hint="--on cpu")
    if text not in ("", "cpu", "cuda"):
        raise UsageError(
            f"--on {text[:40]!r} is no device that runs plans",
            hint="cpu or cuda: ranks take a host's GPUs in turn",
        )
    if text == "cpu" or not device_count:
        return torch.device("cpu")
    device = torch.device("cuda", int(environment.get("LOCAL_RANK", "0")) % device_count)
    torch.cuda.set_device(device)
    return device


def backend_of(transport: str, on: torch.device, environment: Mapping[str, str]) -> str:
    """The torch.distributed backend for tensors between ranks; empty = messages through the host.

    Args:
        transport: one of `TRANSPORTS`. ``auto`` is NCCL where each rank has its own GPU, and gloo
            on a CPU.

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
            "ranks that share a GPU cannot use NCCL",
            hint=f"--transport {MESSAGES}, or a GPU for each rank",
        )
    return NCCL
