"""Predicted and measured steps of twelve plans on this processor, beside nothing: `python -m
benchmarks.cpu_predictions [FOLDER]`.

Of the measured steps the fastest counts: what else a shared machine does makes others slower. The
machine is calibrated, each plan is predicted for that profile and run by the interpreter over
gloo's collectives, two ranks each. FOLDER keeps the profile and what was measured (`model.json`,
`here.json`, `measured.json`), which a test predicts anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

PLANS = (
    *(
        "dp2 mbs2 zero0",
        "dp2 mbs2 zero1",
        "dp2 mbs1 zero2",
        "dp2 mbs2 zero3",
        "dp2 mbs4 recompute=full",
    ),
    *("tp2 mbs2", "tp2 sp mbs4", "cp2 mbs2"),
    *(
        "pp2 mbs1 schedule=1f1b",
        "pp2 mbs2 schedule=gpipe",
        "pp2 mbs1 schedule=zb-h1",
        "pp2 mbs1 vpp2 schedule=interleaved-1f1b",
    ),
)
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 8192,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
}
STEPS, TEXT = 8, "the quick brown fox jumps over the lazy dog. " * 4000
APART = 1.2
"""Plans whose measured steps differ by this factor have to be ranked."""


def write(line: str) -> None:
    """Say it at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(folder: Path, *words: str) -> Any:
    """What a verb prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "shardwright", *words, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def measured(folder: Path, strategy: str) -> tuple[float, float, float, float, float]:
    """Seconds of a step: predicted, of the fastest, the median; bytes of the device whose memory is
    missed by most: predicted, measured."""
    job = (
        "--precision",
        "fp32",
        "--seq-len",
        "256",
        "--global-batch",
        "8",
        "--runtime",
        "shardwright",
        "--profile",
        "here.json",
    )
    run(folder, "simulate", "model.json", "cpu:2", *job, "--strategy", strategy, "-o", "plan.json")
    words = (
        "--data",
        "tokens.npy",
        "--steps",
        str(STEPS),
        "--formats",
        "fp32",
        "--transport",
        "groups",
        "--profile",
        "here.json",
    )
    found = run(folder, "run", "plan.json", *words)
    seconds = [step["seconds"] for step in found["steps"][2:]]
    worst = max(found["memory"], key=lambda one: abs(one["predicted"] / one["measured"] - 1))
    return (
        found["step_time_s"]["predicted"],
        min(seconds),
        median(seconds),
        worst["predicted"],
        worst["measured"],
    )


def main() -> None:
    """Print a table, and the pairs that are ranked wrongly."""
    found: dict[str, tuple[float, float, float, float, float]] = {}
    with TemporaryDirectory() as name:
        folder = Path(sys.argv[1] if sys.argv[1:] else name).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.json").write_text(json.dumps(MODEL))
        (folder / "text").write_text(TEXT)
        run(folder, "tokenise", "text", "-o", "tokens.npy")
        run(folder, "calibrate", "--device", "cpu", "--ranks", "2", "-o", "here.json")
        write(
            "| plan | predicted s | fastest step s | error | median s | predicted MiB | measured"
            " MiB | error |\n" + "|---" * 8 + "|"
        )
        for strategy in PLANS:
            found[strategy] = predicted, seconds, middle, planned, held = measured(folder, strategy)
            memory = f"{planned / 2**20:.0f} | {held / 2**20:.0f} | {planned / held - 1:+.1%}"
            write(
                f"| {strategy} | {predicted:.3f} | {seconds:.3f} | {predicted / seconds - 1:+.1%} |"
                f" {middle:.3f} | {memory} |"
            )
        kept = {strategy: {"seconds": one[1], "bytes": one[4]} for strategy, one in found.items()}
        (folder / "measured.json").write_text(json.dumps({"plans": kept}, indent=1) + "\n")
    pairs = [
        (a, b)
        for a, b in combinations(found, 2)
        if max(found[a][1], found[b][1]) > APART * min(found[a][1], found[b][1])
    ]
    wrong = [(a, b) for a, b in pairs if (found[a][0] < found[b][0]) != (found[a][1] < found[b][1])]
    write(
        f"{len(pairs)} pairs differ by {APART - 1:.0%} or more; ranked wrongly: {len(wrong)}"
        f" {wrong or ''}"
    )


if __name__ == "__main__":
    main()
