"""Fit the constants to measured training runs, and write their values, intervals and folds.

    python tools/fit_constants.py [benchmarks/published/*.csv]

Writes src/shardwright/hardware/catalog/fitted_training_constants.py (values of `Constants`),
src/shardwright/simulator/step_time_interval.py (`COEFFICIENTS`),
src/shardwright/simulator/runs.json (which runs there were) and benchmarks/published/folds.json.
`make accuracy` afterwards writes the page. The fit does not depend on the values shipped before.
"""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path

from interval_fit import interval_coefficients, ran, runs_text

from shardwright.validation.training.fit_constants import folds_text
from shardwright.validation.training.sweep_and_scaling_checks import timed
from shardwright.validation.training.training_table_reader_and_json import TRAINING
from shardwright.validation.validate_tables import accuracy

ROOT = Path(__file__).parent.parent
CONSTANTS = ROOT / "src" / "shardwright" / "hardware" / "catalog" / "constants.py"
INTERVAL = ROOT / "src" / "shardwright" / "simulator" / "interval.py"
RUNS = ROOT / "src" / "shardwright" / "simulator" / "runs.json"
FOLDS = ROOT / "benchmarks" / "published" / "folds.json"


def main(arguments: list[str]) -> None:
    """Fit, and write the four files."""
    paths = [Path(a) for a in arguments] or sorted(
        (ROOT / "benchmarks" / "published").glob("*.csv")
    )
    study = accuracy(TRAINING, *paths, facts=TRAINING.facts(*paths), progress=_say)
    constants = asdict(study.fitted.report.constants)
    _replace(
        CONSTANTS,
        constants,
        pattern=r"^    {name}: float = .*$",
        line="    {name}: float = {value}",
    )
    held_out = [
        study.validation(fold).rows for fold in ("model", "accelerator", "source", "other base")
    ]
    coefficients = interval_coefficients(*held_out)
    RUNS.write_text(
        runs_text(ran(row) for row, _, _ in timed(held_out[0])),
        encoding="utf-8",
    )
    _replace(INTERVAL, coefficients, pattern=r'^    "{name}": .*$', line='    "{name}": {value},')
    FOLDS.write_text(folds_text(study.fitted), encoding="utf-8")
    for name, value in {**constants, **coefficients}.items():
        sys.stdout.write(f"{name}: {value}\n")


def _replace(path: Path, values: dict[str, float], *, pattern: str, line: str) -> None:
    text = path.read_text(encoding="utf-8")
    for name, value in values.items():
        text, count = re.subn(
            pattern.format(name=re.escape(name)),
            line.format(name=name, value=value),
            text,
            flags=re.MULTILINE,
        )
        if count != 1:
            raise SystemExit(f"{path.name}: {name} is there {count} times")
    path.write_text(text, encoding="utf-8")


def _say(phase: str, done: int, total: int) -> None:
    sys.stderr.write(f"\r{phase} {done}/{total}          ")


if __name__ == "__main__":
    main(sys.argv[1:])
