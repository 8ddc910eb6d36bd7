"""Containers, environments and device counts of launches in Kubernetes manifests.

Source of the forms: Kubeflow training-operator v1 (PyTorchJob, MPIJob), Kubeflow Trainer v2
(TrainJob, ClusterTrainingRuntime), JobSet v0.10, batch/v1 Job, Volcano's Job, KubeRay's RayJob.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from shardwright.errors import DataError, ShardwrightError
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.lazily_compiled_dataclass import dataclass

KINDS: Final = name_set(
    "PyTorchJob MPIJob TrainJob TrainingRuntime ClusterTrainingRuntime JobSet Job"
    " RayJob Pod StatefulSet LeaderWorkerSet AppWrapper"
)
MAX_DOCUMENTS: Final = 50
MAX_CONTAINERS: Final = 200
MAX_DEPTH: Final = 20
MAX_DEVICES: Final = 10**7
_HINT: Final = "the manifest of one job"
_SHELLS: Final = ("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash")
_VARIABLE: Final = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]{0,100})\)")
_ACCELERATOR: Final = re.compile(
    r"(?:.*/)?(?:gpu|mig-.*|tpu|neuron.*|npu|ascend.*|gaudi)", re.IGNORECASE
)
_WORKERS: Final = ("replicas", "parallelism", "completions", "numNodes", "size")
_VERSION: Final = re.compile(r"^apiVersion:", re.MULTILINE)
_START: Final = re.compile(r"^kind:\s*[\"']?(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container of a manifest: start command, environment and number of devices.

    Args:
        script: the command as shell text; empty = the image's copies command.
        environment: environment variables.
        devices: devices of all replicas together; 0 = not given.
    """

    script: str
    environment: Mapping[str, str]
    devices: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Contents of a manifest: containers, files in ConfigMaps, and kinds of objects.

    `files` has (name, text) of each file.
    """

    containers: tuple[Container, ...]
    files: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]

    @property
    def devices(self) -> int:
        """Total devices of containers that start a command, all replicas; 0 = not given."""
        return sum(container.devices for container in self.containers if container.script)


def manifest_of(text: str, suffix: str, name: str, *, given: Mapping[str, str]) -> Manifest | None:
    """Parse a Kubernetes manifest, variables replaced by `given`; None if of no known workload.

    Args:
        suffix: ending of the file's name, which may be other than ``.yaml`` for templates.
        given: values of variables, as ``envsubst`` takes them.

    Raises:
        DataError: the manifest cannot be read, or no container has a command.
    """
    is_json = suffix == ".json" and '"apiVersion"' in text
    if suffix == ".toml" or not (
        is_json or (_VERSION.search(text) and set(_START.findall(text)) & KINDS)
    ):
        return None
    for variable, value in given.items():
        text = text.replace(f"${{{variable}}}", value)
    objects = [
        resource for resource in _objects(text, suffix, name) if isinstance(resource, Mapping)
    ]
    kinds = tuple(str(resource.get("kind", ""))[:40] for resource in objects)
    if not set(kinds) & KINDS:
        return None
    containers: list[Container] = []
    for one in objects:
        if str(one.get("kind", "")) in KINDS:
            containers += _containers(one, 1, {}, 0)
            if len(containers) > MAX_CONTAINERS:
                raise DataError(
                    f"{name[:60]}: more than {MAX_CONTAINERS} containers",
                    hint=_HINT,
                )
    if not any(container.script for container in containers):
        raise DataError(
            f"{name[:60]}: no container of the {next(kind for kind in kinds if kind in KINDS)} says"
            " its command; its image does",
            hint="give the script or the configuration that the image starts",
        )
    files = tuple(
        (str(key), str(value))
        for resource in objects
        if resource.get("kind") == "ConfigMap"
        for key, value in _items(resource.get("data"))
    )
    return Manifest(containers=tuple(containers), files=files, kinds=kinds)


def _objects(text: str, suffix: str, name: str) -> Iterator[Any]:
    """Parse the YAML or JSON documents of a manifest one by one."""
    from shardwright.hardware.files.bounded_yaml import read_yaml  # yaml only where a file is read

    parts = [text] if suffix == ".json" else re.split(r"^---.*$", text, flags=re.MULTILINE)
    if len(parts) > MAX_DOCUMENTS:
        raise DataError(f"{name[:60]}: more than {MAX_DOCUMENTS} documents", hint=_HINT)
    for part in parts:
        if not part.strip():
            continue
        try:
            yield json.loads(part) if suffix == ".json" else read_yaml(part, what=name[:60])
        except ShardwrightError as error:
            raise DataError(error.message, hint=error.hint) from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name[:60]}: {str(error)[:100]}", hint="a manifest") from None


def _items(value: object) -> Iterator[tuple[object, object]]:
    """Yield the items of a mapping; nothing for other values."""
    yield from value.items() if isinstance(value, Mapping) else ()


def _containers(
    value: object, replicas: int, environment: Mapping[str, str], depth: int
) -> list[Container]:
    """Containers in a part of a manifest, with devices of all copies: `replicas` x the part's own.

    `replicas` is the number of copies of that part.
    """
    if depth > MAX_DEPTH:
        raise DataError(f"a manifest nested deeper than {MAX_DEPTH}", hint=_HINT)
    containers: list[Container] = []
    if isinstance(value, list):
        return [
            container
            for part in value[:MAX_CONTAINERS]
            for container in _containers(part, replicas, environment, depth + 1)
        ]
    if not isinstance(value, Mapping):
        return containers
    copies = _whole_number_or_0(next((value[name] for name in _WORKERS if name in value), 1)) or 1
    replicas = min(replicas * copies, MAX_DEVICES)
    node_devices = _whole_number_or_0(value.get("nprocPerNode", value.get("numProcPerNode", 0)))
    for key, part in value.items():
        if key == "containers" and isinstance(part, list):
            containers += [
                _parse_container(one, replicas, environment)
                for one in part[:MAX_CONTAINERS]
                if isinstance(one, Mapping)
            ]
        elif key == "trainer" and isinstance(part, Mapping):
            nodes = _whole_number_or_0(part.get("numNodes", 1)) or 1
            containers.append(
                _parse_container(part, min(replicas * nodes, MAX_DEVICES), environment)
            )
        elif key == "entrypoint" and isinstance(part, str):
            containers.append(Container(script=part, environment=environment))
        elif key not in ("initContainers", "volumes", "metadata", "status", "selector"):
            containers += _containers(part, replicas, environment, depth + 1)
    if node_devices:
        containers = [
            container
            if container.devices or not container.script
            else _with_devices(container, node_devices, replicas)
            for container in containers
        ]
    return containers


def _with_devices(container: Container, each: int, replicas: int) -> Container:
    """Container whose device count is `each` times `replicas`, within a maximum."""
    return Container(
        script=container.script,
        environment=container.environment,
        devices=min(each * replicas, MAX_DEVICES),
    )


def _parse_container(
    value: Mapping[Any, Any], replicas: int, environment: Mapping[str, str]
) -> Container:
    """Parse a container: command as shell text, environment variables, devices x replicas."""
    variables = dict(environment)
    entries = value.get("env")
    for entry in entries if isinstance(entries, list) else ():
        if (
            isinstance(entry, Mapping)
            and isinstance(entry.get("name"), str)
            and isinstance(entry.get("value"), str | int | float)
        ):
            variables[entry["name"]] = str(entry["value"])
    words = [str(entry) for name in ("command", "args") for entry in _listed(value.get(name))]
    words = [
        _VARIABLE.sub(lambda match: variables.get(match[1], f"${match[1]}"), word) for word in words
    ]
    devices = 0
    for name in ("resources", "resourcesPerNode"):
        resources = value.get(name)
        for part in ("limits", "requests"):
            wanted = resources.get(part) if isinstance(resources, Mapping) else None
            counts = [
                _whole_number_or_0(number)
                for key, number in _items(wanted)
                if _ACCELERATOR.fullmatch(str(key))
            ]
            devices = devices or sum(counts)
    each = devices or _whole_number_or_0(value.get("numProcPerNode", 0))
    return Container(
        script=_command_as_shell_text(words),
        environment=variables,
        devices=min(each * replicas, MAX_DEVICES),
    )


def _listed(value: object) -> Sequence[object]:
    """Value as a list: a text becomes a list of one; other values than lists, an empty list."""
    if isinstance(value, str):
        return [value]
    return value if isinstance(value, list) else []


def _command_as_shell_text(words: Sequence[str]) -> str:
    """Container's command as shell text: the text behind ``bash -c``, or the words, quoted."""
    if words and words[0] in _SHELLS:
        at = next(
            (n for n, word in enumerate(words[1:4], start=1) if re.fullmatch(r"-[a-z]*c", word)), 0
        )
        if at and at + 1 < len(words):
            return "\n".join(words[at + 1 :])
    # A variable stays one: quotation marks would make it text.
    return " ".join(
        word if re.fullmatch(r"[\w./:=,@%+$-]+", word) else shlex.quote(word) for word in words
    )


def _whole_number_or_0(value: object) -> int:
    """Non-negative whole number of a value; 0 for other values."""
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 7 else 0
