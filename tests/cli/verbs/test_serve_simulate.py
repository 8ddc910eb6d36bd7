"""``serve-simulate``: its screen, its JSON, and what it refuses."""

import json

import pytest

from shardwright.cli.main import run as command

SMALL = [
    "llama-3.2-1b",
    "h100-sxm:8",
    "--deployment",
    "tp1",
    "--isl",
    "256",
    "--osl",
    "8",
    "--concurrency",
    "4",
    "--requests",
    "8",
]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = command(["serve-simulate", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*SMALL, "--slo", "ttft=10s,tpot=1s"], capsys)
    assert code == 0
    for word in (
        "llama-3.2-1b",
        "vllm",
        "agg 1x(tp1)",
        "time to first token",
        "Promise kept: 100.0 %",
        "J a token",
        "weights",
    ):
        assert word in out


def test_json_has_what_the_screen_has(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*SMALL, "--json", "--explain"], capsys)
    document = json.loads(out)
    assert code == 0
    seen = document["metrics"]
    assert seen["num_requests"] == 8
    assert 0 < seen["tpot"]["p50"] <= seen["tpot"]["p99"] < seen["ttft"]["mean"]
    assert seen["e2e"]["mean"] == pytest.approx(
        seen["ttft"]["mean"] + 7 * seen["tpot"]["mean"], rel=1e-6
    )
    assert seen["tokens_per_second"] == pytest.approx(64 / seen["seconds"])
    assert all(fact["link"].startswith("http") for fact in document["sources"]["facts"])


def test_the_same_seed_is_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "llama-3.2-1b",
        "h100-sxm:8",
        "--deployment",
        "2x(tp1)",
        "--isl",
        "100-300",
        "--osl",
        "2-9",
        "--arrivals",
        "poisson:50/s",
    ]
    answers = [
        run([*words, "--requests", "20", "--json", "--seed", str(seed)], capsys)[1]
        for seed in (3, 3, 4)
    ]
    assert answers[0] == answers[1] != answers[2]


def test_an_estimate_in_the_mean_is_near_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "llama-3-8b",
        "h100-sxm:8",
        "--deployment",
        "tp1",
        "--isl",
        "512",
        "--osl",
        "512",
        "--concurrency",
        "16",
        "--json",
    ]
    simulated, estimated = (
        json.loads(run([*words, *more], capsys)[1]) for more in ([], ["--estimate"])
    )
    assert estimated["tpot_s"] == pytest.approx(simulated["metrics"]["tpot"]["mean"], rel=0.15)
    assert estimated["tokens_per_second"] == pytest.approx(
        simulated["metrics"]["tokens_per_second"], rel=0.15
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (SMALL[:6], 2, "nothing says how requests come"),
        ([*SMALL, "--arrivals", "poisson:1/s"], 2, "--concurrency and --arrivals are two ways"),
        (
            ["llama-3.2-1b", "h100-sxm:8", "--concurrency", "4"],
            2,
            "nothing says how long requests are",
        ),
        ([*SMALL, "--engine", "vlm"], 8, "unknown serving engine"),
        ([*SMALL, "--slo", "ttft=0ms"], 2, "no time above 0"),
        (["llama-3.1-405b", "h100-sxm:8", *SMALL[2:]], 6, "too much"),
        (
            [
                "llama-3.2-1b",
                "l4:1",
                *SMALL[2:4],
                "--isl",
                "2000k",
                "--osl",
                "8",
                "--concurrency",
                "1",
            ],
            6,
            "too little",
        ),
        (
            ["llama-3.2-1b", "h100-sxm:8", "--deployment", "2x(tp8)", *SMALL[4:]],
            5,
            "takes 16 devices of 8",
        ),
        (
            ["llama-3.2-1b", "h100-sxm:8", "--deployment", "tp2 ep2", *SMALL[4:]],
            5,
            "ep 2 for a model with no experts",
        ),
        (["llama-3.2-1b", "h100-sxm:4+a100-sxm-80gb:4", *SMALL[2:]], 4, "devices of one kind"),
        (["bert-large", "h100-sxm:8", *SMALL[2:]], 3, "no decoder of text alone"),
        ([*SMALL, "--expert-skew", "2"], 2, "for a model without experts"),
        ([*SMALL, "--acceptance", "0.8"], 2, "the deployment has none"),
        (
            [*SMALL[:2], "--deployment", "prefill tp1 decode tp1", *SMALL[4:], "--estimate"],
            5,
            "aggregated workers alone",
        ),
    ],
)
def test_refusals(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out, err = run(words, capsys)
    assert (found, out) == (code, "")
    assert message in err
    assert "hint: " in err
    assert len(err.strip().splitlines()) == 2
