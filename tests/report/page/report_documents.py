"""Report documents of small files of several kinds, made by simulation."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from shardwright.api.report.make_report import make_report, report_document
from shardwright.api.simulate_strategy import simulation
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import simulation_document
from shardwright.search.search_request import Request

FILES: Final = {
    "pipeline": ("llama-2-7b", "h100-sxm:16", "tp2 sp pp4 vpp2 dp2 mbs1 zero1"),
    "experts": ("mixtral-8x7b", "h100-sxm:32", "tp2 sp pp2 ep4 dp8 mbs1 zero1"),
    "no pipeline": ("llama-2-7b", "h100-sxm:8", "tp2 sp dp4 mbs1 zero1"),
    "one device that does not fit": ("llama-2-7b", "h100-sxm:1", "zero0 recompute=full"),
    "mixed cluster": ("llama-2-7b", "h100-sxm:2+a100-sxm-80gb:2", "pp2 dp2 mbs1 zero1"),
    "many nodes": ("llama-2-7b", "h100-sxm:2048", "tp8 sp cp2 pp4 dp32 mbs1 zero1"),
}
"""Name -> model, cluster and strategy of a simulation of 128 sequences of 2,048 tokens."""


@cache
def simulated_document(name: str) -> Any:
    """JSON document of the report of one of `FILES`, as it is written."""
    model, cluster, strategy = FILES[name]
    request = Request(model=model, cluster=cluster, seq_len=2048, global_batch=128)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "strategy.json"
        file.write_text(to_text(simulation_document(simulation(request, strategy=strategy))))
        return json.loads(to_text(report_document(make_report(file))))
