"""Reader of Megatron-LM's command lines, and of settings that other names give to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from shardwright.errors import DataError, StrategyError
from shardwright.frameworks.launch.build_launch import effective_options, option_notes
from shardwright.frameworks.launch.compare_model_sizes_in_settings_with_model import compared_sizes
from shardwright.frameworks.launch.framework_detection import (
    Claim,
    Document,
    FileKind,
    Signature,
    claim_of,
)
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
)
from shardwright.frameworks.megatron.arguments_by_release import current_arguments, runtime_of
from shardwright.frameworks.megatron.arguments_megatron_rejects_or_ignores import (
    REFUSED_LAYERS,
    idle_arguments,
    refused_arguments,
)
from shardwright.frameworks.megatron.settings import MODEL_DEFAULTS, MODEL_LOOSE, SETTINGS
from shardwright.frameworks.megatron.write_model_arguments import model_flags, model_shortfalls
from shardwright.frameworks.settings.refuse_unpriced_settings import priced_notes, refuse
from shardwright.frameworks.settings.setting_table import SettingTable, only_of_grid, values_of
from shardwright.frameworks.settings.setting_values_from_and_to_text import (
    count,
    require_value,
    whole_number,
)
from shardwright.frameworks.settings.setting_verdicts import (
    LaunchSetting,
    Verdict,
    setting_verdicts,
)
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.framework_description import Options, Runtime
from shardwright.runtime.option_vocabulary import in_vocabulary_order
from shardwright.runtime.parallelism_recompute_precision_from_megatron_arguments import (
    DEFAULTS,
    MODULES,
    has_dropout,
    number_format,
    pipeline_chunks,
    recompute_setting,
    sharding_stage,
)
from shardwright.runtime.parse_launch_arguments import OFF, Arguments, options_from_arguments
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import (
    grid_facts,
    has_experts,
    num_layers,
)
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

MEGATRON_NAME: Final = "megatron"
USUAL_RUNTIME: Final = "megatron-core-0.12"
MEGATRON_SIGNATURE: Final = Signature(
    runtime_of=runtime_of,
    kinds=frozenset({FileKind.COMMAND}),
    programs=frozenset(
        {f"pretrain_{kind}.py" for kind in ("gpt", "mamba", "t5", "bert", "vlm", "hybrid")}
    ),
    own=name_set(
        "tensor-model-parallel-size pipeline-model-parallel-size expert-model-parallel-size"
        " context-parallel-size use-distributed-optimizer num-attention-heads use-mcore-models"
        " recompute-granularity sequence-parallel num-layers-per-virtual-pipeline-stage"
        " transformer-impl untie-embeddings-and-output-weights swiglu disable-bias-linear"
        " group-query-attention num-query-groups lr-decay-iters overlap-grad-reduce"
    ),
    shared=name_set("micro-batch-size global-batch-size num-layers hidden-size seq-length"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A framework whose settings are Megatron-LM's arguments, possibly under other names.

    Args:
        framework: name of the reader.
        arguments_of: function from a setting to the Megatron-LM arguments that it sets; None = it
            sets none.
        defaults: arguments of launches that do not set them.
        completed: function that adds the arguments that the framework derives from others.
        own_defaults: options that a launch does not mention have the runtime's values; otherwise
            the values without any argument.
        refuses: the framework refuses the combinations of arguments that Megatron-Core refuses.
    """

    framework: str
    arguments_of: Callable[[str, str], tuple[tuple[str, str], ...] | None] = current_arguments
    defaults: Arguments = field(default_factory=dict)
    completed: Callable[[Arguments], Arguments] = dict
    own_defaults: bool = False
    refuses: bool = True


