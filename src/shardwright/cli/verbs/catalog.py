"""``shardwright catalog``: what is known by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.light_typer import Argument
from shardwright.cli.parsing.parse_command import verb
from shardwright.cli.terminal import screen
from shardwright.dtype import Dtype
from shardwright.errors import UsageError, nearest
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.accelerators_by_name import ACCELERATORS
from shardwright.hardware.catalog.cloud_instances import find_instance, instance_names
from shardwright.hardware.catalog.published_clusters import published_names
from shardwright.hardware.cluster import Cluster, NodeKind
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.job_from_flags import PRECISIONS
from shardwright.lazy_dataclass import dataclass
from shardwright.model.catalog.models_by_name import ENTRIES
from shardwright.report.line_breaking import Words
from shardwright.report.table_style import plain_table
from shardwright.runtime.engines.engine import Engine
from shardwright.runtime.engines.engine_options import OPTIONS as ENGINE_OPTIONS
from shardwright.runtime.engines.engine_registry import all_engines
from shardwright.runtime.runtime import Runtime
from shardwright.runtime.runtime_options import OPTIONS, offered_values
from shardwright.runtime.runtime_registry import load_runtime, runtime_names
from shardwright.schedules.schedule_registry import SCHEDULES
from shardwright.simulator.cluster_description import fabric_text
from shardwright.units import BITS_PER_BYTE, GIB, GIGA, TERA, format_count

MOST_VALUES: Final = 4
"""Values of an option that a line of `catalog runtimes` has room for."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: key in JSON, its value of an entry (its attribute of that name if not given), title
    (empty = only in JSON), how a value is shown, whether it is a number, and whether a narrow
    screen may leave it out.
    """

    key: str
    value: Callable[[Any], Any] | None = None
    title: str = ""
    shown: Callable[[Any], str] = str
    is_number: bool = False
    is_spare: bool = False

    def of(self, entry: Any) -> Any:
        """The value that an entry has here."""
        value = getattr(entry, self.key) if self.value is None else self.value(entry)
        return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Kind:
    """A catalog: what it has, its columns, its entries, and a line below them."""

    about: str
    columns: tuple[Column, ...]
    entries: Callable[[], Iterable[Any]]
    note: str = ""


def _names(values: Sequence[str]) -> str:
    return ", ".join(values)


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value else "-"


def _precisions(device: Accelerator) -> list[str]:
    return [name for name, recipe in PRECISIONS.items() if device.peak(recipe.compute)]


def _node_columns(node: Callable[[Any], NodeKind]) -> tuple[Column, ...]:
    """Columns of a node, the same in each catalog whose entries have one."""
    return (
        Column("accelerator", lambda e: node(e).accelerator.name, "accelerator"),
        Column(
            "memory_gib",
            lambda e: node(e).accelerator.memory_bytes / GIB,
            "GiB",
            _whole,
            is_number=True,
            is_spare=True,
        ),
        Column(
            "devices_per_node", lambda e: node(e).num_devices, "per node", _whole, is_number=True
        ),
        Column(
            "scale_up_domain",
            lambda e: node(e).island,
            "scale-up domain",
            _whole,
            is_number=True,
            is_spare=True,
        ),
        Column("nics", lambda e: node(e).nics, "NICs", _whole, is_number=True, is_spare=True),
        Column(
            "nic_gbit_per_s",
            lambda e: node(e).nic.bandwidth * BITS_PER_BYTE / GIGA,
            "Gb/s each",
            _whole,
            is_number=True,
        ),
        Column("precisions", lambda e: _precisions(node(e).accelerator), "precisions", _names),
    )


def _instances() -> list[NodeKind]:
    return [node for name in instance_names() if (node := find_instance(name)) is not None]


def _clusters() -> list[Cluster]:
    return [parse_cluster(name) for name in published_names()]


def _runtimes() -> list[Runtime]:
    return [load_runtime(name) for name in runtime_names()]


def _runs(schedule: str) -> list[str]:
    return [runtime.name for runtime in _runtimes() if schedule in runtime.schedules]


def _options(runtime: Runtime) -> list[str]:
    """Each option with its values, the framework's own first."""
    own = dict(runtime.own)
    return [
        f"{name}={'|'.join(sorted(values, key=lambda v: v != own[name]))}"
        for name, values in offered_values(runtime).items()
    ]


