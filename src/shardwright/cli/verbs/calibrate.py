"""``shardwright calibrate``: measure this machine, or import measurements, into a profile."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

from rich.console import Group

from shardwright.calibrate import run_and_check_calibration as calibrate_request
from shardwright.calibrate.calibration_settings_and_check_rows import Calibration
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.dtype import Dtype
from shardwright.errors import UsageError, nearest
from shardwright.files.canonical_json import to_text
from shardwright.files.profile_file import profile_document
from shardwright.report.screens.calibration_profile_screen import (
    check_document,
    render_check,
    render_profile,
)


def calibrate(
    *,
    device: Annotated[
        str,
        Option("--device", help="Device type, cpu or cuda; by default cuda if torch finds one."),
    ] = "",
    ranks: Annotated[
        int,
        Option(
            "--ranks",
            min=0,
            help="Ranks of the largest collective; 0 means all GPUs, or 2 on a CPU.",
        ),
    ] = 0,
    dtype: Annotated[
        list[str] | None,
        Option(
            "--dtype",
            help="Data type of the GEMMs to measure: bf16, fp16, tf32 or fp32. Repeatable.",
        ),
    ] = None,
    collectives_only: Annotated[
        bool, Option("--collectives-only", help="Measure only collectives.")
    ] = False,
    from_nccl_tests: Annotated[
        list[Path] | None,
        Option(
            "--from-nccl-tests", metavar="FILE", help="Output of nccl-tests to import. Repeatable."
        ),
    ] = None,
    from_kineto: Annotated[
        Path | None,
        Option(
            "--from-kineto",
            metavar="FILE",
            help="PyTorch profiler (Kineto) trace to import, .json or .json.gz.",
        ),
    ] = None,
    measure: Annotated[
        bool | None,
        Option(
            "--measure/--no-measure",
            help="Measure this machine; by default only if nothing is imported.",
        ),
    ] = None,
    name: Annotated[
        str,
        Option(
            "--name", help="Accelerator name in the profile; by default this device's catalog name."
        ),
    ] = "",
    day: Annotated[
        str,
        Option("--date", metavar="YYYY-MM-DD", help="Date in the profile; by default today."),
    ] = "",
    repetitions: Annotated[
        int,
        Option(
            "--repetitions",
            min=1,
            max=1000,
            help="Timings of each point, of which the median counts.",
        ),
    ] = 5,
    sustained: Annotated[
        float,
        Option(
            "--sustained",
            min=0.0,
            max=3600.0,
            help=(
                "Seconds of sustained GEMM load, to see the clock under the power limit; 0 means"
                " none."
            ),
        ),
    ] = 5.0,
    timeout: Annotated[
        float,
        Option("--timeout", min=1.0, help="Seconds after which an unresponsive rank is given up."),
    ] = 60.0,
    tiny: Annotated[
        bool,
        Option("--tiny", help="Only the smallest shapes: for trying it out, not for planning."),
    ] = False,
    check: Annotated[
        bool,
        Option("--check", help="Afterwards, predict and measure training steps on one device."),
    ] = False,
    output: shared_options.Output = None,
    form: shared_options.AnswerForm,
) -> None:
    """Measure this machine with torch, or import measurements, into a profile to plan with."""
    screen.check_writable(output)
    request = Calibration(
        date=_date_text(day),
        device=device,
        accelerator=name,
        ranks=ranks,
        dtypes=tuple(_dtype_by_name(word) for word in dtype or ()),
        collectives_only=collectives_only,
        nccl_tests=tuple(from_nccl_tests or ()),
        kineto=from_kineto,
        measure=measure if measure is not None else not (from_nccl_tests or from_kineto),
        repetitions=repetitions,
        sustained_s=sustained,
        timeout_s=timeout,
        tiny=tiny,
    )
    if check and not (request.measure and not collectives_only):
        raise UsageError(
            "--check needs the kernels of this machine",
            hint="calibrate without --collectives-only and imports, or add --measure",
        )
    with screen.progress(form) as report:
        profile = calibrate_request.calibrate(request, progress=report)
        rows = (
            calibrate_request.check_calibration(profile, request, progress=report) if check else ()
        )
    document = profile_document(profile)
    if output is not None:
        screen.save(output, to_text(document))
    screen.print_answer(
        form,
        document=lambda: (
            {"profile": document, "check": check_document(rows)} if check else document
        ),
        line=lambda: f"{profile.reference}\n",
        picture=lambda: Group(
            render_profile(profile), *(["", render_check(rows)] if check else [])
        ),
    )


def _date_text(text: str) -> str:
    """The ISO date of --date after a check; today if the text is empty."""
    if not text:
        return datetime.now(tz=UTC).date().isoformat()
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise UsageError(f"--date {text[:40]!r} is not a day", hint="write YYYY-MM-DD") from None


def _dtype_by_name(word: str) -> Dtype:
    """Convert a word of --dtype to a number format; UsageError if unknown."""
    names = {d.value: d for d in Dtype}
    if word not in names:
        raise UsageError(
            f"--dtype {word[:40]!r} is not a number format", hint=nearest(word[:40], names)
        )
    return names[word]


main = verb(calibrate, name="calibrate")
