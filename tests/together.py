"""Which tests one worker runs: those that share what is dear to set up, so that it is made once.

Tests of a file ask for the same models, prices and answers, which a process keeps: a file is run by
one worker. Of proofs a file may have an hour, so that all workers share it but where its set-up is
dear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tests.tiers import in_proof

ALONE = (
    "execute/test_mixed_plans.py",
    "search/engine/test_same_answer.py",
    "search/orders/test_bar.py",
    "search/test_distinct.py",
    "search/test_tight.py",
    "torch_checks/test_sharded_memory.py",
    "validation/training/test_fit_constants.py",
)
"""Files that stay together in a proof, too, for what is set up: fits, large spaces, answers of
searches, runs under a tracker."""
FORKED = (
    "calibrate/test_measure_machine.py",
    "cli/verbs/test_run.py::test_pytorchs_engine",
    "cli/test_run_options.py::test_biases_of_routers",
    "cli/test_run_options.py::test_experts_are_balanced",
    "cli/test_run_options.py::test_one_engine_goes_on",
    "cli/test_run_options.py::test_ranks_are_asked",
    "execute/test_checkpoint.py::test_a_kill_while_saving",
    "execute/test_distributed.py",
    "execute/test_distributed_plans.py",
    "execute/test_native.py",
    "execute/test_native_ring.py",
)
"""Tests whose ranks are forked from one server (tests/execute/started.py), which takes seconds to
import what they need."""
KERNELS = ("cli/test_first_run.py", "test_built_kernels.py")
"""Files whose tests have numba compile the kernels of a plan: the first one does, the others find
them in numba's cache."""
PUBLISHED = (
    "papers/test_accuracy.py",
    "papers/test_published_memory.py",
    "papers/test_published_steps.py",
    "validation/test_remarks.py",
    "validation/training/test_row_to_training_run.py",
)
"""Files that judge the same predictions (tests/validation/published.py)."""
REPORTS = (
    "api/report/test_memory_by_stage_content.py",
    "api/report/test_step_time_content.py",
    "report/page/test_report_page_of_any_plan.py",
)
"""Files about the same stored plans (tests/api/report/stored_plans.py)."""
SAVED = (
    "cli/verbs/test_report.py",
    "files/test_changed_leaves.py",
    "files/test_json_schemas.py",
    "report/page/test_searched_members.py",
)
"""Files about the same stored answers (tests/files/saved.py)."""
SERVED = (
    "validation/test_launch_facts.py",
    "validation/test_serving_bars.py",
    "validation/test_serving_fit.py",
    "validation/test_serving_judge.py",
    "validation/test_serving_launches.py",
    "validation/test_serving_rows.py",
)
"""Files about the published rows of servers (tests/validation/serving_tables.py)."""
SERVING = "serving/"
"""Folder whose tests need the loop of a deployment: it takes longest to compile, and the other
worker finds it in the cache."""
SOURCES = (
    "docs/test_error_index.py",
    "test_kernel_compilation.py",
    "test_functions_reached.py",
    "test_names.py",
    "test_public_face.py",
    "test_reached.py",
    "test_source_size.py",
)
"""Files that read the package's sources (tests/sources.py)."""

LONG = (
    "kernels",
    "cli/test_exact_plan.py",
    "cli/test_mixed_run.py",
    "cli/test_objectives.py",
    "cli/test_run_faults.py",
    "cli/test_run_options.py",
    "search/engine/test_same_answer.py",
    "search/test_calls.py",
    "search/test_infeasible.py",
    "search/test_taught.py",
    "search/test_trained.py",
    "torch_checks/test_sharded_memory.py",
)
"""Groups of few tests that take long: begun early, the last of these first. Those with fewest tests
come last, and the other worker would wait for them; PyTorch's tracker, measured, takes 44 s in a
process that has run most other tests and 10 s in a new one.
"""


def group_of(node: str) -> str:
    """The group of a test: its file, or in a proof most often the test itself."""
    path = node.split("::")[0].removeprefix("tests/")
    if node.removeprefix("tests/").startswith(FORKED):
        return "forked"
    if path in KERNELS:
        return "kernels"
    if path in PUBLISHED:
        return "published"
    if path in SERVED and not in_proof():
        return "served"
    if path.startswith(SERVING):
        return "serving"
    if path in SOURCES:
        return "sources"
    if not in_proof():
        return "reports" if path in REPORTS else "saved" if path in SAVED else path
    if path == "execute/test_counts.py" and (plan := re.search(r"TestCounts.*(\[.*\])", node)):
        return path + plan[1]
    return path if path in ALONE else node


class Numbered(list[str]):
    """Names that are found at once."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._places = {name: place for place, name in enumerate(self)}

    def index(self, name: str, *_: Any) -> int:
        """Where a name stands."""
        return self._places[name]


def scheduler(config: Any, log: Any) -> Any:
    """Groups to workers, the largest first."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        """Keeps of each worker what it has still to do, and finds a test by its name: xdist goes
        through all of them at every test."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

        def schedule(self) -> None:
            begun = self.collection is not None
            super().schedule()
            for group in () if begun else LONG:
                if group in self.workqueue:
                    self.workqueue.move_to_end(group, last=False)

        def add_node_collection(self, node: Any, collection: Any) -> None:
            super().add_node_collection(node, collection)
            if node in self.registered_collections:
                self.registered_collections[node] = Numbered(self.registered_collections[node])

        def _assign_work_unit(self, node: Any) -> None:
            units = self.assigned_work[node]
            for group in [group for group, unit in units.items() if all(unit.values())]:
                del units[group]
            super()._assign_work_unit(node)

    return Together(config, log)
