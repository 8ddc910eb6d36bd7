"""``shardwright catalog``: list hardware, clusters, models, runtimes, options and schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.dtype import Dtype
from shardwright.errors import UsageError, nearest
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.accelerators_by_name import ACCELERATORS
from shardwright.hardware.catalog.cloud_instances import find_instance, instance_names
from shardwright.hardware.catalog.published_clusters import published_names
from shardwright.hardware.cluster import Cluster, NodeKind
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job_from_flags import PRECISIONS
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.catalog.load_model_by_name import ENTRIES
from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.list_and_set_runtime_options import offered_values
from shardwright.runtime.option_vocabulary import OPTIONS
from shardwright.runtime.runtime_registry import load_runtime, runtime_names
from shardwright.runtime.serving_engines.engine_options import OPTIONS as ENGINE_OPTIONS
from shardwright.runtime.serving_engines.engine_registry import all_engines
from shardwright.runtime.serving_engines.serving_engine import Engine
from shardwright.schedules.schedule_registry import SCHEDULES
from shardwright.simulator.cluster_texts_and_sources import fabric_text
from shardwright.units import BITS_PER_BYTE, GIB, GIGA, TERA, format_count

MOST_VALUES: Final = 4
"""Most values of an option that `catalog runtimes` lists."""


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column of a catalog: key in JSON, value of an entry, title, format.

    An empty title means JSON only. `value` defaults to the attribute `key`. A narrow screen may
    leave out columns with `is_spare`.
    """

    key: str
    value: Callable[[Any], Any] | None = None
    title: str = ""
    shown: Callable[[Any], str] = str
    is_number: bool = False
    is_spare: bool = False

    def of(self, entry: Any) -> Any:
        """Value of a catalog entry in this column; a tuple becomes a list."""
        value = getattr(entry, self.key) if self.value is None else self.value(entry)
        return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Catalog:
    """A catalog: its description, its columns, a function that lists its entries, and a note."""

    about: str
    columns: tuple[CatalogColumn, ...]
    entries: Callable[[], Iterable[Any]]
    note: str = ""


def _joined(values: Sequence[str]) -> str:
    """Names joined by commas."""
    return ", ".join(values)


def _count_text(value: float) -> str:
    """Format a whole number with thousands separators; a dash for 0."""
    return f"{value:,.0f}" if value else "-"


def _precisions(device: Accelerator) -> list[str]:
    """Names of the number formats for which a device has a peak rate."""
    return [name for name, recipe in PRECISIONS.items() if device.peak(recipe.compute)]


def _node_columns(node: Callable[[Any], NodeKind]) -> tuple[CatalogColumn, ...]:
    """Columns of a node, the same in each catalog whose entries have one."""
    return (
        CatalogColumn("accelerator", lambda e: node(e).accelerator.name, "accelerator"),
        CatalogColumn(
            "memory_gib",
            lambda e: node(e).accelerator.memory_bytes / GIB,
            "GiB",
            _count_text,
            is_number=True,
            is_spare=True,
        ),
        CatalogColumn(
            "devices_per_node",
            lambda e: node(e).num_devices,
            "per node",
            _count_text,
            is_number=True,
        ),
        CatalogColumn(
            "scale_up_domain",
            lambda e: node(e).island,
            "scale-up domain",
            _count_text,
            is_number=True,
            is_spare=True,
        ),
        CatalogColumn(
            "nics", lambda e: node(e).nics, "NICs", _count_text, is_number=True, is_spare=True
        ),
        CatalogColumn(
            "nic_gbit_per_s",
            lambda e: node(e).nic.bandwidth * BITS_PER_BYTE / GIGA,
            "Gb/s each",
            _count_text,
            is_number=True,
        ),
        CatalogColumn(
            "precisions", lambda e: _precisions(node(e).accelerator), "precisions", _joined
        ),
    )


def _cloud_instances() -> list[NodeKind]:
    """Node kinds of all cloud instances in the catalog."""
    return [node for name in instance_names() if (node := find_instance(name)) is not None]


def _published_clusters() -> list[Cluster]:
    """Clusters of the catalog that a publication describes, one for each name."""
    return [parse_cluster(name) for name in published_names()]


def _all_runtimes() -> list[Runtime]:
    """Training runtimes of the catalog, one for each name."""
    return [load_runtime(name) for name in runtime_names()]


def _runtimes_with_schedule(schedule: str) -> list[str]:
    """Names of the runtimes that offer a pipeline schedule."""
    return [runtime.name for runtime in _all_runtimes() if schedule in runtime.schedules]


def _runtime_option_values(runtime: Runtime) -> list[str]:
    """Each option of a runtime as ``name=value|value``, the runtime's default first."""
    defaults = dict(runtime.own)
    return [
        f"{name}={'|'.join(sorted(values, key=lambda v: v != defaults[name]))}"
        for name, values in offered_values(runtime).items()
    ]


