"""nanotron's YAML.

Source of names and defaults: nanotron's main of 2025-04, src/nanotron/config/config.py and
config/parallelism_config.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import ShardwrightError
from shardwright.frameworks.launch.framework_claims import (
    Claim,
    Document,
    FileKind,
    NamedFile,
    Signature,
    claim_of,
)
from shardwright.frameworks.launch.launch import Launch, Written, by_name, count
from shardwright.frameworks.launch.launch_degrees import launch_of, replicas
from shardwright.frameworks.launch.model_sizes import TRANSFORMERS, compared_sizes
from shardwright.frameworks.launch.unpriced_settings import OF_OPTIMIZER, OPTIMIZER, refuse
from shardwright.frameworks.nanotron.write import own_stages
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.strategy.grid.axes import Grid, Recompute

_OPTIMIZER: Final = "optimizer.optimizer-factory.name"
_REFUSED: Final = MappingProxyType({_OPTIMIZER: OPTIMIZER})
UNDERSTOOD: Final = MappingProxyType(
    {
        "parallelism.dp": "dp",
        "parallelism.tp": "tp",
        "parallelism.pp": "pp",
        "parallelism.pp-engine": "schedule",
        "parallelism.tp-mode": "sp",
        "parallelism.recompute-layer": "recompute",
        "parallelism.tp-linear-async-communication": "sets tp_overlap",
        "parallelism.context-parallel-size": "cp",
        "parallelism.expert-parallel-size": "ep",
        "tokens.sequence-length": "tokens of a sample",
        "tokens.micro-batch-size": "samples of a microbatch",
        "tokens.batch-accumulation-per-replica": "microbatches of a step",
        "optimizer.zero-stage": "stage of ZeRO",
        "model.dtype": "number format",
        _OPTIMIZER: OF_OPTIMIZER,
    }
)
IGNORED: Final = by_name(
    {
        "what is kept and logged": (
            "general.* checkpoints.* logging.* lighteval.* profiler.* metrics-logging.*"
        ),
        "data": "data-stages data-stages.* tokenizer.* data.*",
        "how long is trained, and how fast is learnt": "optimizer.* tokens.*",
        "how weights begin": (
            "model.init-method.* model.make-vocab-size-divisible-by model.ddp-bucket-cap-mb"
        ),
        "the model's, which MODEL says": "model.model-config.*",
    }
)


SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
    programs=frozenset({"run_train.py"}),
    files=(NamedFile(setting="config-file", holds="the strategy"),),
    own=frozenset(
        {
            *(
                "parallelism.tp",
                "parallelism.pp",
                "parallelism.dp",
                "parallelism.pp-engine",
                "parallelism.tp-mode",
            ),
            *(
                "tokens.micro-batch-size",
                "tokens.batch-accumulation-per-replica",
                "tokens.sequence-length",
            ),
        }
    ),
)


@dataclass(frozen=True, slots=True)
class NanotronReader:
    """The reader."""

    name: str = "nanotron"
    runtime: str = "nanotron"
    signature: Signature = SIGNATURE
    includes: frozenset[str] = frozenset()

    target: str = "nanotron"

    def claims(self, document: Document) -> Claim:
        """See `LaunchReader`."""
        return claim_of(self.signature, document)

    def worded(self, name: str) -> str:
        """See `LaunchReader`."""
        return name

    def read(self, written: Written, *, model: Model, devices: int, runtime: str) -> Launch:
        """See `LaunchReader`."""
        said = written.arguments
        refuse(said, _REFUSED)
        tp, pp, cp = (
            count(said, f"parallelism.{name}", 1) for name in ("tp", "pp", "context-parallel-size")
        )
        dp = replicas(devices, tp=tp, pp=pp, cp=cp)
        micro, steps = (
            count(said, "tokens.micro-batch-size", 1),
            count(said, "tokens.batch-accumulation-per-replica", 1),
        )
        grid = Grid(
            tp=tp,
            sp=said.get("parallelism.tp-mode", "").upper().endswith("REDUCE_SCATTER"),
            cp=cp,
            ep=count(said, "parallelism.expert-parallel-size", 1),
            dp=dp,
            pp=pp,
            microbatch=micro,
            zero=count(said, "optimizer.zero-stage"),
            recompute=(
                Recompute.FULL
                if said.get("parallelism.recompute-layer") == "true"
                else Recompute.NONE
            ),
            schedule=(
                "gpipe"
                if said.get("parallelism.pp-engine", "1f1b") == "afab" and pp > 1
                else "1f1b"
            ),
            layers=_stages(model, pp),
        )
        dtype = said.get("model.dtype", "bfloat16")
        return launch_of(
            written,
            grid,
            framework=self.name,
            runtime=runtime,
            model=model,
            seq_len=count(said, "tokens.sequence-length"),
            global_batch=micro * steps * dp,
            precision="fp16" if dtype == "float16" else "fp32" if dtype == "float32" else "bf16",
            understood=UNDERSTOOD,
            ignored=IGNORED,
            of_model=tuple(
                compared_sizes(said, TRANSFORMERS, model, section="model.model-config.")
            ),
            arguments={
                name.removeprefix("parallelism."): value
                for name, value in said.items()
                if value != "false"
            },
            notes=(
                (f"the file's dp is {said['parallelism.dp']}, the cluster has room for {dp}",)
                if said.get("parallelism.dp", str(dp)) != str(dp)
                else ()
            ),
        )


NANOTRON: Final = NanotronReader()


def _stages(model: Model, pp: int) -> tuple[int, ...]:
    """Layers of each stage as it cuts a model that it has; of others evenly."""
    try:
        return own_stages(model, pp) if pp > 1 else ()
    except (ShardwrightError, AssertionError):
        return ()
