"""``shardwright web``: the planner in a browser."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Final

from shardwright.cli.parsing import parse_memory_and_cost, shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.errors import UsageError
from shardwright.files.canonical_json import to_text

_PACKAGES: Final = ("fastapi", "uvicorn")
_SERVER: Final = "shardwright.web.run_server"
_LIMITS: Final = "shardwright.web.server_limits"


def web(
    *,
    host: Annotated[
        str,
        Option(
            "--host",
            metavar="ADDRESS",
            help=(
                "Address to listen on. Another one than that of this machine alone needs a token,"
                " which is part of the printed address."
            ),
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        Option("--port", metavar="N", min=0, max=65535, help="Port; 0 means any free one."),
    ] = 8765,
    workers: Annotated[
        int,
        Option(
            "--workers",
            metavar="N",
            min=1,
            max=256,
            help="Searches that run at once, each in a process of its own.",
            show_default="the number of CPU cores",
        ),
    ] = 0,
    memory: Annotated[
        str,
        Option("--memory", metavar="GIB", help="Memory that one search may use, in GiB."),
    ] = "4GiB",
    seconds: Annotated[
        float,
        Option(
            "--seconds",
            metavar="SECONDS",
            min=0.1,
            max=86400.0,
            help="Time after which a search stops with its best plan so far.",
        ),
    ] = 60.0,
    form: shared_options.AnswerForm,
) -> None:
    """Serve the planner as a page for browsers on this machine, until Ctrl-C."""
    limits = import_module(_LIMITS).ServerLimits(
        workers=workers,
        memory_bytes=parse_memory_and_cost.read_search_memory(memory),
        question_s=seconds,
    )

    def announce(address: str) -> None:
        """Print the address of the page."""
        if form.as_json:
            screen.write(to_text({"address": address}))
        elif form.quiet:
            screen.write(f"{address}\n")
        else:
            screen.write(f"Open {address} in a browser. Ctrl-C ends the server.\n")

    serve(host=host, port=port, limits=limits, announce=announce)


def serve(*, host: str, port: int, limits: Any, announce: Callable[[str], None]) -> None:
    """Run the server of the extra `web`, which is imported here alone.

    Raises:
        UsageError: the extra is not installed, or the address cannot be used.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the web server needs {' and '.join(missing)}, not installed here",
            hint="pip install 'shardwright[web]'",
        )
    import_module(_SERVER).run_server(host=host, port=port, limits=limits, announce=announce)


main = verb(web, name="web")
