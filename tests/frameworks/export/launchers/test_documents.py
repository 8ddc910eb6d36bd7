"""What launchers write has only fields that its readers know, of their types; and their own
packages take it, where they are installed."""

from __future__ import annotations

from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import StrategyError
from shardwright.frameworks.export.launchers.registry import LAUNCHERS
from tests.frameworks.export.launchers.launched import documents, launched, planned
from tests.frameworks.export.launchers.test_launchers import CLUSTERS, REFUSED
from tests.registries import place, require_same_members

# A field is a type, a dict of fields (a name that ends in ! is required), a list of what each item
# is, or {str: type} for any names.
MAP = {str: str}
META = {"name!": str}
VOLUMES = [{"name!": str, "configMap": META, "emptyDir": {"medium": str}}]
MOUNTS = [{"name!": str, "mountPath!": str}]
VARIABLES = [{"name!": str, "value": str}]
RESOURCES = {"limits": {str: int}}
CONTAINER = {
    "name!": str,
    "image!": str,
    "command": [str],
    "env": VARIABLES,
    "resources": RESOURCES,
    "volumeMounts": MOUNTS,
}
POD = {"restartPolicy!": str, "nodeSelector": MAP, "containers!": [CONTAINER], "volumes": VOLUMES}
INDEXED = {
    "completionMode!": str,
    "completions!": int,
    "parallelism!": int,
    "backoffLimit": int,
    "template!": {"spec!": POD},
}
MAPPED = {"apiVersion!": str, "kind!": str, "metadata!": META, "data!": MAP}
PATCHED = {"volumes": VOLUMES, "containers": [{"name!": str, "volumeMounts": MOUNTS}]}
PATCHED_JOBS = [{"name!": str, "template": {"spec": {"template": {"spec": PATCHED}}}}]
KNOWN: dict[str, list[dict[str, Any]]] = {
    "jobset": [
        MAPPED,
        {
            "apiVersion!": "jobset.x-k8s.io/v1alpha2",
            "kind!": "JobSet",
            "metadata!": META,
            "spec!": {
                "network": {"enableDNSHostnames": bool, "publishNotReadyAddresses": bool},
                "failurePolicy": {"maxRestarts": int},
                "replicatedJobs!": [
                    {"name!": str, "replicas": int, "template!": {"spec!": INDEXED}}
                ],
            },
        },
    ],
    "trainjob": [
        MAPPED,
        {
            "apiVersion!": "trainer.kubeflow.org/v1alpha1",
            "kind!": "TrainJob",
            "metadata!": META,
            "spec!": {
                "runtimeRef!": {"apiGroup": str, "kind": str, "name!": str},
                "trainer": {
                    "image": str,
                    "command": [str],
                    "env": VARIABLES,
                    "numNodes": int,
                    "numProcPerNode": int,
                    "resourcesPerNode": RESOURCES,
                },
                "runtimePatches": [
                    {
                        "manager!": str,
                        "trainingRuntimeSpec": {
                            "template": {"spec": {"replicatedJobs": PATCHED_JOBS}}
                        },
                    }
                ],
            },
        },
    ],
    "skypilot": [
        {
            "name": str,
            "num_nodes": int,
            "workdir": str,
            "resources": {"accelerators": str, "network_tier": str, "image_id": str},
            "run": str,
        }
    ],
}
"""Of the documents of a launcher's file. Sources: JobSet's and Trainer's API types, SkyPilot's YAML
specification."""


def unlike(value: Any, wanted: Any, where: str = "") -> list[str]:
    """What of a document is no known field, is lacking, or is of another type."""
    if isinstance(wanted, type):
        return [] if type(value) is wanted else [f"{where} is {value!r}"]
    if isinstance(wanted, str):
        return [] if value == wanted else [f"{where} is {value!r}"]
    if isinstance(wanted, list):
        return (
            [
                one
                for n, item in enumerate(value)
                for one in unlike(item, wanted[0], f"{where}[{n}]")
            ]
            if type(value) is list
            else [where]
        )
    if type(value) is not dict:
        return [where]
    if str in wanted:
        return [
            one
            for key, item in value.items()
            for one in (*unlike(key, str), *unlike(item, wanted[str], f"{where}.{key}"))
        ]
    fields = {key.rstrip("!"): (key.endswith("!"), inner) for key, inner in wanted.items()}
    found = [f"{where}.{key} is unknown" for key in value if key not in fields]
    found += [
        f"{where}.{key} is lacking"
        for key, (needed, _) in fields.items()
        if needed and key not in value
    ]
    return found + [
        one
        for key, item in value.items()
        if key in fields
        for one in unlike(item, fields[key][1], f"{where}.{key}")
    ]


