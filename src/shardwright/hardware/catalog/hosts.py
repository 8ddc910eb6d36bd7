"""How fast the hosts of accelerators run one thread of Python, which is what launches kernels."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

HOST_SECONDS: Final = MappingProxyType({"gh200-96gb": 33.17 / 13.48, "gb200-nvl72": 37.08 / 13.48, "gb300-nvl72": 37.08 / 13.48})
"""Seconds that the host of an accelerator needs for what a server with x86 processors does in one; 1 where nothing is listed.

Source: NVIDIA/TransformerEngine#2053: a forward of `torch.nn.Linear` takes 33.17 us of a GH200's Grace, 37.08 us of a GB200's, and 13.48 us
of the Xeon 8480C of a DGX H100. GB300 has GB200's Grace. With the launches that are fitted where no Grace is (41 us), a launch on GB200
takes 113 us; the issue has 99.66 us for a forward of Transformer Engine's `Linear` there. If processes were bound to cores is not said.
"""
