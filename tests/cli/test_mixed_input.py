"""Bad input of mixed clusters: one line, a hint and an exit code each; and what is assumed of a
kind is said with its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.cli.main import run

SIZES = ["--seq-len", "64", "--global-batch", "8", "--quiet"]
MINE = """accelerators:
  mine: {memory_gib: 80, memory_bandwidth_gigabytes_per_s: 2000, peak_tflops: {fp16: 300}}
nodes:
  - {accelerator: h100-sxm, count: 1}
  - {accelerator: mine, count: 1}
"""
ZONED = "h100-sxm:8@east+a100-sxm-80gb:8@west"


@pytest.mark.parametrize(
    ("cluster", "flags", "code", "words"),
    [
        (ZONED, [], 4, "zones 'east' and 'west' have no link"),
        (f"{ZONED},east~west=10gbps/60ms/20usd", [], 4, "20 dollars for a gigabyte that leaves"),
        (f"{ZONED},east~west=10gbps/60s", [], 4, "says more than a link has"),
        (
            f"{ZONED},east~west=10gbps/0ms,west~east=10gbps/0ms,east~west=5gbps/0ms",
            [],
            4,
            "two links from 'east' to 'west'",
        ),
        (
            "h100-sxm:8/2.5usd+v100-sxm-16gb:8/-1usd",
            [],
            4,
            "'-1usd' in 'v100-sxm-16gb:8/-1usd' is no number of usd",
        ),
        ("h100-sxm:8/20000usd+v100-sxm-16gb:8", [], 4, "20000 dollars for a device and hour"),
        (
            "h100-sxm:8+v100-sxm-16gb:8",
            ["--precision", "bf16"],
            4,
            "v100-sxm-16gb has no units for bf16",
        ),
        (
            "h100-sxm:8+a100-sxm-80gb:8",
            ["--precision", "fp8"],
            4,
            "a100-sxm-80gb has no units for fp8",
        ),
        ("h100-sxm:8+tpu-v5p:8", [], 8, "does not run on tpu-v5p"),
        ("h100-sxm:8+v100-sxm:8@", [], 4, "is no name"),
        ("h100-sxm:8+v101:8", [], 4, "unknown accelerator, instance or cluster 'v101'"),
        ("h100-sxm:8+v100-sxm-16gb:12", [], 4, "12 x v100-sxm-16gb do not fill nodes of 8"),
        (
            MINE.replace("{accelerator: mine", "{accelerator: mien"),
            [],
            4,
            "nodes.1: unknown accelerator 'mien'",
        ),
        (
            MINE.replace(", peak_tflops: {fp16: 300}", ""),
            [],
            4,
            "accelerators.mine: needs memory_gib",
        ),
        (MINE, ["--precision", "bf16"], 4, "mine has no units for bf16"),
    ],
)
def test_bad_input_is_one_line_with_a_hint(
    cluster: str, flags: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "examples/tiny.json", cluster, *SIZES, *flags]) == code
    error, hint = capsys.readouterr().err.splitlines()
    assert words in error
    assert hint.startswith("hint: ")
    assert len(hint) > len("hint: ")


def test_what_is_assumed_of_a_kind_is_said_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(MINE, encoding="utf-8")
    body = (
        "plan two devices 16\nlane main samples 8 in 8\n  stages embed+2, 2+head on 0, 8\n    all ="
        " .\norder 1f1b(main)\n"
    )
    (tmp_path / "two.plan").write_text(body, encoding="utf-8")
    words = [
        "simulate",
        "examples/tiny.json",
        str(cluster),
        *SIZES[:-1],
        "--strategy",
        str(tmp_path / "two.plan"),
    ]
    assert run(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assumed = shown.split("Assumed ")[1].split("Where the time")[0]
    for quantity in (
        "peak fp16",
        "memory bandwidth",
        "GEMM rates fp16",
        "network card",
        "scale-up link",
    ):
        assert f"mine {quantity}" in assumed
    assert "h100-sxm GEMM rates" not in assumed


def test_links_of_zones_are_said_and_a_latency_that_is_not_given_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "simulate",
        "examples/tiny.json",
        "h100-sxm:1@a+h100-sxm:1@b,a~b=10gbps/0ms,b~a=5gbps/30ms",
        *SIZES[:-1],
        "--strategy",
        "pp2 mbs1",
    ]
    assert run(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "a to b 10 Gb/s a node, no latency was given, so none is counted; b to a 5 Gb/s a node,"
        " 30 ms" in shown
    )
    assert "a single non-blocking switch in each zone" in shown


def test_a_library_over_several_vendors_is_assumed_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "plan two devices 16\nlane main samples 8 in 8\n  stages embed+2, 2+head on 0, 8\n    all ="
        " .\norder 1f1b(main)\n"
    )
    (tmp_path / "two.plan").write_text(body, encoding="utf-8")
    for other, said in (("mi300x", True), ("a100-sxm-80gb", False)):
        words = [
            "simulate",
            "examples/tiny.json",
            f"h100-sxm:8+{other}:8",
            *SIZES[:-1],
            "--strategy",
            str(tmp_path / "two.plan"),
        ]
        assert run(words) == 0
        assert (
            "one collective library over NVIDIA and AMD"
            in " ".join(capsys.readouterr().out.split())
        ) == said