def _some_values(options: Sequence[str]) -> str:
    """Options with their values, of many only the first: `catalog options` has them all."""
    return (
        _names([o if o.count("|") < MOST_VALUES else f"{o.split('|')[0]}|.." for o in options])
        or "-"
    )


def _engine_values(option: str) -> list[str]:
    """Words that an option of any engine may be; empty where it is a number, a share or a list."""
    return list(
        dict.fromkeys(
            one.word
            for e in all_engines()
            for setting in e.settings
            if setting.option == option
            for one in setting.words
        )
    )


def _engine_options(engine: Engine) -> list[str]:
    return [setting.option for setting in engine.settings]


NAME: Final = Column("name", title="name")
ALIASES: Final = Column("aliases", title="also", shown=_names, is_spare=True)
ACCELERATOR: Final = (
    NAME,
    Column("vendor", title="vendor"),
    Column("memory_gib", lambda a: a.memory_bytes / GIB, "GiB", _whole, is_number=True),
    Column(
        "memory_bandwidth_tb_per_s",
        lambda a: a.memory_bandwidth / TERA,
        "TB/s",
        lambda v: f"{v:.2f}",
        is_number=True,
    ),
    Column(
        "bf16_tflops", lambda a: a.peak(Dtype.BF16) / TERA, "bf16 TFLOP/s", _whole, is_number=True
    ),
    Column("fp8_tflops", lambda a: a.peak(Dtype.FP8) / TERA, "fp8 TFLOP/s", _whole, is_number=True),
    Column("precisions", _precisions, "precisions", _names),
    Column("evidence", lambda a: a.origin.evidence.value, "known by", is_spare=True),
    Column("reference", lambda a: a.origin.reference),
    ALIASES,
)
INSTANCE: Final = (
    NAME,
    *_node_columns(lambda node: node),
    Column("reference", lambda node: node.nic.origin.reference),
)
CLUSTER: Final = (
    Column("name", lambda c: c.expression, "name"),
    Column("devices", lambda c: c.num_devices, "devices", _whole, is_number=True),
    *(replace(column, is_spare=column.is_number) for column in _node_columns(lambda c: c.node)),
    Column("switches", fabric_text, "switches"),
    Column("reference", lambda c: c.fabric_origin.reference),
)
MODEL: Final = (
    Column("name", lambda e: e.names[0], "name"),
    Column("parameters", title="parameters", shown=format_count, is_number=True),
    Column("architecture", lambda e: ", ".join(e.config.get("architectures", [])), "architecture"),
    Column("reference", lambda e: e.source),
    Column("aliases", lambda e: e.names[1:], "also", _names, is_spare=True),
)
RUNTIME: Final = (
    NAME,
    *(Column(key, title=key, is_spare=True) for key in ("framework", "version")),
    Column("released", title="released", is_spare=True),
    Column("vendors", title="runs on", shown=_names, is_spare=True),
    Column("schedules"),
    Column(
        "zero_stages", title="ZeRO", shown=lambda stages: ", ".join(map(str, stages)), is_spare=True
    ),
    Column("options", _options, "options, its own value first", _some_values),
    ALIASES,
)
OPTION: Final = (
    NAME,
    Column("about", title="what it decides"),
    Column("values", lambda o: list(o.values), "values", _names),
    Column(
        "numerics",
        lambda o: o.numerics,
        "changes numbers",
        lambda changes: "yes" if changes else "-",
    ),
    Column(
        "runtimes",
        lambda o: [r.name for r in _runtimes() if o.name in dict(r.own)],
        "runtimes that have it",
        _names,
        is_spare=True,
    ),
)
ENGINE: Final = (
    NAME,
    *(Column(key, title=key, is_spare=True) for key in ("engine", "version", "released")),
    Column("batching", lambda e: e.batching.value, "an iteration is"),
    Column("admission", lambda e: e.admission.value, "lets in by"),
    Column("eviction", lambda e: e.eviction.value, "when full"),
    Column("memory_rule", lambda e: e.memory_rule.value, "memory share of"),
    Column("options", _engine_options),
    Column("facts", lambda e: len(e.facts), "facts", _whole, is_number=True, is_spare=True),
    Column(
        "checked",
        lambda e: sum(fact.checked for fact in e.facts),
        "read",
        _whole,
        is_number=True,
        is_spare=True,
    ),
)
ENGINE_OPTION: Final = (
    NAME,
    Column("about", title="what it decides"),
    Column("values", lambda o: _engine_values(o.name) or [o.form.value], "values", _names),
    Column(
        "flags",
        lambda o: {e.name: s.flag for e in all_engines() for s in e.settings if s.option == o.name},
    ),
    Column(
        "engines",
        lambda o: sorted({e.engine for e in all_engines() if o.name in _engine_options(e)}),
        "engines that have it",
        _names,
    ),
)
SCHEDULE: Final = (
    Column("name", str, "name"),
    Column("runtimes", _runs, "runtimes that run it", lambda names: _names(names) or "-"),
)
KINDS: Final[Mapping[str, Kind]] = {
    "accelerators": Kind(
        "devices: a CLUSTER is NAME:DEVICES, in their usual nodes",
        ACCELERATOR,
        lambda: ACCELERATORS,
    ),
    "instances": Kind(
        "cloud instances: a CLUSTER is NAME:INSTANCES",
        INSTANCE,
        _instances,
        note="The cloud's prefix may be left out.",
    ),
    "clusters": Kind(
        "published clusters with their switches: a CLUSTER is NAME or NAME:DEVICES",
        CLUSTER,
        _clusters,
    ),
    "models": Kind(
        "models: a MODEL is one of them, or a Hugging Face config.json", MODEL, lambda: ENTRIES
    ),
    "runtimes": Kind(
        "training frameworks and their options, for --runtime",
        RUNTIME,
        _runtimes,
        note=(
            "A runtime takes every precision that the devices have. `shardwright catalog schedules`"
            " says which schedules it runs, `shardwright catalog options` what an option decides."
        ),
    ),
    "options": Kind(
        "options of runtimes, for --pin and in a strategy",
        OPTION,
        lambda: OPTIONS,
        note=(
            "Set one in a strategy or with --pin NAME=VALUE, search several with --pin"
            " NAME=VALUE,VALUE."
        ),
    ),
    "engines": Kind(
        "serving engines by version",
        ENGINE,
        all_engines,
        note=(
            "A version in between is answered for by the one before it. `shardwright catalog"
            " engine-options` says what can be set."
        ),
    ),
    "engine-options": Kind(
        "options of serving engines",
        ENGINE_OPTION,
        lambda: ENGINE_OPTIONS,
        note=(
            "Written behind an engine's name: vllm-0.12 token_budget=16384 async=on. `--json` has"
            " each engine's own flag."
        ),
    ),
    "schedules": Kind("pipeline schedules", SCHEDULE, lambda: SCHEDULES),
}
KIND: Final = (
    Column("name", lambda item: item[0], "kind"),
    Column("entries", lambda item: len(list(item[1].entries())), "entries", _whole, is_number=True),
    Column("about", lambda item: item[1].about, "what"),
)
ALL: Final = Kind("the kinds", KIND, KINDS.items, note="`shardwright catalog KIND` lists one.")


def catalog(
    kind: Annotated[
        str, Argument(metavar="[KIND]", help=f"{', '.join(KINDS)}; without one, the kinds.")
    ] = "",
    *,
    form: shared_options.AnswerForm,
) -> None:
    """List what is known by name; --quiet prints the names alone."""
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


def _table(kind: Kind, rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    columns = [column for column in kind.columns if column.title]
    cells = [tuple(column.shown(row[column.key]) for column in columns) for row in rows]
    numbers = [i for i, column in enumerate(columns) if column.is_number]
    spare = [i for i, column in enumerate(columns) if column.is_spare]
    table = plain_table(
        [column.title for column in columns], cells, right=numbers, whole=(0,), spare=spare[::-1]
    )
    return Group(table, Words(Text(kind.note))) if kind.note else table


main = verb(catalog, name="catalog")
