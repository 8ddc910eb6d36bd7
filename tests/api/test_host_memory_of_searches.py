"""Host memory in every search: no answer needs more of a node than it has, and what brute force
finds in that room is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from shardwright.api.request_to_problem import facts_of, problem_of, space_of
from shardwright.api.searches.exact_search_on_few_devices import plan_exact
from shardwright.api.searches.grid_search import plan
from shardwright.api.searches.joint_layer_cut_and_schedule_search import plan_joint
from shardwright.api.searches.mixed_search import plan_mixed
from shardwright.api.searches.robust_search_over_cluster_scenarios import plan_robust
from shardwright.errors import InfeasibleError
from shardwright.program.training_problem import under
from shardwright.search.grid import build_error_where_nothing_fits as infeasible_hints
from shardwright.search.grid.bounds import members_with_time_and_memory
from shardwright.search.grid.members.grid_search_space import supported_option_parts
from shardwright.search.search_request import Request
from shardwright.simulator.prediction import Prediction
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import lone_stages
from shardwright.units import GIB
from tests.search.brute import count
from tests.tiers import in_both, in_proof, many

MODEL = """{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,\
 "intermediate_size": 5632,
"num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": {layers},\
 "vocab_size": 32000,
"max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "tie_word_embeddings": false}}"""
NODE = (
    "  - {{accelerator: {accelerator}, count: {count}, devices_per_node: 2, host: {{memory_gib:"
    " {gib}}}}}\n"
)


class Face(NamedTuple):
    """A search: what it is called with, and how much a node has at first. `kept`: GiB of a device
    that programs do not have."""

    search: Callable[[Request], object]
    request: dict[str, object]
    mixed: bool = False
    kept: float = 0.0
    layers: int = 4


def pinned(**values: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((axis, tuple(words.split(","))) for axis, words in values.items())


SCENARIOS = "{folder}/scenarios.yaml"
STATES = (
    "scenarios:\n  - {name: usual, weight: 0.8}\n  - {name: shared network, weight: 0.2, network:"
    " 0.1}\n"
)
OFFLOADED = pinned(offload="50,100")
NARROW = pinned(cp="1", mbs="1", ulysses="1", sp="0")
FACES = {
    "standard": Face(plan, {"pins": OFFLOADED, "top": 3}),
    "all devices": Face(plan, {"pins": OFFLOADED, "use_all": True}),
    "exhaustive": Face(plan, {"space": "exhaustive", "pins": OFFLOADED}),
    "parameters": Face(plan, {"runtime": "deepspeed", "pins": pinned(param_offload="on")}),
    "gradients": Face(plan, {"runtime": "deepspeed", "pins": pinned(zero="2,3", offload="100")}),
    "checkpoints": Face(
        plan, {"runtime": "deepspeed", "pins": pinned(cpu_checkpoints="on", recompute="full")}
    ),
    "policy": Face(
        plan,
        {
            "runtime": "maxtext",
            "pins": (*pinned(remat="attention_offloaded", recompute="selective"), *NARROW),
        },
    ),
    "energy": Face(
        plan_mixed,
        {"objective": "energy", "runtime": "deepspeed", "pins": pinned(cpu_checkpoints="on")},
        kept=75.5,
    ),
    "scenarios": Face(
        plan_robust,
        {
            "pins": (*OFFLOADED, *NARROW, *pinned(recompute_layers="0")),
            "scenarios": SCENARIOS,
        },
    ),
    "joint": Face(plan_joint, {"space": "joint", "pins": OFFLOADED}),
    "joint-named": Face(plan_joint, {"space": "joint-named", "pins": OFFLOADED}),
    "joint pipelines": Face(
        plan_joint,
        {
            "space": "joint",
            "runtime": "deepspeed",
            "global_batch": 8,
            "pins": pinned(cpu_checkpoints="on", pp="2,4"),
        },
        kept=74.5,
    ),
    "mixed parameters": Face(
        plan_mixed,
        {"runtime": "deepspeed", "pins": pinned(param_offload="on", mbs="1", cp="1")},
        mixed=True,
    ),
    "mixed checkpoints": Face(
        plan_mixed,
        {"runtime": "deepspeed", "pins": pinned(cpu_checkpoints="on", tp="1", mbs="1")},
        mixed=True,
        kept=75.5,
    ),
    "exact": Face(plan_exact, {"space": "exact", "max_devices": 2}, layers=1),
}
WHOLE: dict[str, dict[str, object]] = {
    "policy": {"pins": pinned(remat="attention_offloaded", recompute="selective")},
    "scenarios": {"pins": OFFLOADED},
    "joint pipelines": {"global_batch": 16},
    "mixed parameters": {"pins": pinned(param_offload="on")},
    "mixed checkpoints": {"pins": pinned(cpu_checkpoints="on")},
}
"""What proofs search instead: all members."""


def request_of(folder: Path, face: Face, *, gib: float) -> Request:
    model, cluster = folder / "model.json", folder / f"cluster{gib}.yaml"
    model.write_text(MODEL.format(layers=face.layers), encoding="utf-8")
    kinds = [("h100-sxm", 1), ("a100-sxm-80gb", 1)] if face.mixed else [("h100-sxm", 2)]
    cluster.write_text(
        "nodes:\n" + "".join(NODE.format(accelerator=a, count=c, gib=gib) for a, c in kinds),
        encoding="utf-8",
    )
    (folder / "scenarios.yaml").write_text(STATES, encoding="utf-8")
    asked = Request(
        model=str(model), cluster=str(cluster), seq_len=2048, global_batch=16, headroom=0.0, top=0
    )
    given = {
        name: value.format(folder=folder) if value is SCENARIOS else value
        for name, value in face.request.items()
    }
    return replace(asked, reserve_bytes=int(face.kept * GIB), **given)  # type: ignore[arg-type]


def predictions(answer: object) -> Iterator[Prediction]:
    """Of the best plan of an answer, and of the next best ones."""
    simulation = getattr(answer, "simulation", None)
    yield simulation.prediction if simulation is not None else answer.prediction  # type: ignore[attr-defined]
    yield from (
        one.prediction for one in getattr(answer, "alternatives", ()) if hasattr(one, "prediction")
    )


def need(prediction: Prediction) -> int:
    return max((host.need for host in prediction.host_memory), default=0)


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would fit is not looked for where nothing does, and the member that lacks least is one
    of few: it takes longer than all else here."""
    monkeypatch.setattr(infeasible_hints, "_fitting_changes", lambda *_: ([], True))
    monkeypatch.setattr(
        members_with_time_and_memory, "MOST_EXACT", many(4, members_with_time_and_memory.MOST_EXACT)
    )


@in_both
@pytest.mark.parametrize("name", FACES)
def test_no_answer_needs_more_host_memory_than_a_node_has(name: str, tmp_path: Path) -> None:
    """With less than the best plan needs another one is found, no faster, or none."""
    face = FACES[name]
    if in_proof():
        face = face._replace(request=face.request | WHOLE.get(name, {}))
    room, seconds, looks = 1000.0, 0.0, 0
    while True:
        try:
            answer = face.search(request_of(tmp_path, face, gib=room))
        except InfeasibleError:
            # With enough host memory something fits.
            assert seconds
            break
        shown = list(predictions(answer))
        for one in shown:
            assert one.fits, f"{name} with {room} GiB"
            assert need(one) <= room * GIB, f"{name} with {room} GiB"
        assert shown[0].step_time_s >= seconds * (1 - 1e-12)
        seconds, looks = shown[0].step_time_s, looks + 1
        if not need(shown[0]) or looks == 2:
            break
        room = 0.9 * need(shown[0]) / GIB
    assert looks


@in_both
@pytest.mark.parametrize("name", ["standard", "parameters", "gradients", "checkpoints"])
def test_the_fastest_that_fits_the_hosts_is_found(name: str, tmp_path: Path) -> None:
    """Against the simulation of every member, with room for some of them."""
    face = FACES[name]._replace(layers=2)
    narrow = name == "standard" and not in_proof()
    few = (
        *face.request["pins"],
        *pinned(
            cp="1", mbs="1,4" if in_proof() else "1", ulysses="1", recompute_layers="0", sp="0"
        ),
        *(pinned(recompute="none,full", vpp="1", tp_overlap="userbuffers") if narrow else ()),
    )  # type: ignore[misc]
    face = face._replace(request={**face.request, "pins": few, "use_all": True})
    request = request_of(tmp_path, face, gib=1000)
    problem = problem_of(request)
    done = every_step(request)
    needs = sorted({most for _, most in done})
    assert len(needs) > 2
    for most in needs[:: max(len(needs) // many(2, 3), 1)]:
        fitting = [seconds for seconds, other in done if other <= most]
        answer = face.search(
            replace(request, cluster=request_of(tmp_path, face, gib=(most + 1) / GIB).cluster)
        )
        assert next(predictions(answer)).step_time_s == pytest.approx(min(fitting), rel=1e-12)
    assert problem.cluster.num_devices == 4


def every_step(request: Request) -> list[tuple[float, int]]:
    """Seconds and the fullest node's need of every member of the request's space that fits its
    devices."""
    problem = problem_of(request)
    facts = facts_of(problem)
    found = []
    for part in supported_option_parts(problem, space_of(request, problem, facts)):
        own = under(problem, part.chosen)
        rules = replace(facts, lone_stages=lone_stages(own.runtime))
        for grid in count(own, part, rules).grids.values():
            done = simulate_grid(own, grid)
            if done.fits:
                found.append(
                    (done.step_time_s, max((host.need for host in done.host_memory), default=0))
                )
    return found
