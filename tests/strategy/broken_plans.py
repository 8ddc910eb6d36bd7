"""Legal plans, and for each rule of `verify` a change to one of them that breaks this rule and no
other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from shardwright.model.ir.model_graph import Model
from tests.strategy.zoo_models import adapted, dense, encoder_decoder, sparse


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A legal plan to break, for `batch` samples of `seq_len` tokens."""

    text: str
    model: Callable[[], Model] = dense
    batch: int = 8
    seq_len: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The first `old` in the text of the sound plan `plan`, replaced by `new`, breaks `rule`
    alone."""

    rule: str
    plan: str
    old: str
    new: str


BASE: Final = """plan base devices 8
zero all: all/1/1
lane main samples 8 in 4
  stages embed+4, 4+head on 0, 4
    all = b2 t2
    stream = b2 s2
    recompute 0-1: core
order 1f1b(main)
"""
_SECOND: Final = """lane b samples 4 in 4
  stages embed+8+head on 2
    all = t2
order 1f1b(a)
order 1f1b(b)
"""
_LANES: Final = (
    """plan lanes devices 4
lane a samples 4 in 4
  stages embed+8+head on 0
    all = t2
"""
    + _SECOND
)
_TABLE: Final = """plan pairs devices 2
lane main samples 2 in 2
  stages embed+4, 4+head on 0, 1
    all = .
    recompute 0-3: full
order table(main)
  0: 0F0 0F1 0R0 0B0 0B1
  1: 1F0 1B0 (1F1|1I1) 1W1
"""
_SPREAD: Final = """plan spread devices 2
lane main samples 1 in 1
  stages embed on 0
    all = v2
  stages 8 on 0
    all = .
  stages head on 0
    all = v2
order table(main)
  0: 0F0 1F0 2F0 2B0 1B0 0B0
  1: 0F0 2F0 2B0 0B0
"""
EXPERTS: Final = """plan experts devices 8
lane main samples 8 in 1
  stages embed+8+head on 0
    all = b4 t2
    stream,router = b4 s2
    experts = b2 e2 f2
order 1f1b(main)
"""
_SLICES: Final = """plan slices devices 3
lane main samples 8 in 4 slices 3:2
  stages embed+4, 4+head on 0, 1
    all = .
order seq-1f1b(main)
"""
_MASKED: Final = """plan masked devices 2
lane main samples 8 in 4
  stages encoder_embed+encoder:4+encoder_norm, embed+decoder:4+head on 0, 1
    all = .
order 1f1b(main)
"""
_FROZEN: Final = """plan frozen devices 4
zero base: 1/1/all gather=use
zero lora: all/1/1
lane main samples 8 in 4
  stages embed+8+head on 0
    all = b2 t2
order 1f1b(main)
"""
_DEALT: Final = """plan dealt devices 4
lane main samples 8 in 2
  stages embed+8+head on 0
    all = b[3:1]{., s2+1}
    core = b[3:1]{., h2+1}
