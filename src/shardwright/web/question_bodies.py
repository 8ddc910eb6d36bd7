"""Bodies of the requests of the web API, as strict pydantic models.

A request is the one that plan files hold, with defaults for what is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from shardwright.files.read_plan_and_simulation_files import LIMITS
from shardwright.files.strict_pydantic_models_of_dataclasses import DocumentModel, Number, Record
from shardwright.search.search_request import Request

_SPARSE: Final = frozenset({Request})
REQUEST: Final = DocumentModel(kind=Request, names={}, limits=LIMITS, sparse=_SPARSE)
LAUNCH_REQUEST: Final = DocumentModel(kind=Request, names={}, limits={}, sparse=_SPARSE)
"""Request whose sequence length and global batch are 0 where the launch says them."""

if TYPE_CHECKING:
    AnyRequest = Request
    AnyLaunchRequest = Request
else:
    AnyRequest = REQUEST.annotation
    AnyLaunchRequest = LAUNCH_REQUEST.annotation

FileField = Literal["model", "teacher", "cluster", "profile", "scenarios"]
"""Field of a request that the command line reads from a file."""
FileText = Annotated[str, Field(min_length=1, max_length=4_000_000)]
ShortText = Annotated[str, Field(max_length=4096)]
StrategyText = Annotated[str, Field(max_length=1_000_000)]
Tokens = Annotated[Number, Field(description="Tokens of the training run; 0 = not given.")]
Prices = Annotated[
    dict[Annotated[str, Field(max_length=60)], Number],
    Field(
        default_factory=dict,
        max_length=64,
        description="Dollars a device-hour by accelerator.",
    ),
]
Files = Annotated[
    dict[FileField, FileText],
    Field(
        default_factory=dict,
        description="Texts of files by the request's field; that field of the request is empty.",
    ),
]


class QuestionBody(Record):
    """Fields of every question: texts in place of files, and facts that the texts leave out."""

    files: Files
    cluster_nodes: Annotated[
        int, Field(ge=0, lt=2**31, description="Nodes like the one that files.cluster describes.")
    ] = 0
    cluster_accelerator: Annotated[
        str, Field(max_length=60, description="Accelerator of nodes whose text names none.")
    ] = ""


class PlanBody(QuestionBody):
    """Find the fastest plan of a request, as ``shardwright plan`` does."""

    request: AnyRequest


class SimulateBody(QuestionBody):
    """Predict the step of one strategy, as ``shardwright simulate`` does."""

    request: AnyRequest
    strategy: StrategyText


class CompareBody(QuestionBody):
    """Predict strategies or clusters side by side, as ``shardwright compare`` does.

    Without strategies the best plan of each cluster is searched.
    """

    request: AnyRequest
    strategies: Annotated[list[StrategyText], Field(default_factory=list, max_length=16)]
    clusters: Annotated[
        list[ShortText],
        Field(
            default_factory=list,
            max_length=16,
            description="Clusters to compare beside that of the request.",
        ),
    ]
    tokens: Tokens = 0.0
    prices: Prices


class GuideBody(QuestionBody):
    """Judge rules of thumb by searches of a request, as ``shardwright guide`` does."""

    request: AnyRequest
    serving: Annotated[
        bool,
        Field(
            description="Guide for serving: seq_len is the tokens of a prompt and its answer,"
            " global_batch the number of requests in flight."
        ),
    ] = False
    answer_tokens: Annotated[
        int,
        Field(
            ge=0,
            lt=2**31,
            description="With serving: tokens of an answer; 0 = an eighth of seq_len.",
        ),
    ] = 0


class AdviseBody(QuestionBody):
    """Predict a launch and list faster changes, as ``shardwright advise`` does."""

    request: AnyLaunchRequest
    launch: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")], FileText],
        Field(min_length=1, max_length=16, description="Texts of launch files by their names."),
    ]
    framework: Annotated[str, Field(max_length=60)] = ""
    variables: Annotated[
        dict[Annotated[str, Field(max_length=200)], ShortText],
        Field(default_factory=dict, max_length=64),
    ]


class PlanFileBody(QuestionBody):
    """The text of a plan or simulation file, as ``-o`` writes it.

    It is a text, as many languages change the numbers of a JSON document that they read and write.
    """

    plan: Annotated[FileText, Field(description="Text of a plan or simulation file.")]


class ReportBody(PlanFileBody):
    """Make the report of a file, as ``shardwright report`` does.

    It may also be the ``--json`` of a comparison, an advice or a simulated deployment.
    """

    tokens: Tokens = 0.0
    prices: Prices
    what_if: Annotated[
        bool, Field(description="Search the best plans of changed requests too, as --what-if does.")
    ] = False


class WhyBody(PlanFileBody):
    """Compare another strategy with a plan file's, as ``shardwright why`` does."""

    strategy: StrategyText


class ClusterBody(Record):
    """Read a cluster from the text of a topology, Slurm or cluster file."""

    text: FileText
    nodes: Annotated[int, Field(ge=0, lt=2**31)] = 0
    accelerator: Annotated[str, Field(max_length=60)] = ""
