"""Arguments and options that several verbs share, and the parsers of their text.

Options are declared in groups. A verb takes a group as one parameter, and its help shows the group
under a title. Options carry their unit, which is converted here, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument, Option, group
from shardwright.cli.parsing.parse_memory_and_cost import read_reserve
from shardwright.cli.parsing.parse_token_and_sequence_counts import read_batch, read_count
from shardwright.errors import UsageError
from shardwright.search.search_request import Choices, Request
from shardwright.strategy.text.grid_notation import name_and_value

OUTPUT: Final = "Output"
"""Help title of the options for printed and written output."""
SEARCH: Final = "Search"
LIMITS: Final = "Limits"

Model = Annotated[
    str,
    Argument(
        metavar="MODEL",
        help="Catalog name (llama-3.1-70b), or path of a Hugging Face config.json.",
    ),
]
Cluster = Annotated[
    str,
    Argument(
        metavar="CLUSTER",
        help="Expression such as h100-sxm:16384, or path of a YAML file (docs/clusters.md).",
    ),
]
PlanFile = Annotated[
    Path,
    Argument(
        metavar="PLAN",
        help="Plan file written by `shardwright plan -o` or `shardwright simulate -o`.",
    ),
]
GlobalBatch = Annotated[
    str,
    Option(
        "--global-batch",
        metavar="N",
        help=(
            'Global batch size in sequences per step (2048), or in tokens ("4M tokens"). `plan`'
            " also takes auto or auto:256..4096: it plans for each of these batch sizes and takes"
            " the best one."
        ),
        show_default=False,
    ),
]
Precision = Annotated[
    str,
    Option(
        "--precision",
        help="Number format of the GEMMs: bf16, fp16, fp8, ...",
        show_default="bf16, or fp16 on devices without bf16",
    ),
]
Output = Annotated[
    Path | None,
    Option("--output", "-o", help="Also write the result to this file.", rich_help_panel=OUTPUT),
]


@group("What to train")
class JobFlags:
    """Options for the training job: sequence length, batch, precision, dropout."""

    seq_len: Annotated[
        str, Option("--seq-len", metavar="N", help="Sequence length in tokens: 8192 or 8k.")
    ]
    global_batch: GlobalBatch = ""
    global_batch_tokens: Annotated[
        str,
        Option(
            "--global-batch-tokens",
            metavar="N",
            help="Global batch size in tokens: 4M (M = 1024 x 1024).",
            show_default=False,
        ),
    ] = ""
    train: Annotated[
        str,
        Option(
            "--train",
            metavar="WHAT",
            help=(
                "Parameters to train: all, lora:r16, lora:r16:attn,mlp, frozen:embed or"
                " without:mtp."
            ),
            show_default="all",
        ),
    ] = ""
    teacher: Annotated[
        str,
        Option(
            "--teacher",
            metavar="MODEL",
            help="Frozen model that runs forward beside MODEL; the loss reads its logits.",
        ),
    ] = ""
    precision: Precision = ""
    dropout: Annotated[
        bool,
        Option("--dropout", help="Train with attention and hidden dropout, and keep their masks."),
    ] = False
    gradient_wire: Annotated[
        str,
        Option(
            "--gradient-wire",
            metavar="DTYPE",
            help="Number format of gradients on the network: bf16, fp32.",
            show_default="the one in which the runtime adds gradients up",
        ),
    ] = ""
    expert_imbalance: Annotated[
        float,
        Option(
            "--expert-imbalance",
            metavar="X",
            help="Tokens of the device with the busiest experts, divided by the mean: 1.2.",
        ),
    ] = 1.0
    encoder_len: Annotated[
        int,
        Option(
            "--encoder-len",
            metavar="N",
            min=0,
            help="Encoder sequence length in tokens, for encoder-decoder models: 512.",
        ),
    ] = 0
    image_tokens: Annotated[
        int,
        Option(
            "--image-tokens",
            metavar="N",
            min=0,
            help="Image tokens per sample, for vision-language models: 1024.",
        ),
    ] = 0


@group("Framework and devices")
class PlatformFlags:
    """Options for the framework, a measured device profile and reserved memory."""

    runtime: Annotated[
        str,
        Option(
            "--runtime",
            help="Training framework and version; `shardwright catalog runtimes` lists them.",
            show_default="the usual one of the devices",
        ),
    ] = ""
    profile: Annotated[
        str,
        Option(
            "--profile",
            metavar="FILE",
            help="Profile of measured rates, written by `shardwright calibrate -o`.",
        ),
    ] = ""
    memory_reserve: Annotated[
        str,
        Option(
            "--memory-reserve",
            metavar="GIB|PERCENT",
            help="Memory that other programs use on every device, in GiB (4) or percent (5%).",
        ),
    ] = "0"


@group(SEARCH)
class PinFlags:
    """Options that fix or exclude values of the axes of the search space."""

    pin: Annotated[
        list[str] | None,
        Option("--pin", metavar="AXIS=V[,V]", help="Fix an axis: tp=8, or pp=4,8. Repeatable."),
    ] = None
    exclude: Annotated[
        list[str] | None,
        Option(
            "--exclude",
            metavar="AXIS=V[,V]",
            help="Exclude values of an axis: zero=3. Repeatable.",
        ),
    ] = None


@group("Days and cost of training")
class CostFlags:
    """Options for the number of training tokens and the prices of devices."""

    tokens: Annotated[
        str,
        Option(
            "--tokens",
            metavar="N",
            help="Tokens to train on, such as 15T: also show days and dollars.",
            show_default=False,
        ),
    ] = ""
    price: Annotated[
        list[str] | None,
        Option(
            "--price",
            metavar="[NAME=]USD",
            help=(
                "Dollars per device-hour for the cost of --tokens, of all devices (2.5) or of an"
                " accelerator or instance (h100-sxm=2.5). Repeatable."
            ),
        ),
    ] = None


@group(OUTPUT)
class AnswerForm:
    """Options for the form of the printed answer: a screen, JSON or one line."""

    as_json: Annotated[bool, Option("--json", help="Print JSON instead of text.")] = False
    quiet: Annotated[
        bool,
        Option(
            "--quiet",
            help=(
                "Print the main result as one line, and no progress. For a strategy: seconds per"
                " step, a tab and the strategy."
            ),
        ),
    ] = False
    debug: Annotated[bool, Option("--debug", help="Print the traceback if something fails.")] = (
        False
    )


def read_request(
    model: str,
    cluster: str,
    *,
    job: JobFlags,
    platform: PlatformFlags,
    pins: PinFlags | None = None,
) -> Request:
    """Parse MODEL, CLUSTER and the options of a training job into a request.

    Raises:
        UsageError: the text of an option cannot be parsed.
    """
    seq_len = read_count(job.seq_len, flag="--seq-len")
    batch = read_batch(job.global_batch, job.global_batch_tokens, seq_len=seq_len)
    reserve_bytes, reserve_fraction = read_reserve(platform.memory_reserve)
    pins = pins or PinFlags()
    return Request(
        model=model,
        cluster=cluster,
        seq_len=seq_len,
        global_batch=batch,
        train=job.train,
        teacher=job.teacher,
        precision=job.precision,
        dropout=job.dropout,
        gradient_wire=job.gradient_wire,
        expert_imbalance=job.expert_imbalance,
        encoder_len=job.encoder_len,
        image_tokens=job.image_tokens,
        runtime=platform.runtime,
        profile=platform.profile,
        reserve_bytes=reserve_bytes,
        reserve_fraction=reserve_fraction,
        pins=read_choices(pins.pin, flag="--pin"),
        excludes=read_choices(pins.exclude, flag="--exclude"),
    )


def read_choices(words: Sequence[str] | None, *, flag: str) -> Choices:
    """Parse --pin or --exclude: ``["tp=4,8", "zero1"]`` is (("tp", ("4", "8")), ("zero", ("1",))).

    Raises:
        UsageError: a word is neither axis=value nor a degree such as tp8, or names an axis again.
    """
    choices: dict[str, tuple[str, ...]] = {}
    for word in words or ():
        axis, text = name_and_value(word.strip())
        values = tuple(v.strip() for v in text.split(","))
        if not axis or not all(values):
            raise UsageError(
                f"{flag} {word[:60]!r} is not axis=value",
                hint=f"for example {flag} tp=8, or {flag} tp8",
            )
        if axis in choices:
            raise UsageError(
                f"{flag} names {axis[:40]} twice",
                hint=f"give all its values at once: {flag} {axis[:40]}=4,8",
            )
        choices[axis] = values
    return tuple(choices.items())
