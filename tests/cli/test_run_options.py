"""`shardwright run`: data that are evaluated, and what a run that goes on is asked without being
told."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from shardwright.cli.main import run
from shardwright.execute.checkpoints.stored_run_options import FILE
from shardwright.execute.launch import compare_run_facts_on_resume as resumed_run_facts
from tests.cli import ranks as forked
from tests.cli.verbs.test_run import CONFIG, DEADLINE_S, plan_file, words
from tests.tiers import in_both, in_proof

STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options")
    random = np.random.default_rng(0)
    np.save(path / "tokens.npy", random.integers(0, 64, 2000).astype(np.uint8))
    np.save(path / "kept.npy", random.integers(0, 64, 400).astype(np.uint8))
    plan_file(path, "one", "mbs2")
    plan_file(path, "two", "pp2 mbs2 schedule=1f1b", devices=2)
    return path


def evaluating(folder: Path, plan: str) -> list[str]:
    return [
        *words(folder, plan, steps=STEPS),
        "--eval-data",
        str(folder / "kept.npy"),
        "--eval-every",
        "2",
        "--eval-batches",
        "3",
    ]


def found(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> dict[str, list[dict[str, float]]]:
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    document: dict[str, list[dict[str, float]]] = json.loads(capsys.readouterr().out)
    return document


def by_ranks(arguments: list[str], *, ranks: int, folder: Path) -> str:
    """What the first of so many ranks writes to its output; all end well. In a proof `shardwright
    run` starts them itself."""
    if in_proof():
        command = [sys.executable, "-m", "shardwright", *arguments]
        return subprocess.run(
            command, check=True, timeout=DEADLINE_S, capture_output=True, text=True
        ).stdout
    processes = forked.start(arguments, ranks=ranks, folder=folder)
    try:
        for process in processes:
            process.join(DEADLINE_S)
        assert [process.exitcode for process in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
    return (folder / "rank0").read_text()


def test_data_that_are_not_learnt_are_evaluated(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "steps.jsonl"
    seen = found(capsys, [*evaluating(folder, "one.plan"), "--metrics", str(lines)])
    plain = found(capsys, words(folder, "one.plan", steps=STEPS))
    assert [s["loss"] for s in seen["steps"]] == [s["loss"] for s in plain["steps"]]
    assert [one["step"] for one in seen["evaluations"]] == [2, 4]
    assert seen["evaluations"][0]["loss"] != seen["evaluations"][1]["loss"]
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [("loss" in line, "eval_loss" in line) for line in written] == [(True, False)] * 2 + [
        (False, True)
    ] + [(True, False)] * 2 + [(False, True)]
    assert written[-1]["eval_loss"] == pytest.approx(seen["evaluations"][1]["loss"], abs=1e-8)


def test_the_loss_before_anything_is_learnt_is_that_of_a_step(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step says the loss before its update, so its own data evaluated behind a step of rate 0 are
    the same."""
    still = [
        *words(folder, "one.plan", steps=1),
        "--rate",
        "0",
        "--eval-data",
        str(folder / "tokens.npy"),
        "--eval-batches",
        "1",
    ]
    seen = found(capsys, still)
    assert seen["evaluations"][0]["loss"] == pytest.approx(seen["steps"][0]["loss"], abs=1e-12)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--eval-every", "2"], "need data that are not learnt"),
        (["--eval-data", "nowhere.npy"], "nowhere.npy"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert run([*words(folder, "one.plan"), *more]) != 0
    assert said in capsys.readouterr().err


def test_a_run_that_goes_on_is_asked_the_same(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [
        "--rate",
        "0.01",
        "--curve",
        "linear",
        "--decay",
        "0.3",
        "--no-decay",
        "vectors",
        "--betas",
        "0.8,0.9",
        "--shuffle",
        "--seed",
        "5",
    ]
    whole = found(capsys, [*words(folder, "one.plan", steps=4), *chosen])["steps"]
    # Half of the steps of four, as the rate is of the steps in all.
    assert (
        run(
            [
                *words(folder, "one.plan", steps=4),
                *chosen,
                "--checkpoints",
                str(tmp_path),
                "--every",
                "2",
                "--quiet",
            ]
        )
        == 0
    )
    for step in (3, 4):
        last = tmp_path / f"step-{step:08d}"
        if last.exists():
            last.rename(tmp_path / f"kept-{step}")
    again = found(capsys, [*words(folder, "one.plan", steps=4), "--checkpoints", str(tmp_path)])[
        "steps"
    ]
    assert [s["loss"] for s in again] == pytest.approx([s["loss"] for s in whole[2:]], abs=1e-12)
    assert json.loads((tmp_path / FILE).read_text())["rate"] == 0.01


def test_what_is_asked_otherwise_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ["--checkpoints", str(tmp_path)]
    assert run([*words(folder, "one.plan", steps=1), *kept, "--rate", "0.01", "--quiet"]) == 0
    assert run([*words(folder, "one.plan", steps=2), *kept, "--rate", "0.02"]) == 0
    assert "--rate 0.02 (was 0.01)" in capsys.readouterr().err
    assert run([*words(folder, "one.plan", steps=3), *kept]) == 0
    assert "(was" not in capsys.readouterr().err, "the newest is what counts"
    assert json.loads((tmp_path / FILE).read_text())["rate"] == 0.02
    (tmp_path / FILE).write_text("{")
    assert run([*words(folder, "one.plan", steps=4), *kept, "--quiet"]) == 0


def begun(folder: Path, kept: Path, *more: str, steps: int = 2) -> list[str]:
    """Words of a run with checkpoints that was begun so."""
    asked = [*words(folder, "one.plan", steps=steps), "--checkpoints", str(kept)]
    assert run([*asked, *more, "--quiet"]) == 0
    return ["--checkpoints", str(kept)]


def test_other_tokens_are_refused_unless_they_are_meant(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another file, and the same name with other tokens; not a copy under another name."""
    random = np.random.default_rng(1)
    tokens = np.load(folder / "tokens.npy")
    other, copy = tmp_path / "other.npy", tmp_path / "copy.npy"
    np.save(other, random.integers(0, 64, 2000).astype(np.uint8))
    np.save(copy, tokens)
    kept = begun(folder, tmp_path / "kept")
    plain = found(capsys, words(folder, "one.plan", steps=3))["steps"]
    assert (
        run(
            [
                "run",
                str(folder / "one.plan"),
                "--data",
                str(other),
                "--steps",
                "3",
                "--formats",
                "fp64",
                *kept,
            ]
        )
        == 7
    )
    said = capsys.readouterr().err
    assert "--data has other tokens of text than the checkpoints of" in said
    assert "--accept data" in said
    assert not (tmp_path / "kept" / "step-00000003").exists()
    changed = tokens.copy()
    changed[1999] ^= 1
    np.save(copy, changed)
    moved = [
        "run",
        str(folder / "one.plan"),
        "--data",
        str(copy),
        "--steps",
        "3",
        "--formats",
        "fp64",
        *kept,
    ]
    assert run(moved) == 7
    np.save(copy, tokens)
    again = found(capsys, moved)["steps"]
    assert [s["loss"] for s in again] == pytest.approx([s["loss"] for s in plain[2:]], abs=1e-12)
    meant = [
        "run",
        str(folder / "one.plan"),
        "--data",
        str(other),
        "--steps",
        "4",
        "--formats",
        "fp64",
        *kept,
        "--accept",
        "data",
    ]
    capsys.readouterr()
    assert run([*meant, "--quiet"]) == 0
    assert "--data has other tokens of text than before" in capsys.readouterr().err, (
        "a difference is said under --quiet too"
    )
    assert run([*words(folder, "one.plan", steps=5), *kept, "--quiet"]) == 7, (
        "the newest data are what counts"
    )


@pytest.mark.parametrize(
    ("sizes", "word", "said"),
    [
        (
            ["--seq-len", "8", "--global-batch", "4"],
            "seq-len",
            "seq-len is text 8, and the checkpoints of {} were made with text 16",
        ),
        (
            ["--seq-len", "16", "--global-batch", "8"],
            "global-batch",
            "global-batch is 8, and the checkpoints of {} were made with 4",
        ),
    ],
)
def test_another_job_is_refused_unless_it_is_meant(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sizes: list[str],
    word: str,
    said: str,
) -> None:
    kept = begun(folder, tmp_path / "kept")
    plan = tmp_path / "other.plan"
    assert (
        run(
            [
                "simulate",
                str(folder / "one.json"),
                "h100-sxm:1",
                *sizes,
                "--strategy",
                "mbs2",
                "--quiet",
                "-o",
                str(plan),
            ]
        )
        == 0
    )
    asked = [
        "run",
        str(plan),
        "--data",
        str(folder / "tokens.npy"),
        "--steps",
        "3",
        "--formats",
        "fp64",
        *kept,
        "--quiet",
    ]
    assert run(asked) == 7
    shown = "".join(capsys.readouterr().err.split())
    assert "".join(said.format(tmp_path / "kept").split()) in shown
    assert f"--accept{word}" in shown
    assert run([*asked, "--accept", word]) == 0
    assert f"{word} " in capsys.readouterr().err


def test_a_curve_is_of_the_steps_that_it_was_made_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More steps keep the rates of the first; another curve is asked for by name, and each is
    said."""
    lines = tmp_path / "steps.jsonl"
    chosen = ["--curve", "linear", "--least", "0.1", "--rate", "0.01"]
    kept = begun(folder, tmp_path / "kept", *chosen, steps=2)
    more = ["--metrics", str(lines), *kept]
    capsys.readouterr()
    assert run([*words(folder, "one.plan", steps=4), *more, "--quiet"]) == 0
    assert (
        "the linear curve is of 2 steps, not of 4: --curve-steps 4 changes it"
        in capsys.readouterr().err
    )
    assert run([*words(folder, "one.plan", steps=6), *more, "--curve-steps", "10", "--quiet"]) == 0
    assert "--curve-steps 10 (was 2)" in capsys.readouterr().err
    rates = [json.loads(line)["rate"] for line in lines.read_text().splitlines()]
    assert rates == pytest.approx(
        [0.001, 0.001, 0.01 * (0.1 + 0.9 * 0.5), 0.01 * (0.1 + 0.9 * 0.4)]
    )


def test_a_run_of_an_earlier_version_is_said_not_to_be_known(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = begun(folder, tmp_path / "kept", "--curve", "cosine")
    file = tmp_path / "kept" / FILE
    earlier = {
        name: value
        for name, value in json.loads(file.read_text()).items()
        if name not in ("facts", "curve-steps")
    }
    file.write_text(json.dumps(earlier))
    capsys.readouterr()
    assert run([*words(folder, "one.plan", steps=3), *kept, "--quiet"]) == 0
    said = capsys.readouterr().err
    assert "not known whether the tokens of --data are those of before" in said
    assert "not known for how many steps the cosine curve was made: it is of 3" in said
    file.write_text(
        json.dumps(
            {
                **json.loads(file.read_text()),
                "facts": {"data": 5, "seq-len": [], "global-batch": "4"},
            }
        )
    )
    assert run([*words(folder, "one.plan", steps=4), *kept, "--quiet"]) == 0
    assert "not known whether the tokens of --data are those of before" in capsys.readouterr().err
    assert run([*words(folder, "one.plan", steps=5), *kept, "--accept", "dta"]) == 2
    assert "--accept 'dta' is unknown" in capsys.readouterr().err


def test_a_large_file_is_known_by_pieces_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumed_run_facts, "WHOLE_BYTES", 1 << 12)
    monkeypatch.setattr(resumed_run_facts, "PIECE_BYTES", 1 << 10)
    tokens = np.arange(100_000, dtype=np.uint16)
    np.save(tmp_path / "tokens.npy", tokens)
    before = resumed_run_facts.digest_of(tmp_path / "tokens.npy")
    assert before.startswith("100000 uint16 ")
    for changed in (
        np.r_[tokens[:-1], np.uint16(7)],
        np.r_[np.uint16(7), tokens[1:]],
        tokens[:-1],
        tokens.astype(np.int32),
    ):
        np.save(tmp_path / "tokens.npy", changed)
        assert resumed_run_facts.digest_of(tmp_path / "tokens.npy") != before
    np.save(tmp_path / "tokens.npy", tokens)
    assert resumed_run_facts.digest_of(tmp_path / "tokens.npy") == before


EXPERTS = {
    **CONFIG,
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.5,
}


@in_both
def test_experts_are_balanced_as_the_configuration_or_the_run_says(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On one device and on four; another number of microbatches is another loss, which a run that
    goes on does not take for the same."""
    config = tmp_path / "experts.json"
    config.write_text(json.dumps(EXPERTS))
    plans = {"one": ("mbs2", 1), "all": ("mbs4", 1), "four": ("pp2 dp2 ep2 mbs1 schedule=1f1b", 4)}
    for name, (strategy, devices) in plans.items():
        sizes = [
            "--seq-len",
            "16",
            "--global-batch",
            "4",
            "--quiet",
            "-o",
            str(tmp_path / f"{name}.plan"),
        ]
        assert (
            run(["simulate", str(config), f"h100-sxm:{devices}", *sizes, "--strategy", strategy])
            == 0
        )

    def asked(name: str, steps: int, *more: str) -> list[str]:
        tokens = str(folder / "tokens.npy")
        return [
            "run",
            str(tmp_path / f"{name}.plan"),
            "--data",
            tokens,
            "--steps",
            str(steps),
            "--formats",
            "fp64",
            *more,
        ]

    def losses(name: str, steps: int, *more: str) -> list[float]:
        return [step["loss"] for step in found(capsys, asked(name, steps, *more))["steps"]]

    alone, without = losses("one", 3), losses("one", 3, "--load-balancing", "0")
    assert alone[0] - without[0] == pytest.approx(0.5 * 2, abs=0.1), (
        "the loss of balanced experts is topk"
    )
    kept = ["--checkpoints", str(tmp_path / "kept")]
    said = by_ranks(asked("four", 2, *kept, "--json"), ranks=4, folder=tmp_path)
    assert [s["loss"] for s in json.loads(said)["steps"]] == pytest.approx(alone[:2], abs=1e-10)
    assert run(asked("all", 3, *kept)) == 7
    assert "microbatch is 4" in " ".join(capsys.readouterr().err.split())
    assert losses("one", 3, *kept) == pytest.approx(alone[2:], abs=1e-10)
    assert losses("all", 4, *kept, "--load-balancing", "0")


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--load-balancing", "0.1"], 5, "has none"),
        (["--router-noise", "of"], 2, "unknown router noise 'of'"),
        (["--router-bias-update", "0.001"], 5, "has a bias of its choice"),
        (["--router-bias-update", "-1"], 2, "--router-bias-update"),
    ],
)
def test_what_says_nothing_of_routers_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, said: str
) -> None:
    assert run([*words(folder, "two.plan"), *more]) == code
    assert said in " ".join(capsys.readouterr().err.split())


DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "intermediate_size": 24,
    "q_lora_rank": None,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "first_k_dense_replace": 0,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "n_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 0,
    "aux_loss_alpha": 0.001,
    "seq_aux": True,
}


def test_biases_of_routers_move_alike_under_every_plan(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On one device, on four ranks, and on one that goes on from these, which is asked the same;
    another rate is said."""
    config, kept = tmp_path / "deepseek.json", tmp_path / "kept"
    config.write_text(json.dumps(DEEPSEEK))
    for name, (strategy, devices) in {
        "one": ("mbs2", 1),
        "four": ("pp2 dp2 ep2 mbs1 schedule=1f1b", 4),
    }.items():
        sizes = [
            "--seq-len",
            "16",
            "--global-batch",
            "4",
            "--quiet",
            "-o",
            str(tmp_path / f"{name}.plan"),
        ]
        assert (
            run(["simulate", str(config), f"h100-sxm:{devices}", *sizes, "--strategy", strategy])
            == 0
        )

    def asked(name: str, steps: int, *more: str) -> list[str]:
        tokens = ["--data", str(folder / "tokens.npy"), "--formats", "fp64", "--rate", "0.01"]
        return ["run", str(tmp_path / f"{name}.plan"), *tokens, "--steps", str(steps), *more]

    update, saved = ["--router-bias-update", "0.5"], ["--checkpoints", str(kept)]
    alone = [step["loss"] for step in found(capsys, asked("one", 4, *update))["steps"]]
    still = [step["loss"] for step in found(capsys, asked("one", 4))["steps"]]
    assert alone[0] == still[0]
    assert abs(alone[3] - still[3]) > 1e-6
    said = by_ranks(asked("four", 2, *update, *saved, "--json"), ranks=4, folder=tmp_path)
    assert [s["loss"] for s in json.loads(said)["steps"]] == pytest.approx(alone[:2], abs=1e-10)
    assert [s["loss"] for s in found(capsys, asked("one", 3, *saved))["steps"]] == pytest.approx(
        alone[2:3], abs=1e-10
    )
    assert json.loads((kept / FILE).read_text())["router-bias-update"] == 0.5
    assert run(asked("one", 4, *saved, "--router-bias-update", "0")) == 0
    shown = capsys.readouterr()
    assert "--router-bias-update 0.0 (was 0.5)" in " ".join(shown.err.split())
    assert "aux_loss_alpha 0.001" in " ".join(shown.out.split())
    (kept / FILE).unlink()
    assert run(asked("one", 5, *saved)) == 7
    assert "has biases of routers that its run moved" in " ".join(capsys.readouterr().err.split())
    assert run(asked("one", 1, *update, "--backend", "torch-native")) == 5
    assert "PyTorch's engine does not move biases" in " ".join(capsys.readouterr().err.split())


def test_dropout_that_is_not_applied_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written, and what the class has where nothing is."""
    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 32, "vocab_size": 64}
    config, plan = tmp_path / "gpt2.json", tmp_path / "gpt2.plan"
    config.write_text(
        json.dumps(
            {"architectures": ["GPT2LMHeadModel"], **sizes, "attn_pdrop": 0.0, "embd_pdrop": 0.25}
        )
    )
    asked = [
        "--seq-len",
        "16",
        "--global-batch",
        "4",
        "--strategy",
        "mbs2",
        "--quiet",
        "-o",
        str(plan),
    ]
    assert run(["simulate", str(config), "h100-sxm:1", *asked]) == 0
    asked = [
        "run",
        str(plan),
        "--data",
        str(folder / "tokens.npy"),
        "--steps",
        "1",
        "--formats",
        "fp64",
    ]
    capsys.readouterr()
    assert run(asked) == 0
    assert "trained without dropout (config.json: embd_pdrop 0.25, resid_pdrop 0.1)" in " ".join(
        capsys.readouterr().out.split()
    )
    assert run(words(folder, "one.plan")) == 0
    assert "dropout" not in capsys.readouterr().out


def test_noise_on_routers_is_switched_off_by_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, plan = tmp_path / "experts.json", tmp_path / "experts.plan"
    config.write_text(json.dumps({**EXPERTS, "router_jitter_noise": 0.1}))
    sizes = ["--seq-len", "16", "--global-batch", "4", "--quiet", "-o", str(plan)]
    assert run(["simulate", str(config), "h100-sxm:1", *sizes, "--strategy", "mbs2"]) == 0
    asked = [
        "run",
        str(plan),
        "--data",
        str(folder / "tokens.npy"),
        "--steps",
        "1",
        "--formats",
        "fp64",
        "--quiet",
    ]
    assert run(asked) == 5
    assert "--router-noise off" in capsys.readouterr().err
    assert run([*asked, "--router-noise", "off"]) == 0


@in_both
def test_ranks_are_asked_what_the_run_is(folder: Path, tmp_path: Path) -> None:
    """Two ranks begin; one process goes on, and is asked what they were."""
    lines, kept = tmp_path / "steps.jsonl", ["--checkpoints", str(tmp_path / "kept")]
    chosen = [
        "--rate",
        "0.01",
        "--shuffle",
        "--no-decay",
        "vectors",
        "--metrics",
        str(lines),
        "--every",
        "2",
        "--quiet",
    ]
    by_ranks([*evaluating(folder, "two.plan"), *chosen, *kept], ranks=2, folder=tmp_path)
    assert (
        run([*words(folder, "one.plan", steps=6), *kept, "--metrics", str(lines), "--quiet"]) == 0
    )
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {line["rate"] for line in written if "rate" in line} == {0.01}
    assert [line["step"] for line in written if "eval_loss" in line] == [2, 4, 6]


@in_both
def test_one_engine_goes_on_from_the_others_checkpoint(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the first evaluates is what one process would, and its trace stands beside the
    prediction."""
    kept, lines, measured = (
        ["--checkpoints", str(tmp_path / "kept")],
        tmp_path / "steps.jsonl",
        str(tmp_path / "measured.json"),
    )
    more = [
        "--backend",
        "torch-native",
        "--every",
        "1",
        "--metrics",
        str(lines),
        "--trace",
        measured,
        "--quiet",
    ]
    first = [*evaluating(folder, "two.plan"), *kept, *more]
    by_ranks(first, ranks=2, folder=tmp_path)
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert found(capsys, ["trace", str(folder / "two.plan"), "--compare", measured])["devices"]
    alone = found(capsys, [*evaluating(folder, "one.plan"), "--steps", str(STEPS + 1)])
    again = found(capsys, [*words(folder, "one.plan", steps=STEPS + 1), *kept])["steps"]
    assert [step["loss"] for step in again] == pytest.approx(
        [s["loss"] for s in alone["steps"]][STEPS:], abs=1e-8
    )
    evaluated = {line["step"]: line["eval_loss"] for line in written if "eval_loss" in line}
    assert evaluated == pytest.approx(
        {e["step"]: e["loss"] for e in alone["evaluations"] if e["step"] <= STEPS}, abs=1e-8
    )
    assert len(evaluated) == 2


@pytest.mark.skipif(find_spec("tensorboard") is not None, reason="TensorBoard is installed")
def test_tensorboard_is_asked_for_where_it_lacks(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words(folder, "one.plan"), "--tensorboard", str(tmp_path)]) == 2
    assert "pip install tensorboard" in capsys.readouterr().err


def test_numbers_go_to_tensorboard_under_their_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from shardwright.execute.launch.tensorboard import tensorboard_writer

    write = tensorboard_writer(tmp_path)
    write({"step": 1, "loss": 2.0, "tokens_per_s": None})
    write({"step": 1, "eval_loss": 3.0, "eval_seconds": 0.5})
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 2.0)]
    assert [(e.step, e.value) for e in events.Scalars("eval/loss")] == [(1, 3.0)]
