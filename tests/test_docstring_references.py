"""Each name in backquotes of a docstring or comment exists: module, class, function or value.

Single backquotes hold names of the package and of the frameworks that it models; double backquotes
hold text of files and command lines, which is not checked.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from keyword import kwlist
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src" / "shardwright"
FOREIGN: Final = {
    "Accelerate": "ClusterConfig ParallelismConfig ParallelismConfig._get_mesh _prepare_deepspeed",
    "DeepEP": "expert_output_prob",
    "DeepSpeed": (
        "__params_to_release _allgather_param _reduce_scatter_gradient "
        "async_accumulate_grad_in_cpu_via_gpu async_inplace_copy_grad_to_fp32_buffer_from_gpu "
        "fetch_sub_module gather_partitioned_activations partition_grads "
        "reduce_and_partition_stream stage3_param_persistence_threshold"
    ),
    "FlagScale": "flatten_dict_to_args pre_validate_args",
    "JAX": "remat_partial_eval save_and_offload_only_these_names",
    "Mamba": "MambaSplitConv1dScanCombinedFn checkpoint_lvl",
    "MaxText": "MaxTextConfig create_device_mesh logical_axis_rules mesh_axes",
    "Megatron-Core": (
        "FusedDispatch TEGroupedMLP._apply_bias TransformerLayerSchedulePlan.run "
        "_ssm_training get_pp_rank_microbatches start_param_sync "
        "weighted_bias_quick_geglu_impl"
    ),
    "ModelOpt": "LogitsKLLoss.forward _forward get_tensor_shapes_adjust_fn_for_distillation",
    "nanotron": "_init_process_group_without_moe build_model",
    "PyTorch": (
        "_DistributedRendezvousOpExecutor _find_consumer_matmuls _find_producer_matmul kl_div"
    ),
    "SGLang": (
        "PrefillAdder add_one_req_ignore_eos check_decode_mem get_new_batch_prefill "
        "get_new_prebuilt_batch get_next_batch_to_run retract_decode update_running_batch"
    ),
    "TensorRT-LLM": (
        "GuaranteedNoEvictPolicy MaxUtilizationPolicy PyExecutor._balance_adp_requests "
        "PyMicroBatchScheduler _chunk_fcfs _waiting_requests calc_engine_setting "
        "finetune_setting getWorkspaceDeviceBufferSizes get_settings"
    ),
    "torchao": (
        "addmm_float8_unwrapped manual_float8_matmul_with_args_in_hp matmul_with_hp_or_float8_args"
    ),
    "torchtitan": "ParallelDims.build_mesh _get_pp_rank_to_stage_indices_mapping mm_recompute",
    "Transformer Engine": (
        "AsyncDoubleBufferGroupOffloadHandler.layer_window_map Float8CurrentScalingQuantizer "
        "fused_multi_cast_transpose is_non_tn_fp8_gemm_supported multi_tensor_quantize_impl "
        "quantize_impl tex.split_quantize"
    ),
    "Transformers": "MptConfig Step3p7TextConfig base_model_tp_plan",
    "vLLM": "Scheduler.schedule allocate_slots get_computed_blocks",
}
"""By framework, names of its own code that no string or import of the sources has."""

_PROSE: Final = re.compile(
    r'(?P<prose>^[ \t]*r?"""(?s:.*?)"""|\#[^\n]*)'
    r'|"""(?s:.*?)"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'',
    flags=re.MULTILINE,
)
_NAME: Final = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)*(?:\.\*)?)`(?!`)")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_IMPORT: Final = re.compile(r"^[ ]*from (\S+) import |^[ ]*import (\w+)", flags=re.MULTILINE)
_ALIAS: Final = re.compile(r"^from (\S+) import (\w+) as (\w+)$", flags=re.MULTILINE)
_TOP: Final = re.compile(
    r"^(?:async def|def|class|type) (\w+)|^(\w+(?:, \w+)*)(?: =|:)|^\(\n((?:    \w+,\n)+)\) =",
    flags=re.MULTILINE,
)
_ATTRIBUTE: Final = re.compile(
    r"[\w)\]]\.([A-Za-z_]\w*)|^ +(?:def (\w+)|(\w+)(?::| = ))", flags=re.MULTILINE
)
_PARAMETER: Final = re.compile(r"[(,] ?(\w+)[:=]|^ +(?:class )?(\w+)[=(:]", flags=re.MULTILINE)
_LITERAL: Final = re.compile(r"[\"'/]-{0,2}([A-Za-z_]\w*(?:\.\w+)*)[\"']")
_CLASS: Final = re.compile(
    r"^class (\w+)(?:\[[^\n]*\])?(?:\(([^)]*)\))?:((?:\n(?:[ \t][^\n]*)?)*)", flags=re.MULTILINE
)
_ARCHITECTURE: Final = re.compile(r'"([A-Z]\w*?)(?:For|LMHead|Model)\w*"')


class Module(NamedTuple):
    """A module's code without docstrings, comments and imported paths; and these texts."""

    code: str
    prose: str
    words: frozenset[str]
    tops: frozenset[str]
    imported: dict[str, str]


def read_module(text: str) -> Module:
    """Split a module's text into code and prose."""
    prose = "\n".join(match["prose"] for match in _PROSE.finditer(text) if match["prose"])
    code = _PROSE.sub(lambda match: "" if match["prose"] else match[0], text)
    imported = {name: f"{place}.{module}" for place, module, name in _ALIAS.findall(code)}
    imported |= {(a or b).split(".")[0]: a or b for a, b in _IMPORT.findall(code)}
    code = _IMPORT.sub(lambda match: "import " + (match[2] or ""), code)
    tops = frozenset(_WORD.findall(" ".join(map(" ".join, _TOP.findall(code)))))
    return Module(code, prose, frozenset(_WORD.findall(code)), tops, imported)


