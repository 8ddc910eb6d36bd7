"""Vocabulary of options of all serving engines, and functions that set them on an engine.

Each option has the engine's flag and the fields that it changes. An engine with options is written
as ``vllm-0.12 token_budget=16384 async=on``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any, Final

from shardwright.errors import RuntimeModelError, nearest
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Fact, Options
from shardwright.runtime.serving_engines.serving_engine import Engine, EngineSetting, SettingWord

MAX_SHOWN: Final = 60
MAX_SIZES: Final = 4096
MAX_NUMBER: Final = 1 << 31
MAX_FACTOR: Final = 100


class Form(StrEnum):
    """Form of an option's value.

    A whole number, a share of 1, a factor, on or off, a word, or whole numbers with commas between.
    """

    NUMBER = "number"
    SHARE = "share"
    FACTOR = "factor"
    SWITCH = "switch"
    WORD = "word"
    SIZES = "sizes"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOption:
    """An option of the vocabulary: its name, form of value, and the field it sets.

    Args:
        about: the decision that the option takes.
        least: the smallest number.
        field: field of `Engine` that the option's value is written to; empty = the option's name.
    """

    name: str
    form: Form
    about: str
    least: int = 1
    field: str = ""

    @property
    def example(self) -> str:
        """Example value for an error's hint, by form (8192, 0.9, on, 1,2,4,8); empty for a word."""
        return {
            Form.NUMBER: "8192",
            Form.SHARE: "0.9",
            Form.FACTOR: "0.3",
            Form.SWITCH: "on",
            Form.SIZES: "1,2,4,8",
        }.get(self.form, "")


def _number(name: str, about: str, *, least: int = 1, field: str = "") -> EngineOption:
    """Make an option whose value is a whole number of at least `least`."""
    return EngineOption(name=name, form=Form.NUMBER, about=about, least=least, field=field)


def _switch(name: str, about: str, *, field: str = "") -> EngineOption:
    """Make an option whose value is on or off."""
    return EngineOption(name=name, form=Form.SWITCH, about=about, field=field)


def _word(name: str, about: str, *, field: str = "") -> EngineOption:
    """Make an option whose value is a word."""
    return EngineOption(name=name, form=Form.WORD, about=about, field=field)


OPTIONS: Final = (
    _number(
        "token_budget", "most tokens of an iteration (of a prefill chunk, if prefill runs alone)"
    ),
    _number("sequences", "most requests that run at once", field="max_sequences"),
    _switch(
        "tuned",
        "token budget and requests as the engine's own benchmark tool chooses them",
        field="tuned_sizes",
    ),
    _number("prompt_tokens", "most prompt tokens of an iteration after its first prompt"),
    _number("context", "most tokens of a prompt and its answer together", field="context_tokens"),
    EngineOption(
        name="memory",
        field="memory_fraction",
        form=Form.SHARE,
        about="share of the device's memory, as the engine defines it",
    ),
    _number("block", "tokens of a KV cache block", field="block_tokens"),
    _word("kv", "number format of keys and values"),
    _switch("prefix_cache", "KV cache blocks of equal prefixes are kept and shared"),
    _switch("chunked_prefill", "a prompt may be split over iterations"),
    _switch("mixed_chunk", "decode runs in one batch with a prefill chunk", field="mixes_decode"),
    _word("admission", "condition for the admission of a waiting request"),
    EngineOption(
        name="conservative",
        form=Form.FACTOR,
        about="factor on the tokens that running requests are expected to need",
    ),
    _number(
        "wait_iterations",
        "most iterations that prompts wait to fill a share of the budget",
        least=0,
    ),
    EngineOption(
        name="wait_share", form=Form.SHARE, about="share of the budget that prompts wait to fill"
    ),
    _number(
        "balance_iterations",
        "most iterations that prompts wait until every attention data-parallel rank has one",
        least=0,
    ),
    _switch("graphs", "CUDA graphs replay decode"),
    _switch("full_graphs", "CUDA graphs of decode include the attention cores"),
    EngineOption(
        name="graph_sizes",
        field="captured",
        form=Form.SIZES,
        about="batch sizes for which CUDA graphs are captured",
    ),
    _number(
        "graph_max", "largest batch for which a CUDA graph is captured", field="largest_captured"
    ),
    _switch("graph_padding", "a batch is padded to the next captured size", field="pads"),
    _switch(
        "piecewise",
        "piecewise CUDA graphs between attention cores replay iterations with prompts too",
    ),
    EngineOption(
        name="piece_sizes",
        field="piecewise_captured",
        form=Form.SIZES,
        about="token counts for which piecewise CUDA graphs are captured",
    ),
    _number(
        "piece_max",
        "most tokens for which a piecewise CUDA graph is captured",
        field="piecewise_tokens",
    ),
    _switch(
        "async", "the host prepares the next iteration while the device runs", field="asynchronous"
    ),
    _number("polling", "decode iterations between two checks for new requests"),
    _number("stream_interval", "tokens between two responses streamed to the client"),
    _switch("fused_sums", "all-reduce, residual and norm are one kernel", field="fused_all_reduce"),
    _switch("own_sums", "the engine's own one- and two-shot all-reduces"),
    _switch("multimem", "all-reduces inside the NVLink switch (multimem)"),
    _switch("symmetric", "NCCL all-reduces run on symmetric buffers"),
    _switch("attention_dp", "attention is data parallel"),
    _switch("expert_parallel", "experts are distributed over the ranks (expert parallelism)"),
    _word("exchange", "transport of tokens to their experts under data parallel attention"),
    _word("attention", "backend of the attention core's kernels", field="attention_kernel"),
    _word("experts", "backend of the experts' kernels", field="expert_kernel"),
    _number(
        "guesses", "draft tokens of the model's own multi-token prediction (MTP) modules", least=0
    ),
)
BY_NAME: Final[Mapping[str, EngineOption]] = {option.name: option for option in OPTIONS}
_PLACE: Final = {name: place for place, name in enumerate(BY_NAME)}
_FIELDS: Final = {field.name for field in fields(Engine)}