CASES = [
    (launcher, cluster)
    for launcher in KNOWN
    for cluster in CLUSTERS
    if (launcher, cluster) not in REFUSED
]


def written(launcher: str, cluster: str, folder: Path, *, image: str = "") -> list[dict[str, Any]]:
    _, path = launched(planned(cluster, CLUSTERS[cluster][0]), launcher, folder, image=image)
    return documents(path)


@pytest.mark.parametrize(("launcher", "cluster"), CASES)
def test_fields_are_known(launcher: str, cluster: str, tmp_path: Path) -> None:
    found = written(launcher, cluster, tmp_path, image="registry/training:1")
    assert len(found) == len(KNOWN[launcher])
    assert [
        one
        for document, wanted in zip(found, KNOWN[launcher], strict=True)
        for one in unlike(document, wanted)
    ] == []


def test_the_check_of_fields_sees_what_is_wrong() -> None:
    assert unlike({"name": 1}, META) == [".name is 1"]
    assert unlike({"names": "a"}, META) == [".names is unknown", ".name is lacking"]
    assert unlike([{"name": "a", "value": None}], VARIABLES) == ["[0].value is None"]
    assert unlike({"limits": {"gpu": "8"}}, RESOURCES) == [".limits.gpu is '8'"]
    assert unlike({"limits": True}, {"limits": int}) == [".limits is True"]


@pytest.mark.parametrize("launcher", ["jobset", "trainjob"])
def test_parts_of_kubernetes_fit_together(launcher: str, tmp_path: Path) -> None:
    files, document = written(
        launcher, "t4:8+h100-sxm:16" if launcher == "jobset" else "h100-sxm:32", tmp_path
    )
    assert document["metadata"]["name"] == files["metadata"]["name"]
    spec = document["spec"]
    if launcher == "trainjob":
        spec = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    pods = [job["template"]["spec"]["template"]["spec"] for job in spec["replicatedJobs"]]
    for pod in pods:
        (container,) = pod["containers"]
        assert [one["name"] for one in container["volumeMounts"]] == [
            one["name"] for one in pod["volumes"]
        ]
        assert pod["volumes"][0]["configMap"]["name"] == files["metadata"]["name"]
        # Kubernetes would replace $(NAME) of a variable that it knows.
        for variable in container.get("env", ()):
            assert f"$({variable['name']})" not in "".join(container["command"])
    if launcher == "jobset":
        assert [pod["nodeSelector"]["accelerator"] for pod in pods] == ["t4", "h100-sxm"]
        jobs = [job["template"]["spec"] for job in spec["replicatedJobs"]]
        assert all(job["completions"] == job["parallelism"] for job in jobs)


def test_devices_of_others_have_no_pods(tmp_path: Path) -> None:
    for launcher in ("jobset", "trainjob"):
        with pytest.raises(
            StrategyError, match="no resource of Kubernetes is known for devices of Google"
        ):
            launched(planned("tpu-v5p:16", "tp4 sp dp4 zero1"), launcher, tmp_path)
    require_same_members(
        {*KNOWN, "slurm"},
        LAUNCHERS,
        place("tests/frameworks/export/launchers/test_documents.py", "KNOWN"),
    )


@pytest.mark.skipif(
    find_spec("kubeflow_trainer_api") is None, reason="kubeflow-trainer-api is not installed"
)
@pytest.mark.parametrize(("launcher", "cluster"), [case for case in CASES if case[0] != "skypilot"])
def test_the_api_s_own_models_take_it_whole(launcher: str, cluster: str, tmp_path: Path) -> None:
    """They drop fields that they do not know: what they give back is what was written."""
    from kubeflow_trainer_api import models

    files, document = written(launcher, cluster, tmp_path)
    model = models.JobsetV1alpha2JobSet if launcher == "jobset" else models.TrainerV1alpha1TrainJob
    assert model.from_dict(document).to_dict() == document
    assert files["kind"] == "ConfigMap"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(find_spec("sky") is None, reason="skypilot is not installed")
@pytest.mark.parametrize(("launcher", "cluster"), [case for case in CASES if case[0] == "skypilot"])
def test_skypilot_reads_its_task(
    launcher: str, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sky

    monkeypatch.chdir(tmp_path)
    (document,) = written(launcher, cluster, tmp_path, image="registry/training:1")
    task = sky.Task.from_yaml_config(deepcopy(document))
    name, _, count = document["resources"]["accelerators"].partition(":")
    assert task.num_nodes == len(CLUSTERS[cluster][1])
    assert [dict(one.accelerators) for one in task.resources] == [{name: int(count)}]
