"""Measuring on a processor, tiny: that it works and what it returns. Nothing here judges a time."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="calibrate needs torch")
pytest.importorskip("scipy", reason="fits need scipy")

from shardwright.calibrate.calibration_settings_and_check_rows import Calibration
from shardwright.calibrate.device_names_memory_and_library_versions import host_memory
from shardwright.calibrate.kernel_timing import Timer
from shardwright.calibrate.measure_collectives import group_sizes, measure_collectives
from shardwright.calibrate.measure_machine import measure_machine
from shardwright.calibrate.predicted_against_measured_steps import (
    check_machine,
    predict_step,
    step_cases,
)
from shardwright.calibrate.time_collectives_on_rank import unsupported_message
from shardwright.calibrate.time_decoder_step import measure_step
from shardwright.cli.main import run
from shardwright.dtype import Dtype
from shardwright.errors import DataError, UsageError
from shardwright.files.canonical_json import to_text
from shardwright.files.profile_file import parse_profile, profile_document
from shardwright.hardware.profile.measured_rates import Profile
from shardwright.kernel_compilation import available_cores
from tests.calibrate.bad_ranks import dies, hangs
from tests.calibrate.profiles import profile
from tests.execute.started import serve


@pytest.fixture(scope="module", autouse=True)
def _forked() -> None:
    """Ranks are forked from the server of all tests."""
    serve()


TINY = Calibration(
    date="2026-11-21", device="cpu", ranks=1, repetitions=1, warm_up=1, sustained_s=0.02, tiny=True
)


def measured(progress: Callable[[str, int, int], None]) -> Profile:
    """The machine's profile; a busy one may time a larger size as faster, which is refused: it is
    measured again, twice at most."""
    for _ in range(2):
        with suppress(DataError):
            return measure_machine(TINY, progress=progress)
    return measure_machine(TINY, progress=progress)


def test_a_processor_is_measured_into_a_profile_that_plans() -> None:
    phases: list[str] = []
    found = measured(lambda phase, done, total: phases.append(phase))
    assert (found.accelerator, found.collectives) == ("cpu", ())
    (gemm,) = found.gemm
    assert gemm.dtype is Dtype.FP32
    assert gemm.error.num_points == len(gemm.points) >= 5
    assert gemm.sustained >= 1.0
    assert [a.generation for a in found.attention] == ["flash-2"]
    assert found.elements is not None
    assert found.host is not None
    assert (found.host.num_cores, found.host.memory_bytes) == (available_cores(), host_memory())
    assert found.method is not None
    assert (found.method.date, found.method.repetitions, found.method.threads) == (
        "2026-11-21",
        1,
        available_cores(),
    )
    assert found.method.libraries[0][0] == "torch"
    assert "GEMM fp32" in phases
    text = to_text(profile_document(found))
    assert to_text(profile_document(parse_profile(text))) == text
    for case in step_cases("cpu", tiny=True):
        assert predict_step(case, found).step_time_s > 0


def test_steps_are_predicted_and_measured() -> None:
    checks = check_machine(
        profile("cpu", dtype=Dtype.FP32), device="cpu", repetitions=1, warm_up=1, tiny=True
    )
    assert [c.name for c in checks] == ["dense", "mixture of experts"]
    for check in checks:
        assert check.measured_s > 0
        assert check.low_s < check.predicted_s < check.high_s
        assert (check.predicted_bytes > 0, check.measured_bytes) == (True, 0)


def test_a_step_is_measured_in_three_parts() -> None:
    for case in step_cases("cpu", tiny=True):
        step = measure_step(
            case.config,
            device="cpu",
            dtype=Dtype.FP32,
            batch=case.batch,
            length=case.length,
            repetitions=1,
            warm_up=1,
        )
        assert min(step.forward_s, step.backward_s, step.optimizer_s) > 0
        assert step.seconds == step.forward_s + step.backward_s + step.optimizer_s


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"device": "tpu"}, "is not a device"),
        ({"collectives_only": True}, "two ranks"),
        ({"dtypes": (Dtype.FP8,)}, "fp8 are not measured"),
    ],
)
def test_what_cannot_be_measured(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        measure_machine(replace(TINY, **change))


def test_a_timing_is_the_median_of_its_repetitions() -> None:
    calls = []
    timer = Timer(device="cpu", repetitions=3, warm_up=2, shortest_s=0.0)
    assert timer.seconds(lambda: calls.append(None)) > 0
    assert len(calls) == 2 + 1 + 3


def test_group_sizes() -> None:
    assert [group_sizes(n) for n in (1, 2, 3, 8, 12)] == [
        (),
        (2,),
        (2, 3),
        (2, 4, 8),
        (2, 4, 8, 12),
    ]


def test_collectives_over_two_ranks() -> None:
    points: list[None] = []
    found = measure_collectives(
        2,
        device="cpu",
        sizes=(1024, 4096),
        kinds=("all_reduce", "all_to_all"),
        repetitions=1,
        step=lambda: points.append(None),
    )
    assert len(points) == 4
    assert found.unsupported == ()
    assert {kind: [size for size, _ in rows] for kind, rows in found.points} == {
        "all_reduce": [1024, 4096],
        "all_to_all": [1024, 4096],
    }


def raising(error: Exception) -> Callable[[], None]:
    def collective() -> None:
        raise error

    return collective


def test_a_collective_that_the_backend_lacks_is_told_from_one_that_fails() -> None:
    lacking = "Backend gloo does not support alltoall_base"
    assert unsupported_message(lambda: None) == ""
    assert (
        unsupported_message(raising(RuntimeError(f"{lacking}\nException raised from ...")))
        == lacking
    )
    assert unsupported_message(
        raising(RuntimeError("ProcessGroupGloo does not support reduce_scatter"))
    ).startswith("ProcessGroupGloo")
    assert unsupported_message(raising(NotImplementedError())) == "NotImplementedError"
    for failure in (
        RuntimeError("CUDA error: operation not supported"),
        RuntimeError("unsupported gpu"),
        ValueError("not supported"),
    ):
        with pytest.raises(type(failure), match="support"):
            unsupported_message(raising(failure))


@pytest.mark.parametrize(
    ("target", "says"),
    [(dies, "rank 1 of 2 died with exit code 7"), (hangs, "said anything for 1 s")],
)
def test_a_dead_or_silent_rank_ends_the_measurement(target: Any, says: str) -> None:
    with pytest.raises(DataError, match=says) as raised:
        measure_collectives(
            2,
            device="cpu",
            sizes=(1024,),
            timeout_s=300.0 if target is dies else 1.0,
            target=target,
        )
    assert raised.value.hint


def test_a_rank_that_fails_says_why() -> None:
    with pytest.raises(DataError, match=r"rank [01] of 2 failed"):
        measure_collectives(2, device="cpu", sizes=(1024,), kinds=("all_reduce",), repetitions=0)


def test_the_verb_writes_a_profile_that_simulate_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cpu.json"
    calibrate = [
        "calibrate",
        "--device",
        "cpu",
        "--ranks",
        "1",
        "--tiny",
        "--sustained",
        "0",
        "--repetitions",
        "1",
        "--date",
        "2026-11-21",
    ]
    simulate = [
        "simulate",
        "llama-3.2-1b",
        "cpu:1",
        "--profile",
        str(path),
        "--precision",
        "fp32",
        "--strategy",
        "zero1",
    ]
    for words in (
        [*calibrate, "-o", str(path), "--quiet"],
        [*simulate, "--seq-len", "512", "--global-batch", "2", "--quiet"],
    ):
        assert run(words) == 0
        said = capsys.readouterr()
        assert said.err == ""
        assert said.out
