"""What every reader of a framework's launches has to do, as a class of tests that each framework's
own derives from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from shardwright.errors import DataError
from shardwright.frameworks.launch.framework_detection import FileKind
from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.launch_files_to_setting_documents import documents_of
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.strategy.text.grid_notation import print_grid

ADDED = "zz-not-a-setting-7"
Files = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A launch and what it is.

    Args:
        files: name and text of each.
        given: values of `--set`.
        strategy: as the planner writes it.
        job: tokens of a sample, samples of a step, precision.
        runtime: catalog name that prices it.
        train: what is trained.
        told: settings that are not understood.
        assumed: words that notes have.
    """

    files: Files
    model: str
    devices: int
    strategy: str
    job: tuple[int, int, str]
    runtime: str
    train: str = ""
    told: frozenset[str] = frozenset()
    different: frozenset[str] = frozenset()
    assumed: tuple[str, ...] = ()
    given: tuple[tuple[str, str], ...] = ()

    def read(self, files: Files = ()) -> Launch:
        """The launch of these files."""
        model = load_model(self.model)
        return launch_of_files(
            files or self.files, model=model, devices=self.devices, given=dict(self.given)
        )


class Conformance:
    """Tests of a reader.

    Attributes:
        framework: its name. cases: launches that it reads. refusals: a file of each launch that it
            refuses, and words of the error.
    """

    framework: ClassVar[str]
    cases: ClassVar[tuple[Case, ...]]
    refusals: ClassVar[tuple[tuple[str, str, str], ...]]

    def test_a_launch_is_read_exactly(self) -> None:
        for case in self.cases:
            found = case.read()
            assert found.framework == self.framework
            assert print_grid(found.grid) == case.strategy, print_grid(found.grid)
            job = (found.seq_len, found.global_batch, found.precision)
            assert job == case.job, (case.files[0][0], job)
            assert (found.runtime, found.train) == (case.runtime, case.train), (
                found.runtime,
                found.train,
            )
            assert not found.refused, found.refused

    def test_what_is_not_understood_is_told(self) -> None:
        for case in self.cases:
            found = case.read()
            unknown = {one.name for one in found.of(Verdict.UNKNOWN)}
            assert unknown == case.told, (case.files[0][0], unknown)
            different = {one.name for one in found.of(Verdict.DIFFERENT)}
            assert different == case.different, different

    def test_no_setting_is_dropped(self) -> None:
        for case in self.cases:
            verdicts_on = {one.name for one in case.read().settings}
            for name, text in case.files:
                for document in documents_of(text, name, dict(case.given)):
                    if document.named and document.kind is not FileKind.COMMAND:
                        dropped = (
                            document.settings.keys() - verdicts_on - {"deepspeed", "fsdp-config"}
                        )
                        assert not {
                            one
                            for one in dropped
                            if "." not in one or one.split(".")[0] not in self.renamed()
                        }, dropped

    def renamed(self) -> frozenset[str]:
        """Beginnings of names that the reader tells under another name."""
        return frozenset()

    def test_what_is_assumed_is_told(self) -> None:
        for case in self.cases:
            notes = " ".join(case.read().notes)
            for words in case.assumed:
                assert words in notes, (words, notes)

    def test_a_setting_more_changes_nothing_and_is_told(self) -> None:
        for case in self.cases:
            (name, text), *rest = case.files
            if name.endswith((".yaml", ".yml")) and not text.lstrip().startswith(
                ("{", "apiVersion", "modules")
            ):
                found = case.read(((name, f"{text}\n{ADDED}: 7\n"), *rest))
                assert found.grid == case.read().grid
                assert ADDED in {one.name for one in found.of(Verdict.UNKNOWN)}

    def test_what_is_not_priced_is_refused_by_name(self) -> None:
        first = self.cases[0]
        for name, text, words in self.refusals:
            with pytest.raises(DataError) as raised:
                launch_of_files(
                    [(name, text)],
                    model=load_model(first.model),
                    devices=first.devices,
                    given=dict(first.given),
                )
            assert words in raised.value.message, raised.value.message
            assert raised.value.hint