def _shortened_options(options: Sequence[str]) -> str:
    """Options joined by commas; an option with many values shows its first value and ``..``."""
    return (
        _joined([o if o.count("|") < MOST_VALUES else f"{o.split('|')[0]}|.." for o in options])
        or "-"
    )


def _engine_values(option: str) -> list[str]:
    """Words that some serving engine takes for an option; empty for numbers and lists."""
    return list(
        dict.fromkeys(
            word.word
            for e in all_engines()
            for setting in e.settings
            if setting.option == option
            for word in setting.words
        )
    )


def _engine_options(engine: Engine) -> list[str]:
    """Names of the launch options of a serving engine."""
    return [setting.option for setting in engine.settings]


NAME: Final = CatalogColumn("name", title="name")
ALIASES: Final = CatalogColumn("aliases", title="also", shown=_joined, is_spare=True)
ACCELERATOR: Final = (
    NAME,
    CatalogColumn("vendor", title="vendor"),
    CatalogColumn("memory_gib", lambda a: a.memory_bytes / GIB, "GiB", _count_text, is_number=True),
    CatalogColumn(
        "memory_bandwidth_tb_per_s",
        lambda a: a.memory_bandwidth / TERA,
        "TB/s",
        lambda v: f"{v:.2f}",
        is_number=True,
    ),
    CatalogColumn(
        "bf16_tflops",
        lambda a: a.peak(Dtype.BF16) / TERA,
        "bf16 TFLOP/s",
        _count_text,
        is_number=True,
    ),
    CatalogColumn(
        "fp8_tflops", lambda a: a.peak(Dtype.FP8) / TERA, "fp8 TFLOP/s", _count_text, is_number=True
    ),
    CatalogColumn("precisions", _precisions, "precisions", _joined),
    CatalogColumn("evidence", lambda a: a.origin.evidence.value, "known by", is_spare=True),
    CatalogColumn("reference", lambda a: a.origin.reference),
    ALIASES,
)
INSTANCE: Final = (
    NAME,
    *_node_columns(lambda node: node),
    CatalogColumn("reference", lambda node: node.nic.origin.reference),
)
CLUSTER: Final = (
    CatalogColumn("name", lambda c: c.expression, "name"),
    CatalogColumn("devices", lambda c: c.num_devices, "devices", _count_text, is_number=True),
    *(replace(column, is_spare=column.is_number) for column in _node_columns(lambda c: c.node)),
    CatalogColumn("switches", fabric_text, "switches"),
    CatalogColumn("reference", lambda c: c.fabric_origin.reference),
)
MODEL: Final = (
    CatalogColumn("name", lambda e: e.names[0], "name"),
    CatalogColumn("parameters", title="parameters", shown=format_count, is_number=True),
    CatalogColumn(
        "architecture", lambda e: ", ".join(e.config.get("architectures", [])), "architecture"
    ),
    CatalogColumn("reference", lambda e: e.source),
    CatalogColumn("aliases", lambda e: e.names[1:], "also", _joined, is_spare=True),
)
RUNTIME: Final = (
    NAME,
    *(CatalogColumn(key, title=key, is_spare=True) for key in ("framework", "version")),
    CatalogColumn("released", title="released", is_spare=True),
    CatalogColumn("vendors", title="runs on", shown=_joined, is_spare=True),
    CatalogColumn("schedules"),
    CatalogColumn(
        "zero_stages", title="ZeRO", shown=lambda stages: ", ".join(map(str, stages)), is_spare=True
    ),
    CatalogColumn(
        "options", _runtime_option_values, "options, its own value first", _shortened_options
    ),
    ALIASES,
)
OPTION: Final = (
    NAME,
    CatalogColumn("about", title="what it decides"),
    CatalogColumn("values", lambda o: list(o.values), "values", _joined),
    CatalogColumn(
        "numerics",
        lambda o: o.numerics,
        "changes numbers",
        lambda changes: "yes" if changes else "-",
    ),
    CatalogColumn(
        "runtimes",
        lambda o: [r.name for r in _all_runtimes() if o.name in dict(r.own)],
        "runtimes that have it",
        _joined,
        is_spare=True,
    ),
)
ENGINE: Final = (
    NAME,
    *(CatalogColumn(key, title=key, is_spare=True) for key in ("engine", "version", "released")),
    CatalogColumn("batching", lambda e: e.batching.value, "an iteration is"),
    CatalogColumn("admission", lambda e: e.admission.value, "lets in by"),
    CatalogColumn("eviction", lambda e: e.eviction.value, "when full"),
    CatalogColumn("memory_rule", lambda e: e.memory_rule.value, "memory share of"),
    CatalogColumn("options", _engine_options),
    CatalogColumn(
        "facts", lambda e: len(e.facts), "facts", _count_text, is_number=True, is_spare=True
    ),
    CatalogColumn(
        "checked",
        lambda e: sum(fact.checked for fact in e.facts),
        "read",
        _count_text,
        is_number=True,
        is_spare=True,
    ),
)
ENGINE_OPTION: Final = (
    NAME,
    CatalogColumn("about", title="what it decides"),
    CatalogColumn("values", lambda o: _engine_values(o.name) or [o.form.value], "values", _joined),
    CatalogColumn(
        "flags",
        lambda o: {e.name: s.flag for e in all_engines() for s in e.settings if s.option == o.name},
    ),
    CatalogColumn(
        "engines",
        lambda o: sorted({e.engine for e in all_engines() if o.name in _engine_options(e)}),
        "engines that have it",
        _joined,
    ),
)
SCHEDULE: Final = (
    CatalogColumn("name", str, "name"),
    CatalogColumn(
        "runtimes",
        _runtimes_with_schedule,
        "runtimes that run it",
        lambda names: _joined(names) or "-",
    ),
)
KINDS: Final[Mapping[str, Catalog]] = {
    "accelerators": Catalog(
        "devices: a CLUSTER is NAME:DEVICES, in their usual nodes",
        ACCELERATOR,
        lambda: ACCELERATORS,
    ),
    "instances": Catalog(
        "cloud instances: a CLUSTER is NAME:INSTANCES",
        INSTANCE,
        _cloud_instances,
        note="The cloud's prefix may be left out.",
    ),
    "clusters": Catalog(
        "published clusters with their switches: a CLUSTER is NAME or NAME:DEVICES",
        CLUSTER,
        _published_clusters,
    ),
    "models": Catalog(
        "models: a MODEL is one of them, or a Hugging Face config.json", MODEL, lambda: ENTRIES
    ),
    "runtimes": Catalog(
        "training frameworks and their options, for --runtime",
        RUNTIME,
        _all_runtimes,
        note=(
            "A runtime takes every precision that the devices have. `shardwright catalog schedules`"
            " says which schedules it runs, `shardwright catalog options` what an option decides."
        ),
    ),
    "options": Catalog(
        "options of runtimes, for --pin and in a strategy",
        OPTION,
        lambda: OPTIONS,
        note=(
            "Set one in a strategy or with --pin NAME=VALUE, search several with --pin"
            " NAME=VALUE,VALUE."
        ),
    ),
    "engines": Catalog(
        "serving engines by version",
        ENGINE,
        all_engines,
        note=(
            "A version in between is answered for by the one before it. `shardwright catalog"
            " engine-options` says what can be set."
        ),
    ),
    "engine-options": Catalog(
        "options of serving engines",
        ENGINE_OPTION,
        lambda: ENGINE_OPTIONS,
        note=(
            "Written behind an engine's name: vllm-0.12 token_budget=16384 async=on. `--json` has"
            " each engine's own flag."
        ),
    ),
    "schedules": Catalog("pipeline schedules", SCHEDULE, lambda: SCHEDULES),
}
KIND: Final = (
    CatalogColumn("name", lambda item: item[0], "kind"),
    CatalogColumn(
        "entries", lambda item: len(list(item[1].entries())), "entries", _count_text, is_number=True
    ),
    CatalogColumn("about", lambda item: item[1].about, "what"),
)
ALL: Final = Catalog("the kinds", KIND, KINDS.items, note="`shardwright catalog KIND` lists one.")