def option_setting(option: str, flag: str, link: str, *, checked: bool = True) -> EngineSetting:
    """Declare an engine's option: its launch flag and the `Engine` field its value is written to.

    The flag of a switch sets the field or, by its name, takes it away.

    Raises:
        ValueError: no such option or field (a mistake in an engine's file, not a user's).
    """
    vocabulary = BY_NAME.get(option)
    field = (vocabulary.field or option) if vocabulary else ""
    _require_option_and_fields(option, (field,))
    if vocabulary and vocabulary.form is Form.SWITCH:
        return word_setting(
            option, flag, link, checked=checked, on={field: True}, off={field: False}
        )
    return EngineSetting(option=option, flag=flag, link=link, checked=checked, field=field)


def option_settings(link: str, flags: Mapping[str, str]) -> tuple[EngineSetting, ...]:
    """Declare engine options, as {option: launch flag}, that one source link states."""
    return tuple(option_setting(option, flag, link) for option, flag in flags.items())


def word_setting(
    option: str, flag: str, link: str, *, checked: bool = True, **values: Mapping[str, object]
) -> EngineSetting:
    """Declare an engine's option with a set of words; `values` gives each word's `Engine` fields.

    In the keyword of a word ``_`` stands for ``-``.
    """
    _require_option_and_fields(
        option, tuple(name for changed in values.values() for name in changed)
    )
    made = tuple(
        SettingWord(word=word.replace("_", "-"), values=tuple(changed.items()))
        for word, changed in values.items()
    )
    return EngineSetting(option=option, flag=flag, link=link, checked=checked, words=made)


def kv_format_setting(flag: str, link: str) -> EngineSetting:
    """Declare an engine's option `kv`, the KV cache format: the model's (auto), bf16 or fp8."""
    return word_setting(
        "kv",
        flag,
        link,
        auto={"kv_format": "auto"},
        bf16={"kv_format": "bf16"},
        fp8={"kv_format": "fp8"},
    )


def _require_option_and_fields(option: str, names: Iterable[str]) -> None:
    """Raise ValueError unless the option and the fields of `Engine` exist."""
    wrong = sorted({*names} - _FIELDS)
    if option not in BY_NAME or wrong:
        raise ValueError(f"{option} sets {', '.join(wrong) or 'nothing: there is no such option'}")


