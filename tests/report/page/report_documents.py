"""Report documents of small files of several kinds, made by simulation."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from shardwright.api.report.report_content_of_answer_file import make_report, report_document
from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import (
    StoredSimulation,
    document_of,
    stored_simulation,
)
from shardwright.search.search_request import Request

_UNEVEN: Final = """plan uneven devices 6
lane main samples 126 in 42
  stages embed+16, 16+head on 0, 3
    all = b[2:1]{t2, .+2}
    stream = b[2:1]{s2, .+2}
order 1f1b(main)
"""
FILES: Final = {
    "pipeline": ("llama-2-7b", "h100-sxm:16", "tp2 sp pp4 vpp2 dp2 mbs1 zero1"),
    "experts": ("mixtral-8x7b", "h100-sxm:32", "tp2 sp pp2 ep4 dp8 mbs1 zero1"),
    "no pipeline": ("llama-2-7b", "h100-sxm:8", "tp2 sp dp4 mbs1 zero1"),
    "one device that does not fit": ("llama-2-7b", "h100-sxm:1", "zero0 recompute=full"),
    "mixed cluster": ("llama-2-7b", "h100-sxm:2+a100-sxm-80gb:2", "pp2 dp2 mbs1 zero1"),
    "uneven general plan": ("llama-2-7b", "h100-sxm:8", _UNEVEN),
    "many nodes": ("llama-2-7b", "h100-sxm:2048", "tp8 sp cp2 pp4 dp32 mbs1 zero1"),
}
"""Name -> model, cluster and strategy of a simulation of 128 (126) sequences of 2,048 tokens."""


@cache
def stored(name: str) -> StoredSimulation:
    """Contents of the file of one of `FILES`."""
    model, cluster, strategy = FILES[name]
    batch = 126 if strategy is _UNEVEN else 128
    request = Request(model=model, cluster=cluster, seq_len=2048, global_batch=batch)
    return stored_simulation(simulation(request, strategy=strategy))


@cache
def simulated_document(name: str) -> Any:
    """JSON document of the report of one of `FILES`, as it is written."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "strategy.json"
        file.write_text(to_text(document_of(stored(name))))
        return json.loads(to_text(report_document(make_report(file))))
