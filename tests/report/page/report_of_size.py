"""Reports of plans for 8, 1,024 and 16,384 devices, searched once in a process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from shardwright.api.report.report_content_of_answer_file import make_report, report_document
from shardwright.api.searches.grid_search import plan
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import file_text, stored_answer
from shardwright.report.page.report_page import report_html
from shardwright.search.search_request import Request


@dataclass(frozen=True)
class Sized:
    """A request, and the largest size of its page in bytes."""

    model: str
    devices: int
    global_batch: int
    page_bytes: int


SIZES: Final = {
    "small": Sized("llama-3.1-8b", 8, 64, 400_000),
    "thousand": Sized("llama-3.1-405b", 1024, 512, 400_000),
    "whole": Sized("llama-3.1-405b", 16384, 2048, 900_000),
}


@cache
def report_of(size: str) -> tuple[Any, str]:
    """The JSON document and the page of a size's report."""
    sized = SIZES[size]
    request = Request(
        model=sized.model,
        cluster=f"h100-sxm:{sized.devices}",
        seq_len=8192,
        global_batch=sized.global_batch,
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(file_text(stored_answer(plan(request)), file))
        document = json.loads(to_text(report_document(make_report(file, tokens=15e12))))
    return document, report_html(document)