class Package:
    """All modules of the package, and the names that they define."""

    def __init__(self) -> None:
        """Read the sources."""
        self.modules: dict[str, Module] = {}
        self.tails: dict[str, list[Module]] = defaultdict(list)
        self.members: dict[str, set[str]] = defaultdict(set)
        self.bases: dict[str, set[str]] = defaultdict(set)
        self.attributes: set[str] = set()
        self.defined: set[str] = {*kwlist}
        self.foreign: set[str] = set(" ".join(FOREIGN.values()).split())
        for path in sorted(SOURCE.rglob("*.py")):
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            self._add(read_module(path.read_text(encoding="utf-8")), parts)

    def _add(self, module: Module, parts: tuple[str, ...]) -> None:
        """Add a module and the names in its code."""
        parts = parts[: len(parts) - (parts[-1] == "__init__")]
        self.modules["/".join(parts)] = module
        for start in range(len(parts)):
            self.tails[".".join(parts[start:])].append(module)
        for name, bases, body in _CLASS.findall(module.code):
            self.members[name] |= set(_WORD.findall(body))
            self.bases[name] |= set(_WORD.findall(bases))
        self.defined |= {*parts, *module.tops, *_LITERAL.findall(module.code)}
        self.attributes.update(*_ATTRIBUTE.findall(module.code))
        self.defined.update(self.attributes, *_PARAMETER.findall(module.code))
        for name in _ARCHITECTURE.findall(module.code):
            self.foreign |= {f"{name}Config", f"{name}TextConfig"}
        self.foreign |= {
            name for name, place in module.imported.items() if place.split(".")[0] != SOURCE.name
        }

    def has_member(self, owner: str, name: str) -> bool:
        """Whether a class, or a class that it inherits from, has a name in its body."""
        return name in self.members[owner] or any(
            self.has_member(base, name) for base in self.bases[owner] & self.members.keys()
        )

    def names_module(self, parts: list[str]) -> bool:
        """Whether the first parts are the tail of a module that defines the next one."""
        for count in range(len(parts), 0, -1):
            rest = parts[count:]
            for module in self.tails.get(".".join(parts[:count]), ()):
                if not rest or (rest[0] in module.tops and self.names_member(rest)):
                    return True
        return False

    def names_member(self, parts: list[str]) -> bool:
        """Whether the second part is a member of the class that the first one names, if one is."""
        owner = parts[0]
        return len(parts) == 1 or owner not in self.members or self.has_member(owner, parts[1])

    def resolves(self, name: str, module: Module) -> bool:
        """Whether a name in a module's prose leads to something that exists."""
        plain = name.removesuffix(".*").removeprefix("shardwright.")
        parts = plain.split(".")
        first = parts[0]
        if plain in self.foreign or (first in self.foreign and first not in self.tails):
            return True
        if len(parts) == 1:
            return first in module.words or first in self.defined
        if first == "tests":
            return ROOT.joinpath(*parts).with_suffix(".py").is_file()
        if plain in self.defined or self.names_module(parts):
            return True
        if first in module.imported:
            return self.names_module(module.imported[first].split(".")[1:] + parts[1:])
        if first in self.members:
            return self.has_member(first, parts[1])
        return first in module.words and all(part in self.attributes for part in parts[1:])


@cache
def package() -> Package:
    """The package, read once."""
    return Package()


def stale_names(module: Module) -> Iterator[str]:
    """Names in a module's prose that lead to nothing."""
    for name in _NAME.findall(module.prose):
        if not package().resolves(name, module):
            yield name


def test_named_things_exist() -> None:
    """No docstring or comment names something that does not exist."""
    stale = [
        f"{path}.py: `{name}`"
        for path, module in package().modules.items()
        for name in stale_names(module)
    ]
    assert not stale, "\n".join(stale)


_EXAMPLE: Final = '''"""Reads `nowhere.plan`.

See `cost.tiles`, `errors.NoSuchError`, `errors.UsageError` and `json.loads`.
"""

from shardwright.units import GIB


def area(width: int, height: int) -> int:
    """`width` times `height`; `pieces_of`, `no_such_name`, `NoSuchClass`, `Model.blocks`.

    As `Model.no_such_field`, `height.no_such_field`, `tests.nowhere`, ``no_such_text``.
    """
    return width * height  # `height` as of `another_lost_name`, `old_package.*`, `model.ir.*`
'''


def test_stale_names_are_noticed() -> None:
    """Names of modules, classes, members and values that do not exist are found, no others."""
    assert list(stale_names(read_module(_EXAMPLE))) == [
        "nowhere.plan",
        "cost.tiles",
        "errors.NoSuchError",
        "no_such_name",
        "NoSuchClass",
        "Model.no_such_field",
        "height.no_such_field",
        "tests.nowhere",
        "another_lost_name",
        "old_package.*",
    ]


def test_foreign_names_are_needed() -> None:
    """Each name that is listed by hand stands in a docstring, and is not one of the package."""
    written = {
        name for module in package().modules.values() for name in _NAME.findall(module.prose)
    }
    listed = set(" ".join(FOREIGN.values()).split())
    assert listed <= written, listed - written
    assert not listed & package().defined, listed & package().defined
