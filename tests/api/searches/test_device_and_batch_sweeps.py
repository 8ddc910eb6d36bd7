"""Several searches in one call: a row is what `plan` says by itself, the knee and the chosen batch
are those of their rules."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright
from shardwright.api.searches.device_and_batch_sweeps import (
    plan_batches,
    plan_device_counts,
    powers_between,
    progress_rate,
)
from shardwright.cli.main import run
from shardwright.cli.verbs.plan_several_device_counts_or_batches import read_batches, read_devices
from shardwright.errors import InfeasibleError, UsageError
from shardwright.job.critical_batch_size import critical_batch, predicted_loss, useful_share
from shardwright.search.search_request import Request
from tests.tiers import examples

PINS = (
    ("tp", ("2",)),
    ("cp", ("1",)),
    ("pp", ("1",)),
    ("mbs", ("1",)),
    ("zero", ("1",)),
    ("recompute", ("none",)),
    ("offload", ("0",)),
)
SHARDED = tuple((axis, ("3",) if axis == "zero" else values) for axis, values in PINS)
ASKED = Request(model="llama-2-7b", cluster="h100-sxm:32", seq_len=4096, global_batch=64, pins=PINS)
WORDS = ["plan", "llama-2-7b", "h100-sxm:32", "--seq-len", "4096"]
PINNED = [word for axis, (value,) in PINS for word in ("--pin", f"{axis}={value}")]


def test_a_row_is_the_plan_of_its_devices_and_the_knee_is_where_its_rule_says() -> None:
    asked = replace(ASKED, model="llama-2-13b", pins=SHARDED)
    found = plan_device_counts(asked, devices=(2, 8, 16, 32))
    assert [trial.devices for trial in found.trials] == [2, 8, 16, 32]
    assert found.trials[0].simulation is None
    assert found.trials[0].why.startswith("nothing fits: the smallest strategy (tp2 ")
    for trial in found.trials[1:]:
        alone = shardwright.plan(replace(asked, max_devices=trial.devices, top=0))
        assert trial.simulation is not None
        assert trial.simulation.grid == alone.grid
        assert trial.simulation.prediction.step_time_s == alone.prediction.step_time_s
    fits = found.trials[1:]
    assert found.efficiency(fits[0]) == 1.0
    first = fits[0].simulation
    assert first is not None
    gains = []
    for trial in fits:
        assert trial.simulation is not None
        step = trial.simulation.prediction.step_time_s
        speedup = first.prediction.step_time_s / step
        assert isclose(
            found.efficiency(trial), speedup * fits[0].devices / trial.devices, rel_tol=1e-12
        )
        gains.append((found.efficiency(trial) / step, trial.devices))
    assert found.knee == max(gains)[1]


def test_the_knee_is_inside_where_more_devices_hardly_help() -> None:
    """Four sequences a step: beyond 8 devices there is little that more of them could do."""
    few = replace(
        ASKED, global_batch=4, cluster="h100-sxm:64", pins=(("tp", ("1", "2", "4")), *PINS[1:])
    )
    found = plan_device_counts(few, devices=(8, 16, 32, 64))
    assert found.knee == 8
    assert [trial.simulation is None for trial in found.trials] == [False, False, True, True]
    assert "global batch 4 does not divide" in found.trials[-1].why


def test_nothing_fits_or_the_cluster_is_smaller() -> None:
    with pytest.raises(InfeasibleError, match="on up to 2 devices: nothing fits"):
        plan_device_counts(replace(ASKED, model="llama-2-13b", pins=SHARDED), devices=(2,))
    with pytest.raises(UsageError, match="--devices up to 64 on a cluster of 32"):
        plan_device_counts(ASKED, devices=(8, 64))
    with pytest.raises(UsageError, match="no number of devices"):
        plan_device_counts(ASKED, devices=())


def test_the_chosen_batch_has_the_most_useful_tokens_a_second() -> None:
    found = plan_batches(ASKED, sizes=(16, 64, 256), critical=2**20)
    rates = {
        trial.global_batch: progress_rate(trial, seq_len=4096, critical=2**20)
        for trial in found.trials
    }
    assert found.chosen == max(rates, key=lambda size: rates[size])
    for trial in found.trials:
        assert isclose(
            rates[trial.global_batch],
            trial.tokens_per_s / (1 + trial.global_batch * 4096 / 2**20),
            rel_tol=1e-12,
        )
    assert (
        plan_batches(ASKED, sizes=(16, 64, 256), critical=1e12).chosen
        == max(found.trials, key=lambda one: one.tokens_per_s).global_batch
    )
    assert plan_batches(ASKED, sizes=(16, 64, 256), critical=4096).chosen == 16


def test_the_range_without_one_lies_around_the_critical_batch() -> None:
    found = plan_batches(ASKED, tokens=2e12)
    sizes = [trial.global_batch * found.seq_len for trial in found.trials]
    assert found.critical == critical_batch(parameters=6738415616, tokens=2e12)
    assert found.critical / 32 <= sizes[0] < found.critical / 16
    assert found.critical < sizes[-1] <= 2 * found.critical
    assert "2 T tokens" in found.source
    assert "20 a parameter" in plan_batches(ASKED, sizes=(16,)).source


def test_the_law_of_the_critical_batch_is_that_of_its_source() -> None:
    """Equation 1.4 at losses that can be read off it, and 1.5 in both of its limits (Kaplan et al.
    2020)."""
    assert isclose(
        predicted_loss(parameters=1e9, tokens=1e30), (6.4e13 / 1e9) ** 0.076, rel_tol=1e-9
    )
    assert isclose(
        predicted_loss(parameters=1e40, tokens=1e9), (1.8e13 / 1e9) ** 0.103, rel_tol=1e-6
    )
    at_one_nat = critical_batch(parameters=6.4e13 * 2 ** (0.103 / 0.076), tokens=3.6e13)
    assert isclose(at_one_nat, 2e8, rel_tol=1e-12)


@given(st.floats(1e6, 1e13), st.floats(1e6, 1e14), st.floats(1.0, 100.0), st.floats(1.0, 1e9))
@examples(100)
def test_the_critical_batch_grows_with_model_and_data(
    parameters: float, tokens: float, more: float, batch: float
) -> None:
    critical = critical_batch(parameters=parameters, tokens=tokens)
    assert critical_batch(parameters=parameters * more, tokens=tokens) >= critical
    assert critical_batch(parameters=parameters, tokens=tokens * more) >= critical
    assert (
        0
        < useful_share(batch=batch * more, critical=critical)
        <= useful_share(batch=batch, critical=critical)
        < 1
    )
    assert isclose(useful_share(batch=critical, critical=critical), 0.5)


@given(st.integers(1, 1000), st.integers(0, 100000))
@examples(100)
def test_doubled_ends_where_it_should(low: int, more: int) -> None:
    found = powers_between(low, low + more)
    assert (found[0], found[-1]) == (low, low + more)
    assert list(found) == sorted(set(found))
    assert found[:-1] == tuple(low << power for power in range(len(found) - 1))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("8..512", (8, 16, 32, 64, 128, 256, 512)),
        ("8:24", (8, 16, 24)),
        ("24,8", (8, 24)),
        ("64", (64,)),
    ],
)
def test_devices_are_read(text: str, found: tuple[int, ...]) -> None:
    assert read_devices(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("auto", ()),
        ("auto:64..256", (64, 128, 256)),
        ("auto:1M..4M tokens", (256, 512, 1024)),
        ("auto:1M tokens..512", (256, 512)),
    ],
)
def test_batches_are_read(text: str, found: tuple[int, ...]) -> None:
    assert read_batches(text, seq_len=4096) == found


@pytest.mark.parametrize(
    "words",
    [
        ["--global-batch", "64", "--devices", "many"],
        ["--global-batch", "64", "--devices", "16..8"],
        ["--global-batch", "64", "--devices", "8..32", "-o", "plan.json"],
        ["--global-batch", "auto", "--devices", "8..32"],
        ["--global-batch", "automatic"],
        ["--global-batch", "auto:9..3"],
        ["--global-batch", "auto:1..5000 tokens"],
        ["--global-batch", "64", "--critical-batch", "4M"],
        ["--global-batch", "64", "--price", "2"],
        ["--global-batch", "64", "--tokens", "many"],
    ],
)
def test_what_cannot_be_asked_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*WORDS, *words, *PINNED]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "hint: " in said


@pytest.mark.parametrize("verb", ["simulate", "compare"])
def test_only_plan_chooses_a_batch(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, *WORDS[1:], "--global-batch", "auto", "--strategy", "tp2"]) == 2
    assert "only `plan` chooses a batch" in capsys.readouterr().err


def test_the_command_line_of_a_scaling_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "--global-batch", "64", "--devices", "8..32", *PINNED]
    assert run([*words, "--tokens", "1T", "--price", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["devices"] for row in found["rows"]] == [8, 16, 32]
    days = [row["training_s"] for row in found["costs"]]
    assert days == sorted(days, reverse=True)
    assert isclose(found["costs"][0]["training_usd"], days[0] / 3600 * 16, rel_tol=1e-8)
    assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    marked = [line for line in lines if "<- knee" in line]
    assert [line.split()[0] for line in marked] == [str(found["knee_devices"])]
    assert run([*words, "--quiet"]) == 0
    assert (
        capsys.readouterr().out.split("\t")[1].startswith(f"{found['knee_devices']} devices: tp2")
    )


def test_the_command_line_of_a_chosen_batch(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        *WORDS,
        "--global-batch",
        "auto:16..256",
        "--critical-batch",
        "1M",
        "--tokens",
        "1T",
        "--price",
        "2",
        *PINNED,
    ]
    assert run([*words, "--json"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert found["request"]["global_batch"] == found["batches"]["chosen"]
    assert found["batches"]["critical_batch_tokens"] == 2**20
    assert isclose(
        found["training"]["training_s"], 1e12 / found["prediction"]["tokens_per_s"], rel_tol=1e-8
    )
    assert run(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"{found['batches']['chosen']:,} sequences a step have the most useful tokens a second"
        in shown
    )
    assert "critical batch of 1.049 M tokens (as given (--critical-batch))" in shown
    assert "Training on 1 T tokens" in shown
    assert f"{found['training']['training_s'] / 86400:,.1f} days" in shown


def test_what_json_prints_beside_a_plan_is_read_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run([*WORDS, "--global-batch", "auto:16..32", "--tokens", "1T", *PINNED, "--json"]) == 0
    monkeypatch.setattr("sys.stdin", StringIO(capsys.readouterr().out))
    assert run(["why", "-", "zero3", "--quiet"]) == 0
