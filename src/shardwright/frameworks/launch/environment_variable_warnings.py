"""Environment variables of a launch that slow the step or that a framework requires.

Variables that are options of a runtime are not here.

Source: NCCL 2.27, user guide, "Environment Variables"; PyTorch 2.9, notes on CUDA and on
torch.distributed; Transformer Engine 2.4, pytorch/attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from shardwright.frameworks.settings.setting_verdicts import LaunchSetting, Verdict
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.strategy.grid.parallelism_grid import Grid

_ON: Final = name_set("1 true yes on y")
_SLOWS: Final[Mapping[str, tuple[frozenset[str], str]]] = MappingProxyType(
    {
        "NCCL_P2P_DISABLE": (_ON, "devices of a node exchange through host memory"),
        "NCCL_SHM_DISABLE": (_ON, "devices without peer access exchange over the network"),
        "NCCL_IB_DISABLE": (_ON, "nodes exchange over TCP sockets"),
        "NCCL_NVLS_ENABLE": (frozenset({"0"}), "no sums inside the switch"),
        "NCCL_P2P_LEVEL": (
            frozenset({"loc", "0"}),
            "devices of a node exchange through host memory",
        ),
        "NCCL_NET_GDR_LEVEL": (
            frozenset({"loc", "0"}),
            "the network reads and writes host memory, not the device's",
        ),
        "NCCL_NET_GDR_DISABLE": (_ON, "the network reads and writes host memory, not the device's"),
        "CUDA_LAUNCH_BLOCKING": (_ON, "the host waits for every kernel"),
        "TORCH_NCCL_BLOCKING_WAIT": (_ON, "the host waits for every collective"),
        "NCCL_BLOCKING_WAIT": (_ON, "the host waits for every collective"),
        "TORCH_DISTRIBUTED_DEBUG": (
            frozenset({"detail"}),
            "every collective is checked against those of all ranks",
        ),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": (_ON, "every tensor is a cudaMalloc"),
        "AMD_SERIALIZE_KERNEL": (frozenset({"1", "2", "3"}), "the host waits for every kernel"),
        "HIP_LAUNCH_BLOCKING": (_ON, "the host waits for every kernel"),
    }
)
"""Variable -> values at which it slows a step, and what it does."""
_ATTENTION: Final = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")
_CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
_MEGATRON: Final = frozenset({"megatron", "megatron-deepspeed"})


def slowing_variables(
    environment: Mapping[str, str], *, counted: Mapping[str, str]
) -> Iterator[LaunchSetting]:
    """Yield UNKNOWN verdicts on set variables that slow the step and are no setting in `counted`.

    Args:
        environment: variables of the script.
        counted: settings of the launch, which include variables that are options of its runtime.
    """
    for name, (values, what) in _SLOWS.items():
        value = environment.get(name, "").strip().lower()
        if value in values and name.replace("_", "-").lower() not in counted:
            yield LaunchSetting(
                name=name,
                value=environment[name],
                verdict=Verdict.UNKNOWN,
                means=f"not counted, and slows the step: {what}",
            )
    if all(environment.get(name, "").strip() == "0" for name in _ATTENTION):
        what = "no fused attention: the scores are written to memory"
        yield LaunchSetting(
            name=" ".join(_ATTENTION),
            value="0",
            verdict=Verdict.UNKNOWN,
            means=f"not counted, and slows the step: {what}",
        )


def needed_variables(framework: str, grid: Grid, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield Megatron notes: CUDA_DEVICE_MAX_CONNECTIONS unset at tp or cp > 1, or 1 at ZeRO > 1."""
    if framework in _MEGATRON and grid.zero > 1 and environment.get(_CONNECTIONS) == "1":
        yield f"the script sets {_CONNECTIONS}=1, at which Megatron-FSDP stops"
    if (
        framework in _MEGATRON
        and grid.zero < 2
        and grid.tp * grid.cp > 1
        and _CONNECTIONS not in environment
    ):
        yield (
            f"the script does not set {_CONNECTIONS}=1, without which Megatron-LM stops on Hopper"
            " and older with tp or cp above 1"
        )
