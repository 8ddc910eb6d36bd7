"""Option groups of `run`: data, optimizer, checkpoints, experts, execution and records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Option, group
from shardwright.execute.launch.run_options_and_report import (
    AUTO,
    BACKENDS,
    CONFIGURED,
    FORMATS,
    NOISES,
    OWN,
    TRANSPORTS,
)
from shardwright.execute.training.learning_rate import CURVES
from shardwright.execute.training.weight_decay_exemptions import SPARED

DATA: Final = "Data"


CHECKPOINTS: Final = "Parameters and checkpoints"


def help_with_choices(sentence: str, meanings: Mapping[str, str]) -> str:
    """Help of an option: a sentence, and its values with the meaning of each."""
    values = "; ".join(f"{value}: {meaning}" for value, meaning in meanings.items())
    return f"{sentence} {values}"


@group(DATA)
class EvaluationFlags:
    """Options for the evaluation data and the order of samples."""

    eval_data: Annotated[
        list[str] | None,
        Option(
            "--eval-data",
            metavar="[SEQUENCE=]FILE",
            help="Token file to evaluate on, and not to train on, after the last step. Repeatable.",
        ),
    ] = None
    eval_every: Annotated[
        int,
        Option(
            "--eval-every",
            min=0,
            help="Steps between evaluations; 0 means only after the last step.",
        ),
    ] = 0
    eval_batches: Annotated[
        int,
        Option(
            "--eval-batches", min=0, help="Batches of an evaluation; 0 means all of --eval-data."
        ),
    ] = 0
    shuffle: Annotated[
        bool, Option("--shuffle", help="Shuffle the samples anew in every epoch.")
    ] = False


@group("Optimizer")
class OptimizerFlags:
    """Options for AdamW and the learning rate."""

    steps: Annotated[
        int,
        Option(
            "--steps",
            min=1,
            help="Total number of steps, including those a checkpoint already has: 1000.",
        ),
    ]
    rate: Annotated[float, Option("--rate", min=0.0, help="AdamW learning rate.")] = 1e-3
    decay: Annotated[float, Option("--decay", min=0.0, help="AdamW weight decay.")] = 0.1
    no_decay: Annotated[
        str,
        Option(
            "--no-decay",
            metavar="KIND,..",
            help=help_with_choices("Parameters without weight decay.", SPARED),
        ),
    ] = ""
    betas: Annotated[str, Option("--betas", metavar="B1,B2", help="AdamW betas.")] = "0.9,0.95"
    eps: Annotated[float, Option("--eps", min=0.0, help="AdamW epsilon.")] = 1e-8
    clip: Annotated[
        float, Option("--clip", min=0.0, help="Clip gradients to this norm; 0 means never.")
    ] = 1.0
    curve: Annotated[
        str, Option("--curve", help=f"Learning rate after the warm-up: {', '.join(CURVES)}.")
    ] = "constant"
    curve_steps: Annotated[
        int,
        Option(
            "--curve-steps",
            min=0,
            help="Steps that --curve is made for; 0 means --steps of the run's first command.",
        ),
    ] = 0
    warmup: Annotated[
        int,
        Option("--warmup", min=0, help="Steps in which the learning rate grows to --rate: 100."),
    ] = 0
    least: Annotated[
        float,
        Option("--least", min=0.0, max=1.0, help="Share of --rate that the last step has: 0.1."),
    ] = 0.0


@group(CHECKPOINTS)
class CheckpointFlags:
    """Options for the initial parameters, and the checkpoints to save and resume from."""

    weights: Annotated[
        Path | None,
        Option("--weights", metavar="FOLDER", help="Hugging Face safetensors to start from."),
    ] = None
    seed: Annotated[
        int, Option("--seed", help="Random seed of the initial parameters, without --weights.")
    ] = 0
    checkpoints: Annotated[
        Path | None,
        Option(
            "--checkpoints",
            metavar="FOLDER",
            help="Save checkpoints here, and resume from the newest, whatever plan wrote it.",
        ),
    ] = None
    every: Annotated[
        int, Option("--every", min=0, help="Steps between checkpoints; 0 means one at the end.")
    ] = 0
    keep: Annotated[
        int, Option("--keep", min=0, help="Number of newest checkpoints to keep; 0 means all.")
    ] = 0


@group("Experts")
class RouterFlags:
    """Options for load balancing of experts."""

    load_balancing: Annotated[
        float | None,
        Option(
            "--load-balancing",
            min=0.0,
            help=(
                "Coefficient of the load-balancing loss of experts; by default as config.json says."
            ),
        ),
    ] = None
    router_bias_update: Annotated[
        float | None,
        Option(
            "--router-bias-update",
            min=0.0,
            metavar="RATE",
            help=(
                "Balance experts without a loss. After each step, add RATE to the router bias"
                " (e_score_correction_bias) of each expert that was chosen by fewer tokens than the"
                " mean, and subtract RATE for each expert chosen by more. Example: 0.001, as in"
                " DeepSeek-V3. By default, biases are not updated."
            ),
        ),
    ] = None
    router_noise: Annotated[
        str,
        Option("--router-noise", help=help_with_choices("Noise on the inputs of routers.", NOISES)),
    ] = CONFIGURED


@group("Execution")
class ExecutionFlags:
    """Options for devices, number formats and communication."""

    on: Annotated[
        str,
        Option("--on", help="Device type, cpu or cuda; by default an accelerator if there is one."),
    ] = ""
    backend: Annotated[
        str, Option("--backend", help=help_with_choices("Program that trains.", BACKENDS))
    ] = OWN
    transport: Annotated[
        str,
        Option("--transport", help=help_with_choices("Communication between ranks.", TRANSPORTS)),
    ] = AUTO
    formats: Annotated[
        str, Option("--formats", help=help_with_choices("Number formats.", FORMATS))
    ] = "job"
    timeout: Annotated[
        float,
        Option("--timeout", min=1.0, help="Seconds to wait for another rank before giving up."),
    ] = 300.0
    profile: Annotated[
        Path | None,
        Option(
            "--profile",
            metavar="FILE",
            help="Compare with the prediction for the machine that this profile was measured on.",
        ),
    ] = None


@group(shared_options.OUTPUT)
class RecordFlags:
    """Options for files that record the steps."""

    metrics: Annotated[
        Path | None,
        Option("--metrics", metavar="FILE", help="Add a line of JSON for every step to this file."),
    ] = None
    tensorboard: Annotated[
        Path | None,
        Option(
            "--tensorboard",
            metavar="FOLDER",
            help="Write TensorBoard event files of every step to this folder.",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        Option(
            "--trace",
            metavar="FILE",
            help="Write a trace of the last step to this file, for ui.perfetto.dev.",
        ),
    ] = None