def engine_with_options(engine: Engine, options: Iterable[tuple[str, str]]) -> Engine:
    """Engine with options set, listed in its name; RuntimeModelError if unknown or illegal.

    Options that were set before stay.

    Raises:
        RuntimeModelError: an unknown option, one that the engine does not have, an illegal value,
            or
            an option twice.
    """
    wanted: dict[str, str] = {}
    for name, value in options:
        if wanted.setdefault(name, value) != value:
            raise RuntimeModelError(
                f"option {name} is set twice", hint=f"{name}={wanted[name]} or {name}={value}"
            )
    values: dict[str, Any] = {}
    facts: dict[str, Fact] = {}
    for name in wanted:
        _setting_of_option(engine, name)
    for name in sorted(wanted, key=_PLACE.__getitem__):
        setting = _setting_of_option(engine, name)
        changed = _changed_fields(engine, setting, wanted[name])
        for field, value in changed.items():
            if values.setdefault(field, value) != value:
                raise RuntimeModelError(
                    f"option {name}={wanted[name]} contradicts another one",
                    hint="leave one of them out",
                )
        facts |= {
            field: Fact(
                field=field,
                link=setting.link,
                checked=setting.checked,
                note=f"set by {setting.flag}",
            )
            for field in changed
        }
    if not wanted:
        return engine
    merged = dict(engine.options) | wanted
    new_options: Options = tuple(sorted(merged.items(), key=lambda pair: _PLACE[pair[0]]))
    new_facts = tuple(facts.get(fact.field, fact) for fact in engine.facts)
    base = engine.base or engine.name
    name = " ".join([base, *(f"{option}={value}" for option, value in new_options)])
    return replace(engine, **values, name=name, base=base, options=new_options, facts=new_facts)


def flag_of(engine: Engine, option: str) -> str:
    """Launch flag that sets `option` on the engine; RuntimeModelError where it has none.

    Raises:
        RuntimeModelError: the engine has no such option.
    """
    return _setting_of_option(engine, option).flag


def _setting_of_option(engine: Engine, name: str) -> EngineSetting:
    """The engine's setting of an option; RuntimeModelError where it has none."""
    settings = {setting.option: setting for setting in engine.settings}
    if name not in BY_NAME:
        raise RuntimeModelError(
            f"unknown engine option {name[:MAX_SHOWN]!r}", hint=nearest(name, settings)
        )
    if name not in settings:
        raise RuntimeModelError(
            f"{engine.base or engine.name} has no option {name}",
            hint=f"it has {', '.join(settings)}",
        )
    return settings[name]


def _changed_fields(engine: Engine, setting: EngineSetting, text: str) -> dict[str, Any]:
    """{`Engine` field: value} that an option set to `text` changes; RuntimeModelError if bad."""
    option = BY_NAME[setting.option]
    if setting.words:
        match = next((word for word in setting.words if word.word == text), None)
        if match is None:
            raise _refused_value_error(
                engine, setting, text, f"it is {' or '.join(word.word for word in setting.words)}"
            )
        return dict(match.values)
    read = {
        Form.NUMBER: _whole_number,
        Form.SHARE: _fraction,
        Form.FACTOR: _factor,
        Form.SIZES: _sizes,
        Form.WORD: _nonempty_text,
        Form.SWITCH: _nonempty_text,
    }[option.form]
    parsed = read(text, option.least)
    if parsed is None:
        expected = {
            Form.NUMBER: f"a whole number of at least {option.least}",
            Form.SHARE: "a share above 0, at most 1",
            Form.FACTOR: "above 0, at most 100",
        }
        raise _refused_value_error(
            engine,
            setting,
            text,
            f"{expected.get(option.form, 'whole numbers')}, such as {option.name}={option.example}"
            f" ({setting.flag})",
        )
    return {setting.field: parsed}


def _refused_value_error(
    engine: Engine, setting: EngineSetting, text: str, hint: str
) -> RuntimeModelError:
    """Make the error for a value that the engine's option cannot have."""
    return RuntimeModelError(
        f"{engine.base or engine.name} cannot have {setting.option}={text[:MAX_SHOWN]}", hint=hint
    )


def _whole_number(text: str, smallest: int) -> int | None:
    """Parse a whole number from `smallest` to `MAX_NUMBER`; None if it is not one."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(MAX_NUMBER)):
        return None
    return int(text) if smallest <= int(text) <= MAX_NUMBER else None


def _fraction(text: str, _least: int) -> float | None:
    """Parse a share above 0 and at most 1; None if it is not one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 1 else None


def _factor(text: str, _least: int) -> float | None:
    """Parse a factor above 0 and at most `MAX_FACTOR`; None if it is not one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= MAX_FACTOR else None


def _sizes(text: str, least: int) -> tuple[int, ...] | None:
    """Parse whole numbers with commas between, sorted; None if one is too small or no number."""
    sizes = (
        [_whole_number(part, least) for part in text.split(",")]
        if text.count(",") < MAX_SIZES
        else [None]
    )
    return (
        tuple(sorted({size for size in sizes if size is not None})) if None not in sizes else None
    )


def _nonempty_text(text: str, _least: int) -> str | None:
    """The text itself; None where it is empty."""
    return text or None