order 1f1b(main)
"""
SOUND: Final[Mapping[str, Sound]] = MappingProxyType(
    {
        "base": Sound(text=BASE),
        "lanes": Sound(text=_LANES),
        "table": Sound(text=_TABLE, batch=2),
        "spread": Sound(text=_SPREAD, batch=1),
        "experts": Sound(text=EXPERTS, model=sparse),
        "slices": Sound(text=_SLICES),
        "masked": Sound(text=_MASKED, model=encoder_decoder),
        "frozen": Sound(text=_FROZEN, model=partial(adapted, layers=8)),
        "dealt": Sound(text=_DEALT),
    }
)


def _all(plan: str, *changes: tuple[str, str, str]) -> tuple[Broken, ...]:
    return tuple(Broken(rule=rule, plan=plan, old=old, new=new) for rule, old, new in changes)


BROKEN: Final = (
    *_all(
        "base",
        ("plan.devices", "on 0, 4", "on 0, 5"),
        ("lane.samples", "samples 8 in 4", "samples 12 in 4"),
        ("lane.samples", "samples 8 in 4", "samples 8 in 3"),
        ("lane.slices", "in 4", "in 4 slices 999:1"),
        ("stage.item", "embed+4,", "embedd+4,"),
        ("stage.item", "+head", "+head.logit"),
        ("stage.item", "4+head", "layers+head"),
        ("stage.coverage", "+head", "+head.logits"),
        ("stage.coverage", "4+head", "3+head"),
        ("stage.coverage", "4+head", "5+head"),
        ("stage.coverage", "4+head", "4+head+head"),
        ("stage.coverage", "4+head", "4+head.logits+head.norm"),
        ("stage.topology", "embed+4,", "4+embed,"),
        ("stage.topology", "4+head", "4+head.logits+head.norm+head.loss"),
        ("stage.every", "on 0, 4", "on 0, 4 every 3"),
        ("placement.class", "stream =", "streem ="),
        ("placement.unused", "stream =", "experts = b2 f2\n stream ="),
        ("placement.blocks", "stream =", "mlp[2-4] = b2 t2\n stream ="),
        ("placement.missing", "all =", "attn,core,mlp,embed ="),
        ("split.unused-dim", "stream = b2 s2", "stream = b2 t2"),
        ("split.unused-dim", "all =", "mlp = b2 h2\n all ="),
        ("split.zigzag", "all = b2 t2", "all = b2z t2"),
        ("split.devices-overlap", "stream = b2 s2", "stream = b2@1 s2@1"),
        ("split.batch", "all = b2 t2", "all = b4 "),
        ("split.batch", "all = b2 t2", "all = b[3:1]{t2, t2+2}"),
        ("split.parts", "stream = b2 s2", "stream = b2 s[999:1]{., .+1}"),
        ("split.parts", "stream =", "mlp = b2 f[9999:1]{., .+1}\n stream ="),
        ("split.parts", "stream =", "core = b2 h[40:1]{., .+1}\n stream ="),
        ("core.exchange", "all = b2 t2", "all = b2 s2"),
        ("core.exchange", "all = b2 t2", "all = b2 t2 via ring"),
        ("core.exchange", "stream = b2 s2", "stream = b2 s2 via gather"),
        ("keep.blocks", "0-1: core", "0-4: core"),
        ("keep.operators", "0-1: core", "0-1: cores"),
        ("keep.share", "0-1: core", "0-1 0%: core"),
        ("keep.share", "0-1: core", "0-1 50%: core"),
        ("keep.share", "recompute 0-1: core", "host 0-1/2: core"),
        ("keep.overlap", "recompute 0-1: core", "recompute 0-1: core\n host 1-2: core"),
        ("keep.overlap", "recompute 0-1: core", "recompute 0-1: full\n host 1-2: mlp.up"),
        ("shards.class", "zero all:", "zero attn:"),
        ("shards.class", "zero all:", "zero lora:"),
        ("shards.degrees", "all/1/1", "1/all/1"),
        ("shards.degrees", "all/1/1", "6/4/1"),
        ("shards.degrees", "all/1/1", "16/1/1"),
        ("shards.host", "all/1/1", "all/1/1 host=opt:0"),
        ("shards.host", "all/1/1", "all/1/1 host=opt:40,opt:50"),
        ("order.lanes", "1f1b(main)", "1f1b(mian)"),
        ("order.lanes", "order 1f1b(main)", ""),
        ("order.lanes", "order 1f1b(main)", "order 1f1b(main)\norder gpipe(main)"),
    ),
    *_all(
        "lanes",
        ("shards.lanes", "lane a", "zero all: all/1/1\nzero all: all/all/all lanes=a,c\nlane a"),
        ("shards.lanes", "lane a", "zero all: all/1/1\nzero all: 2/1/1 lanes=b\nlane a"),
        ("shards.lanes", "lane a", "zero all: all/all/all lanes=a\nlane a"),
        ("shards.degrees", "lane a", "zero all: all/1/1\nzero all: all/1/all lanes=a\nlane a"),
        ("lane.name", _SECOND, _SECOND.replace("lane b", "lane a").replace("order 1f1b(b)\n", "")),
        ("order.joint", "on 2", "on 1"),
    ),
    *_all(
        "table",
        ("order.rows", "  1: 1F0", "  2: 1F0"),
        ("order.actions", "0F1 0R0", "0F0 0R0"),
        ("order.actions", "0F1 0R0", "1F1 0R0"),
        ("order.actions", "1W1", "1B1"),
        ("order.actions", "1W1", ""),
        ("order.recompute", "0R0 0B0", "0B0 0R0"),
        ("order.recompute", "0R0", "0R0 0R0"),
        ("order.recompute", "    recompute 0-3: full\n", ""),
    ),
    *_all("spread", ("order.rendezvous", "1: 0F0 2F0 2B0 0B0", "1: 2F0 0F0 2B0 0B0")),
    *_all(
        "experts",
        ("experts.coset", "experts = b2 e2 f2", "experts = b2@2 e2@4 f2"),
        ("experts.coset", "experts = b2 e2 f2", "experts = s2 e2 f2"),
        ("split.parts", "experts = b2 e2 f2", "experts = b2 e[99:1]{f2, f2+2}"),
        ("split.parts", "experts = b2 e2 f2", "experts = b2 f[999:1]{e2, e2+2}"),
    ),
    *_all(
        "slices",
        ("lane.slices", "3:2", "999:1"),
        ("split.parts", "all = .", "all = .\n    mlp = s[99:1]{., .+1}"),
    ),
    *_all("masked", ("lane.strict", "in 4", "in 4 slices 1:1")),
    *_all(
        "frozen",
        ("shards.frozen", "base: 1/1/all", "base: all/1/1"),
        ("shards.frozen", "base: 1/1/all", "base: 1/all/all"),
    ),
    *_all(
        "dealt",
        ("split.batch", "in 2", "in 8"),
        ("core.exchange", "    core = b[3:1]{., h2+1}\n", ""),
    ),
)