def catalog(
    kind: Annotated[
        str, Argument(metavar="[KIND]", help=f"{', '.join(KINDS)}; without one, the kinds.")
    ] = "",
    *,
    form: shared_options.AnswerForm,
) -> None:
    """List the entries of a catalog of hardware, clusters, models, runtimes or schedules.

    --quiet prints the names alone.
    """
    if kind and kind not in KINDS:
        raise UsageError(f"there is no catalog of {kind[:40]!r}", hint=nearest(kind[:40], KINDS))
    chosen = KINDS[kind] if kind else ALL
    rows = [
        {column.key: column.of(entry) for column in chosen.columns} for entry in chosen.entries()
    ]
    screen.print_answer(
        form,
        document=lambda: {kind or "kinds": rows},
        line=lambda: "".join(f"{row['name']}\n" for row in rows),
        picture=lambda: _table(chosen, rows),
    )


def _table(kind: Catalog, rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Table of a catalog's rows, with the note below."""
    columns = [column for column in kind.columns if column.title]
    cells = [tuple(column.shown(row[column.key]) for column in columns) for row in rows]
    numbers = [i for i, column in enumerate(columns) if column.is_number]
    spare = [i for i, column in enumerate(columns) if column.is_spare]
    table = plain_table(
        [column.title for column in columns], cells, right=numbers, whole=(0,), spare=spare[::-1]
    )
    return Group(table, WrappedText(Text(kind.note))) if kind.note else table


main = verb(catalog, name="catalog")
