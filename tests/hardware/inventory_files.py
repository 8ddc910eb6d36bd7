"""Texts as other programs write them: made here, in their forms, of made-up clusters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

BESIDE, FAR = "PIX", "SYS"


def topo_matrix(
    devices: int,
    link: Callable[[int, int], str],
    *,
    cards: Sequence[Sequence[int]] = (),
    gap: str = "\t",
) -> str:
    """What nvidia-smi topo -m prints.

    Args:
        link: of two devices.
        cards: devices beside each card.
        gap: between cells.
    """
    names = [f"GPU{n}" for n in range(devices)] + [f"NIC{n}" for n in range(len(cards))]
    lines = [
        gap
        + gap.join(f"\x1b[4m{name}" for name in names)
        + gap
        + "CPU Affinity"
        + gap
        + "NUMA Affinity"
        + gap
        + "GPU NUMA ID\x1b[0m"
    ]
    for n in range(devices):
        cells = [" X " if n == m else link(n, m) for m in range(devices)] + [
            BESIDE if n in card else FAR for card in cards
        ]
        lines.append(gap.join([f"GPU{n}", *cells, "0-47,96-143", "0", "N/A"]))
    for c, card in enumerate(cards):
        cells = [BESIDE if n in card else FAR for n in range(devices)] + [
            " X " if c == d else FAR for d in range(len(cards))
        ]
        lines.append(gap.join([f"NIC{c}", *cells]))
    legend = (
        "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of #"
        " NVLinks\n\nNIC Legend:\n\n"
    )
    return (
        "\n".join(lines)
        + "\n"
        + legend
        + "".join(f"  NIC{c}: mlx5_{c}\n" for c in range(len(cards)))
    )


def nccl_gpu(
    number: int,
    *,
    links: str,
    sm: int,
    device: str,
    speed: str = "32.0 GT/s PCIe",
    bus: str = "0000:{:02x}:00.0",
    rank: int = -1,
) -> str:
    attributes = (
        f'class="0x030200" vendor="0x10de" device="{device}" link_speed="{speed}" link_width="16"'
    )
    rank = number if rank < 0 else rank
    return (
        f'<pci busid="{bus.format(16 + number)}" {attributes}><gpu dev="{number}" sm="{sm}"'
        f' rank="{rank}" gdr="1">{links}</gpu></pci>'
    )


def nccl_card(number: int, *, speed: int, bus: str = "0000:{:02x}:00.0") -> str:
    net = (
        f'<net name="mlx5_{number}" dev="{number}" latency="0.000000" speed="{speed}" port="1"'
        f' guid="0x{number + 1:x}" maxconn="131072"/>'
    )
    return (
        f'<pci busid="{bus.format(64 + number)}" class="0x020700" link_speed="32.0 GT/s PCIe"'
        f' link_width="16"><nic>{net}</nic></pci>'
    )


def nccl_xml(groups: Sequence[str], *, hosts: Sequence[str] = ("0x1",)) -> str:
    """A dump: what hangs from each PCIe switch, on each of the hosts."""
    kind = 'class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16"'
    switches = "".join(
        f'    <pci busid="0000:{200 + n:02x}:00.0" {kind}>\n      {group}\n    </pci>\n'
        for n, group in enumerate(groups)
    )
    cpus = "".join(
        f'  <cpu host_hash="{host}" numaid="0" arch="x86_64" vendor="GenuineIntel">\n{switches} '
        " </cpu>\n"
        for host in hosts
    )
    return f'<system version="1">\n{cpus}</system>\n'


SWITCHED = (
    '<nvlink target="0000:07:00.0" count="9" tclass="0x068000"/><nvlink target="fffffff:ff:ff.0"'
    ' count="9" tclass="0x068000"/>'
)
HGX_H100 = nccl_xml(
    [
        f"{nccl_gpu(n, links=SWITCHED, sm=90, device='0x2330')}{nccl_card(n, speed=400000)}"
        for n in range(8)
    ]
)


def slurm_node(name: str, *, gres: str, memory: int = 2_063_937, more: str = "") -> str:
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=56\n   CPUAlloc=0 CPUEfctv=224 CPUTot=224"
        f" CPULoad=0.11\n   Gres={gres}\n   NodeAddr={name} NodeHostName={name} Version=24.11.5\n  "
        f" OS=Linux 5.15.0 #1 SMP Thu Jan 1 UTC 2026\n   RealMemory={memory} AllocMem=0"
        f" FreeMem=2000000 Sockets=2 Boards=1\n   State=IDLE ThreadsPerCore=2 TmpDisk=0 {more}\n  "
        " CfgTRES=cpu=224,mem=2T,billing=224,gres/gpu=8\n   AllocTRES=\n   Reason=looked at"
        " opt=yes [root@2026-01-01T00:00:00]\n\n"
    )


def kubernetes_node(
    name: str,
    *,
    labels: Mapping[str, str],
    gpus: int = 8,
    resource: str = "nvidia.com/gpu",
    **more: Any,
) -> dict[str, Any]:
    capacity = {"cpu": "192", "memory": "2113481272Ki", "pods": "110"} | (
        {resource: str(gpus)} if gpus else {}
    )
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {},
        "status": {"capacity": capacity, "allocatable": capacity},
    } | more


def kubernetes_list(nodes: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "List",
            "items": list(nodes),
            "metadata": {"resourceVersion": ""},
        },
        indent=4,
    )


def gfd(product: str, *, memory: int = 0, **more: str) -> dict[str, str]:
    """Labels of GPU feature discovery; names of others with their dots and slashes are given as
    they are."""
    sized = {"nvidia.com/gpu.memory": str(memory)} if memory else {}
    return {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.replicas": "1",
        **sized,
        **{f"nvidia.com/gpu.{key}": v for key, v in more.items()},
    }


def xgmi_gpu(number: int, *, peers: Sequence[int], device: str = "0x74a1", more: str = "") -> str:
    """A device of a dump of RCCL."""
    links = "".join(
        f'<xgmi target="0000:{16 + peer:02x}:00.0" count="1" tclass="0x120000"/>' for peer in peers
    )
    return (
        f'<pci busid="0000:{16 + number:02x}:00.0" class="0x120000" vendor="0x1002"'
        f' device="{device}" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="{number}"'
        f' sm="94" gcn="942" arch="37888" rank="{number}" gdr="1">{links}{more}</gpu></pci>'
    )


def rocm_topology(
    devices: int,
    link: Callable[[int, int], str],
    *,
    numa: Callable[[int], int] = lambda n: n // 4,
    series: str = "",
) -> str:
    """What rocm-smi --showtopo prints; with `series` --showproductname too."""
    names = [f"GPU{n}" for n in range(devices)]

    def matrix(title: str, cell: Callable[[int, int], str]) -> str:
        rows = [
            f"{name}   " + "".join(f"{'0' if n == m else cell(n, m):<13}" for m in range(devices))
            for n, name in enumerate(names)
        ]
        return "\n".join(
            [
                f"{f' {title} ':=^90}",
                "       " + "".join(f"{name:<13}" for name in names),
                *rows,
                "",
            ]
        )

    tables = [
        matrix("Weight between two GPUs", lambda n, m: "15"),
        matrix("Hops between two GPUs", lambda n, m: "1"),
        matrix("Link Type between two GPUs", link),
        "\n".join(
            [
                f"{' Numa Nodes ':=^90}",
                *(f"GPU[{n}]\t\t: (Topology) Numa Node: {numa(n)}" for n in range(devices)),
            ]
        ),
    ]
    if series:
        tables.append(
            "\n".join(
                [
                    f"{' Product Info ':=^90}",
                    *(f"GPU[{n}]\t\t: Card Series: \t\t{series}" for n in range(devices)),
                ]
            )
        )
    return "\n\n".join(
        [
            f"{' ROCm System Management Interface ':=^90}",
            *tables,
            f"{' End of ROCm SMI Log ':=^90}\n",
        ]
    )


def gpu_list(devices: int, product: str) -> str:
    """What nvidia-smi -L prints."""
    return "".join(
        f"GPU {n}: {product} (UUID: GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1{n:02x})\n"
        for n in range(devices)
    )


SINFO = """\
NODELIST GRES MEMORY STATE
gpu01 gpu:h100:8(S:0-1) 2063937 idle
gpu02 gpu:h100:8(S:0-1) 2063937 drain*
cpu01 (null) 256000 idle
"""


def as_yaml(nodes: Sequence[Mapping[str, Any]]) -> str:
    """What kubectl get nodes -o yaml prints."""
    return yaml.safe_dump(json.loads(kubernetes_list(nodes)))


SAMPLES = (
    HGX_H100,
    nccl_xml(
        [
            nccl_gpu(
                n,
                links='<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>',
                sm=100,
                device="0x2941",
            )
            for n in (0, 1)
        ],
        hosts="ab",
    ),
    topo_matrix(4, lambda a, b: "NV12" if a // 2 == b // 2 else "SYS", cards=[[0, 1], []]),
    "".join(
        slurm_node(f"gpu{n}", gres=gres)
        for n, gres in enumerate(("gpu:h100:8(S:0-1)", "gpu:a100:4", "gpu:l40s:8,shard:8"))
    ),
    (
        "SwitchName=top Switches=leaf[1-2]\nSwitchName=leaf1 Nodes=gpu[01-04]\nSwitchName=leaf2"
        " Nodes=gpu[05-08]\n"
    ),
    "BlockName=b1 Nodes=n[01-18]\nBlockName=b2 Nodes=n[19-36]\nBlockSizes=18,36\n",
    kubernetes_list(
        [
            kubernetes_node(
                f"n{n}",
                labels=gfd(product, memory=memory, clique=f"u.{n // 2}")
                | {"fabric.topograph.run/tier-0": f"s{n // 2}"},
                gpus=4,
            )
            for n, (product, memory) in enumerate(
                (("NVIDIA-GB200", 189471), ("NVIDIA-GB200", 189471), ("NVIDIA-L40S", 46068))
            )
        ]
    ),
    nccl_xml([xgmi_gpu(n, peers=[m for m in range(4) if m != n]) for n in range(4)]),
    topo_matrix(4, lambda a, b: "PIX" if a // 2 == b // 2 else "SYS", cards=[[0, 1], []]),
    rocm_topology(2, lambda a, b: "XGMI", series="AMD Instinct MI300X"),
    gpu_list(2, "NVIDIA H100 80GB HBM3"),
    SINFO,
    as_yaml([kubernetes_node("n", labels=gfd("NVIDIA-L40S"))]),
)
"""One of every form, short."""