def read_arguments(
    dialect: Dialect, file_settings: FileSettings, *, model: Model, devices: int, runtime: str
) -> Launch:
    """Convert settings to a launch by their Megatron-LM names, with a verdict on each setting."""
    words = {
        name: renamed
        for name, value in file_settings.arguments.items()
        if (renamed := dialect.arguments_of(name, value)) is not None
    }
    written = {
        name: value
        for renamed in words.values()
        for name, value in renamed
        if value.lower() not in OFF
    }
    mentioned = {name for renamed in words.values() for name, _ in renamed}
    defaults = {name: value for name, value in dialect.defaults.items() if name not in mentioned}
    arguments = dialect.completed({**DEFAULTS, **defaults, **written})
    if "yaml-cfg" in arguments:
        raise DataError(
            f"--yaml-cfg {arguments['yaml-cfg'][:60]}: Megatron-LM's YAML is not read, so the"
            " strategy is not known",
            hint="give the launch as arguments",
        )
    refuse(arguments, SETTINGS.refused)
    for name in SETTINGS.understood:
        require_value(name, arguments.get(name, ""))
    grid = _grid(arguments, model=model, devices=devices)
    batch = count(arguments, "global-batch-size", grid.microbatch * grid.dp)
    length = count(arguments, "seq-length", count(arguments, "encoder-seq-length"))
    base = load_runtime(runtime)
    facts = grid_facts(model, devices=devices, global_batch=batch, seq_len=length or 1)
    grid = canonical(grid, facts=facts)
    options = _changed_options(
        base, arguments, mentioned=mentioned if dialect.own_defaults else None
    )
    grid = replace(grid, options=effective_options(options, grid, model))
    flags = {**option_notes(base), **priced_notes(written, SETTINGS.refused)}
    of_model = _model_verdicts(arguments, written, model, length=length or 1)
    settings = _verdicts(file_settings, words, written, flags, of_model)
    broken = refused_arguments(
        arguments, layers=num_layers(model), older=base.base == "megatron-2021"
    )
    return Launch(
        framework=dialect.framework,
        runtime=runtime,
        grid=grid,
        seq_len=length,
        global_batch=batch,
        precision=number_format(arguments) or "fp32",
        dropout=has_dropout(arguments),
        settings=tuple(_with_idle_verdicts(settings, words, idle_arguments(written, grid))),
        notes=file_settings.notes,
        refused=tuple(broken) if dialect.refuses else (),
    )


def dialect_reader(
    dialect: Dialect,
    *,
    signature: Signature,
    runtime: str = USUAL_RUNTIME,
    evidence: Callable[[Signature, Document], Claim] = claim_of,
    includes: frozenset[str] = frozenset(),
    target: str = MEGATRON_NAME,
    settings: SettingTable | None = None,
    own_name: Callable[[str], str] = str,
) -> LaunchReader:
    """Reader of a framework whose settings are renamed to Megatron-LM's arguments (`dialect`)."""
    return LaunchReader(
        name=dialect.framework,
        runtime=runtime,
        signature=signature,
        read=partial(read_arguments, dialect),
        evidence=evidence,
        includes=includes,
        target=target,
        settings=settings,
        own_name=own_name,
    )


MEGATRON: Final = dialect_reader(
    Dialect(framework=MEGATRON_NAME), signature=MEGATRON_SIGNATURE, settings=SETTINGS
)


def _verdicts(
    file_settings: FileSettings,
    arguments_of_setting: Mapping[str, tuple[tuple[str, str], ...]],
    written_arguments: Arguments,
    flags: Mapping[str, str],
    model: Iterable[LaunchSetting],
) -> Iterator[LaunchSetting]:
    """Yield each setting with its Megatron-LM argument's verdict, then unset model arguments."""
    judge = partial(
        setting_verdicts,
        understood={**flags, **SETTINGS.understood},
        ignored=SETTINGS.ignored,
        unmodelled=SETTINGS.unmodelled,
    )
    verdicts = {setting.name: setting for setting in judge(written_arguments, model=model)}
    used = set()
    for name, value in file_settings.arguments.items():
        of = [
            verdicts[verdict]
            for verdict, _ in arguments_of_setting.get(name, ())
            if verdict in verdicts
        ]
        used |= {setting.name for setting in of}
        if of:
            yield replace(of[0], name=name, value=value)
        elif arguments_of_setting.get(name):
            # An argument that is off has its default, which has a verdict of its own.
            (verdict,) = judge({arguments_of_setting[name][0][0]: value})
            yield replace(verdict, name=name, value=value)
        else:
            yield LaunchSetting(
                name=name,
                value=value,
                verdict=Verdict.IGNORED if name in arguments_of_setting else Verdict.UNKNOWN,
            )
    yield from (
        verdict
        for name, verdict in verdicts.items()
        if name not in used and name not in written_arguments
    )


