"""Megatron-LM's command lines.

Source of names and defaults: Megatron-LM, megatron/training/arguments.py of Megatron-Core 0.19.2
and at d98e8a6 (2026-08-22).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError, StrategyError
from shardwright.frameworks.launch.framework_claims import (
    Claim,
    Document,
    FileKind,
    Signature,
    claim_of,
)
from shardwright.frameworks.launch.launch import (
    Launch,
    Setting,
    Verdict,
    Written,
    count,
    judged,
    require_value,
    share,
)
from shardwright.frameworks.launch.launch_degrees import set_by, telling
from shardwright.frameworks.launch.model_sizes import compared_sizes
from shardwright.frameworks.launch.unpriced_settings import priced, refuse
from shardwright.frameworks.megatron.model_arguments import model_flags, model_shortfalls
from shardwright.frameworks.megatron.plan_arguments import MAPPED, ORDERS
from shardwright.frameworks.megatron.refused_arguments import (
    REFUSED_LAYERS,
    idle_arguments,
    refused_arguments,
)
from shardwright.frameworks.megatron.releases import meant, runtime_of
from shardwright.frameworks.megatron.settings import (
    IGNORED,
    MODEL_DEFAULTS,
    MODEL_LOOSE,
    REFUSED,
    UNDERSTOOD,
    UNMODELLED,
)
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.runtime.arguments import OFF, Arguments, options_of
from shardwright.runtime.megatron_arguments import (
    DEFAULTS,
    MODULES,
    has_dropout,
    number_format,
    pipeline_chunks,
    recomputed,
    sharding_stage,
)
from shardwright.runtime.options import ordered
from shardwright.runtime.registry import load_runtime
from shardwright.runtime.runtime import Options, Runtime
from shardwright.strategy.grid.axes import Grid, Recompute
from shardwright.strategy.grid.facts import grid_facts, has_experts, num_layers
from shardwright.strategy.grid.rules import canonical

Dialect = Callable[[str, str], tuple[tuple[str, str], ...] | None]
"""A setting of a framework that runs Megatron-Core -> the arguments of Megatron-LM that it is; None
= it is none of them."""


def plain(name: str, value: str) -> tuple[tuple[str, str], ...]:
    """Megatron-LM's own."""
    return meant(name, value)


MEGATRON_SIGNATURE: Final = Signature(
    runtime_of=runtime_of,
    kinds=frozenset({FileKind.COMMAND}),
    programs=frozenset(
        {f"pretrain_{kind}.py" for kind in ("gpt", "mamba", "t5", "bert", "vlm", "hybrid")}
    ),
    own=frozenset(
        {
            *(
                "tensor-model-parallel-size",
                "pipeline-model-parallel-size",
                "expert-model-parallel-size",
                "context-parallel-size",
            ),
            *(
                "use-distributed-optimizer",
                "num-attention-heads",
                "use-mcore-models",
                "recompute-granularity",
                "sequence-parallel",
            ),
            *(
                "num-layers-per-virtual-pipeline-stage",
                "transformer-impl",
                "untie-embeddings-and-output-weights",
                "swiglu",
            ),
            *(
                "disable-bias-linear",
                "group-query-attention",
                "num-query-groups",
                "lr-decay-iters",
                "overlap-grad-reduce",
            ),
        }
    ),
    shared=frozenset(
        {"micro-batch-size", "global-batch-size", "num-layers", "hidden-size", "seq-length"}
    ),
)


