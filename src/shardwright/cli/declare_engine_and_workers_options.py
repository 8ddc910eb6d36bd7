"""Command-line options for the processes of a search: --engine and --workers."""

from __future__ import annotations

from typing import Annotated

from shardwright.cli.parsing.declare_options_and_parse_command_lines import Option, group
from shardwright.cli.parsing.shared_options import SEARCH
from shardwright.search.parallel.engine_by_name import PROCESSES


@group(SEARCH)
class EngineFlags:
    """Options for the processes of a search: --engine and --workers."""

    engine: Annotated[
        str,
        Option(
            "--engine",
            metavar="NAME",
            help=(
                "Run joint and mixed searches in this process (serial), in local processes (used"
                " for searches longer than a few seconds) or on Ray (ray). The answer is the same."
            ),
        ),
    ] = PROCESSES
    workers: Annotated[
        int,
        Option(
            "--workers",
            metavar="N",
            min=0,
            help="Processes of a joint or mixed search; 0 means one per core.",
            show_default=False,
        ),
    ] = 0