def _with_idle_verdicts(
    settings: Iterable[LaunchSetting],
    words: Mapping[str, tuple[tuple[str, str], ...]],
    idle: Mapping[str, str],
) -> Iterator[LaunchSetting]:
    """Give settings whose Megatron-LM arguments have no effect the verdict IDLE with reason."""
    for setting in settings:
        why = [idle[name] for name, _ in words.get(setting.name, ()) if name in idle]
        off = setting.value.lower() in OFF
        yield (
            setting
            if not why or off or setting.verdict is Verdict.UNKNOWN
            else replace(setting, verdict=Verdict.IDLE, means=why[0])
        )


SIZE_NAMES: Final = MappingProxyType(
    {"num-layers": "layers", "hidden-size": "width", "num-attention-heads": "heads"}
)
SIZES: Final = frozenset(SIZE_NAMES)
"""Arguments that describe the model; launches without them take the model from elsewhere."""


def _changed_options(
    runtime: Runtime, arguments: Arguments, *, mentioned: Collection[str] | None
) -> Options:
    """Runtime options set unlike the runtime's own, by arguments in `mentioned` (None: any).

    Args:
        mentioned: arguments that the launch has, on or off; an option of no such argument keeps the
            runtime's own value. None = no option does.
    """
    _, modules = recompute_setting(arguments)
    unknown = [word for word in modules if word not in (*MODULES, "core_attn")]
    if unknown:
        raise DataError(
            f"--recompute-modules {' '.join(unknown)[:60]}: not known here",
            hint=f"known: core_attn, {', '.join(MODULES)}",
        )
    own_values = dict(runtime.own)
    options = {
        name: value
        for name, value in options_from_arguments(runtime, arguments)
        if name not in MODULES.values()
    }
    if mentioned is not None:
        mentioned_options = {
            option.removeprefix("sets ")
            for name, option in option_notes(runtime).items()
            if name in mentioned
        }
        options = {name: value for name, value in options.items() if name in mentioned_options}
    options |= {MODULES[word]: "on" for word in modules if word in MODULES}
    return in_vocabulary_order(
        pair for pair in options.items() if own_values.get(pair[0]) != pair[1]
    )


def _grid(arguments: Arguments, *, model: Model, devices: int) -> Grid:
    """Grid of Megatron-LM's arguments; dp = devices / (tp x pp x cp), else StrategyError."""
    values = values_of(SETTINGS, arguments)
    tp, pp, cp = values["tp"], values["pp"], values["cp"]
    if min(tp, pp, cp) < 1 or devices % (tp * pp * cp):
        raise StrategyError(
            f"tp {tp} x pp {pp} x cp {cp} does not divide the {devices} devices of the cluster",
            hint="the CLUSTER that the launch is for",
            rule="grid.devices",
        )
    layers, sparse = num_layers(model), has_experts(model)
    # Layers that Megatron-LM refuses are told with its rule; the strategy has them as evenly as can
    # be.
    refused = any(
        violation.rule == REFUSED_LAYERS
        for violation in refused_arguments(arguments, layers=layers)
    )
    vpp, chunks = (
        (1, ()) if refused else pipeline_chunks(arguments, layers=layers, pp=pp, vpp=values["vpp"])
    )
    stage = sharding_stage(arguments)
    if stage is None:
        asked = arguments.get("zero-stage", arguments.get("data-parallel-sharding-strategy"))
        raise DataError(
            f"the stage of ZeRO, {asked!s:.40}, is not known here",
            hint="no_shard, optim, optim_grads or optim_grads_params; of Megatron-DeepSpeed 0 to 3",
        )
    if "use-torch-fsdp2" in arguments:
        stage = 3
    dp = devices // (tp * pp * cp)
    instances = values["instances"] or 1
    granularity, modules = recompute_setting(arguments)
    core = Recompute.SELECTIVE if "core_attn" in modules else Recompute.NONE
    full = granularity == "full"
    strategy = {
        **values,
        **_context_fields(values, cp),
        "ep": values["ep"] if sparse else 1,
        "etp": (tp if values["etp"] is None else values["etp"]) if sparse else 1,
        "dp": dp,
        "vpp": vpp,
        "zero": stage,
        "shard": dp * cp // instances if instances > 1 and stage else 0,
        "recompute": Recompute.FULL if full else core,
        "recompute_layers": values["method_layers"] if full and values["method"] == "block" else 0,
        "offload": values["offload_share"] if values["is_offloaded"] else 0,
        "schedule": "interleaved-1f1b" if vpp > 1 else "1f1b",
        "layers": _listed_chunks(chunks, pp=pp, vpp=vpp, layers=layers),
    }
    return Grid(**only_of_grid(strategy))