@dataclass(frozen=True, slots=True)
class MegatronReader:
    """The reader of Megatron-LM's command lines, and of those that say the same in other words.

    Args:
        dialect: what a setting is in Megatron-LM's words.
        defaults: what its launches are where they do not say it, in those words.
        settled: arguments as the framework takes them together.
        sparing: of options that a launch does not mention the framework has its own values; else
            they are what no argument sets.
        refuses: Megatron-Core's rules on arguments are its own.
        target, section: of `worded`.
    """

    name: str = "megatron"
    runtime: str = "megatron-core-0.12"
    signature: Signature = MEGATRON_SIGNATURE
    evidence: Callable[[Signature, Document], Claim] = claim_of
    includes: frozenset[str] = frozenset()
    dialect: Dialect = plain
    defaults: Arguments = field(default_factory=dict)
    settled: Callable[[Arguments], Arguments] = dict
    sparing: bool = False
    refuses: bool = True
    target: str = "megatron"
    section: str = ""

    def claims(self, document: Document) -> Claim:
        """See `LaunchReader`."""
        return self.evidence(self.signature, document)

    def worded(self, name: str) -> str:
        """See `LaunchReader`."""
        return f"{self.section}{name.replace('-', '_')}" if self.section else name

    def read(self, written: Written, *, model: Model, devices: int, runtime: str) -> Launch:
        """See `LaunchReader`."""
        words = {
            name: found
            for name, value in written.arguments.items()
            if (found := self.dialect(name, value)) is not None
        }
        said = {
            name: value
            for found in words.values()
            for name, value in found
            if value.lower() not in OFF
        }
        mentioned = {name for found in words.values() for name, _ in found}
        defaults = {name: value for name, value in self.defaults.items() if name not in mentioned}
        arguments = self.settled({**DEFAULTS, **defaults, **said})
        if "yaml-cfg" in arguments:
            raise DataError(
                f"--yaml-cfg {arguments['yaml-cfg'][:60]}: Megatron-LM's YAML is not read, so the"
                " strategy is not known",
                hint="give the launch as arguments",
            )
        refuse(arguments, REFUSED)
        for name in UNDERSTOOD:
            require_value(name, arguments.get(name, ""))
        grid = _grid(arguments, model=model, devices=devices)
        batch = count(arguments, "global-batch-size", grid.microbatch * grid.dp)
        length = count(arguments, "seq-length", count(arguments, "encoder-seq-length"))
        base = load_runtime(runtime)
        facts = grid_facts(model, devices=devices, global_batch=batch, seq_len=length or 1)
        grid = canonical(grid, facts=facts)
        grid = replace(
            grid,
            options=telling(
                _options(base, arguments, mentioned=mentioned if self.sparing else None),
                grid,
                model,
            ),
        )
        flags = {**set_by(base), **priced(said, REFUSED)}
        judged_settings = _judged(
            written, words, said, flags, _of_model(arguments, said, model, length=length or 1)
        )
        return Launch(
            framework=self.name,
            runtime=runtime,
            grid=grid,
            seq_len=length,
            global_batch=batch,
            precision=number_format(arguments) or "fp32",
            dropout=has_dropout(arguments),
            settings=tuple(_with_idle(judged_settings, words, idle_arguments(said, grid))),
            notes=written.notes,
            refused=(
                tuple(
                    refused_arguments(
                        arguments, layers=num_layers(model), older=base.base == "megatron-2021"
                    )
                )
                if self.refuses
                else ()
            ),
        )


MEGATRON: Final = MegatronReader()


def _judged(
    written: Written,
    words: Mapping[str, tuple[tuple[str, str], ...]],
    said: Arguments,
    flags: Mapping[str, str],
    model: Iterable[Setting],
) -> Iterator[Setting]:
    """The verdict on every setting in the launch's own words: that of the arguments that it is."""
    verdicts = {
        one.name: one
        for one in judged(
            said,
            understood={**flags, **UNDERSTOOD},
            model=model,
            ignored=IGNORED,
            unmodelled=UNMODELLED,
        )
    }
    used = set()
    for name, value in written.arguments.items():
        of = [verdicts[one] for one, _ in words.get(name, ()) if one in verdicts]
        used |= {one.name for one in of}
        if of:
            yield replace(of[0], name=name, value=value)
        elif words.get(name):
            # What is off is at its default, whatever it is of.
            (one,) = judged(
                {words[name][0][0]: value},
                understood={**flags, **UNDERSTOOD},
                ignored=IGNORED,
                unmodelled=UNMODELLED,
            )
            yield replace(one, name=name, value=value)
        else:
            yield Setting(
                name=name,
                value=value,
                verdict=Verdict.IGNORED if name in words else Verdict.UNKNOWN,
            )
    yield from (one for name, one in verdicts.items() if name not in used and name not in said)


def _with_idle(
    settings: Iterable[Setting],
    words: Mapping[str, tuple[tuple[str, str], ...]],
    idle: Mapping[str, str],
) -> Iterator[Setting]:
    """Settings that are understood and do nothing in this launch, with why."""
    for one in settings:
        why = [idle[name] for name, _ in words.get(one.name, ()) if name in idle]
        off = one.value.lower() in OFF
        yield (
            one
            if not why or off or one.verdict is Verdict.UNKNOWN
            else replace(one, verdict=Verdict.IDLE, means=why[0])
        )


SIZE_NAMES: Final = MappingProxyType(
    {"num-layers": "layers", "hidden-size": "width", "num-attention-heads": "heads"}
)
SIZES: Final = frozenset(SIZE_NAMES)
"""Arguments by which a launch says its model; others take it from elsewhere."""


def _options(
    runtime: Runtime, arguments: Arguments, *, mentioned: Collection[str] | None
) -> Options:
    """Options that the arguments set, and those that without an argument are otherwise than the
    planner's own.

    Args:
        mentioned: arguments, on or off, without which an option has the runtime's own value; None =
            none has.
    """
    _, modules = recomputed(arguments)
    unknown = [word for word in modules if word not in (*MODULES, "core_attn")]
    if unknown:
        raise DataError(
            f"--recompute-modules {' '.join(unknown)[:60]}: not known here",
            hint=f"known: core_attn, {', '.join(MODULES)}",
        )
    own = dict(runtime.own)
    found = {
        name: value
        for name, value in options_of(runtime, arguments)
        if name not in MODULES.values()
    }
    if mentioned is not None:
        known = {
            option.removeprefix("sets ")
            for name, option in set_by(runtime).items()
            if name in mentioned
        }
        found = {name: value for name, value in found.items() if name in known}
    found |= {MODULES[word]: "on" for word in modules if word in MODULES}
    return ordered(pair for pair in found.items() if own.get(pair[0]) != pair[1])