def _listed_chunks(chunks: tuple[int, ...], *, pp: int, vpp: int, layers: int) -> tuple[int, ...]:
    """Layers of each listed chunk, StrategyError for a wrong sum; empty if pp is 1 or unlisted."""
    if not chunks or pp == 1:
        return ()
    if sum(chunks) != layers:
        raise StrategyError(
            f"the launch lays out {sum(chunks)} layers, MODEL has {layers}",
            hint="the MODEL of the launch",
            rule="grid.layers",
        )
    return chunks


def _context_fields(values: Mapping[str, Any], cp: int) -> dict[str, Any]:
    """Grid fields `ulysses` (cp for a2a) and `gather` (bool) by cp-comm-type of the first layer."""
    kind = (values["exchange"] or "p2p").split()[:1]
    parts = (values["exchange_sizes"] or "1").split()
    ulysses = cp if kind == ["a2a"] else 1
    if kind == ["a2a+p2p"] and parts:
        ulysses = whole_number("ulysses", parts[0])
    return {"ulysses": ulysses, "gather": kind in (["allgather"], ["all_gather"])}


def _model_verdicts(
    arguments: Arguments, written: Arguments, model: Model, *, length: int
) -> Iterator[LaunchSetting]:
    """Yield verdicts on model arguments, set or unlike MODEL by default; none if no size is set."""
    if not written.keys() & SIZES:
        return
    if any(not shortfall.instead for shortfall in model_shortfalls(model)):
        # The sizes that every model has are compared all the same.
        yield from compared_sizes(written, SIZE_NAMES, model)
        for name in (MODEL_DEFAULTS.keys() & written.keys()) - SIZE_NAMES.keys():
            means = "Megatron's arguments do not say MODEL, so it was not compared"
            yield LaunchSetting(
                name=name, value=written[name], verdict=Verdict.OF_THE_MODEL, means=means
            )
        return
    wanted = dict(model_flags(model, length=length))
    for name, default in MODEL_DEFAULTS.items():
        value, expected = written.get(name), wanted.get(name, default)
        expected = "true" if name in wanted and expected == "" else expected
        if value is None and (name in MODEL_LOOSE or _equal_values(default or "", expected)):
            continue
        if value is None and name in ("ffn-hidden-size", "kv-channels", "num-query-groups"):
            continue
        alike = name in MODEL_LOOSE or _equal_values(default if value is None else value, expected)
        means = "" if alike else f"MODEL: {expected or 'without it'}"
        verdict = Verdict.OF_THE_MODEL if alike else Verdict.DIFFERENT
        yield LaunchSetting(
            name=name, value="not said" if value is None else value, verdict=verdict, means=means
        )


def _equal_values(left: str, right: str) -> bool:
    """True if two values are equal as text without spaces or as numbers."""
    if left.replace(" ", "") == right.replace(" ", ""):
        return True
    try:
        return float(left) == float(right)
    except ValueError:
        return False