def _grid(arguments: Arguments, *, model: Model, devices: int) -> Grid:
    tp, pp, cp = (
        count(arguments, f"{axis}-size", 1)
        for axis in ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel")
    )
    if min(tp, pp, cp) < 1 or devices % (tp * pp * cp):
        raise StrategyError(
            f"tp {tp} x pp {pp} x cp {cp} does not divide the {devices} devices of the cluster",
            hint="the CLUSTER that the launch is for",
            rule="grid.devices",
        )
    said = count(arguments, "num-virtual-stages-per-pipeline-rank", 1)
    # Layers that Megatron-LM refuses are told with its rule; the strategy has them as evenly as can
    # be.
    refused = any(
        one.rule == REFUSED_LAYERS for one in refused_arguments(arguments, layers=num_layers(model))
    )
    vpp, chunks = (
        (1, ())
        if refused
        else pipeline_chunks(arguments, layers=num_layers(model), pp=pp, vpp=said)
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
    instances = count(arguments, "num-distributed-optimizer-instances", 1) or 1
    sparse = has_experts(model)
    granularity, modules = recomputed(arguments)
    full = granularity == "full"
    blocks = full and arguments.get("recompute-method") == "block"
    offload = (
        share(arguments, "optimizer-offload-fraction", 1.0)
        if "optimizer-cpu-offload" in arguments
        else 0.0
    )
    return Grid(
        tp=tp,
        sp="sequence-parallel" in arguments,
        cp=cp,
        ulysses=_ulysses(arguments, cp),
        gather=arguments.get("cp-comm-type", "p2p").split()[:1] in (["allgather"], ["all_gather"]),
        ep=count(arguments, "expert-model-parallel-size", 1) if sparse else 1,
        etp=count(arguments, "expert-tensor-parallel-size", tp) if sparse else 1,
        dp=dp,
        pp=pp,
        vpp=vpp,
        microbatch=count(arguments, "micro-batch-size", 1),
        zero=stage,
        shard=dp * cp // instances if instances > 1 and stage else 0,
        recompute=(
            Recompute.FULL
            if full
            else Recompute.SELECTIVE
            if "core_attn" in modules
            else Recompute.NONE
        ),
        recompute_layers=count(arguments, "recompute-num-layers", 0) if blocks else 0,
        host=count(arguments, "cpu-offloading-num-layers", 0),
        offload=round(100 * offload),
        schedule="interleaved-1f1b" if vpp > 1 else "1f1b",
        layers=_listed(chunks, pp=pp, vpp=vpp, layers=num_layers(model)),
        order=_order(arguments),
    )


def _listed(chunks: tuple[int, ...], *, pp: int, vpp: int, layers: int) -> tuple[int, ...]:
    if not chunks or pp == 1:
        return ()
    if sum(chunks) != layers:
        raise StrategyError(
            f"the launch lays out {sum(chunks)} layers, MODEL has {layers}",
            hint="the MODEL of the launch",
            rule="grid.layers",
        )
    return chunks


def _ulysses(arguments: Arguments, cp: int) -> int:
    kind = arguments.get("cp-comm-type", "p2p").split()[:1]
    parts = arguments.get("hierarchical-context-parallel-sizes", "1").split()
    return (
        cp
        if kind == ["a2a"]
        else count({"ulysses": parts[0]}, "ulysses")
        if kind == ["a2a+p2p"] and parts
        else 1
    )


def _order(arguments: Arguments) -> tuple[str, ...]:
    return ORDERS[MAPPED in arguments]


def _of_model(
    arguments: Arguments, written: Arguments, model: Model, *, length: int
) -> Iterator[Setting]:
    """What the arguments say of a model, beside what MODEL is; of a launch that says no model
    nothing.
    """
    if not written.keys() & SIZES:
        return
    if any(not one.instead for one in model_shortfalls(model)):
        # The sizes that every model has are compared all the same.
        yield from compared_sizes(written, SIZE_NAMES, model)
        for name in (MODEL_DEFAULTS.keys() & written.keys()) - SIZE_NAMES.keys():
            means = "Megatron's arguments do not say MODEL, so it was not compared"
            yield Setting(name=name, value=written[name], verdict=Verdict.OF_THE_MODEL, means=means)
        return
    wanted = dict(model_flags(model, length=length))
    for name, default in MODEL_DEFAULTS.items():
        said, has = written.get(name), wanted.get(name, default)
        has = "true" if name in wanted and has == "" else has
        if said is None and (name in MODEL_LOOSE or _same(default or "", has)):
            continue
        if said is None and name in ("ffn-hidden-size", "kv-channels", "num-query-groups"):
            continue
        alike = name in MODEL_LOOSE or _same(default if said is None else said, has)
        means = "" if alike else f"MODEL: {has or 'without it'}"
        verdict = Verdict.OF_THE_MODEL if alike else Verdict.DIFFERENT
        yield Setting(
            name=name, value="not said" if said is None else said, verdict=verdict, means=means
        )


def _same(one: str, other: str) -> bool:
    if one.replace(" ", "") == other.replace(" ", ""):
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False
