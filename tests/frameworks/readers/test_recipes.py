"""Recipes in Python: NeMo 2's, Megatron-Bridge's and torchtitan's registries; and Kubernetes
manifests that wrap any launch."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import DataError, ShardwrightError
from shardwright.frameworks.documents.python_recipes import settings_of_recipe
from shardwright.frameworks.nemo.recipe_defaults import FIELDS, RECIPES
from shardwright.frameworks.read_launch import launch_of_files
from shardwright.model.catalog.load_model_by_name import load_model
from tests.frameworks.readers.conformance import Case, Conformance

LLAMA = "llama-3.1-8b"
SCRIPT = """from nemo.collections import llm
import nemo_run as run

NODES = 2

def mine(nodes: int = NODES):
    recipe = llm.llama3_8b.pretrain_recipe(name="mine", num_nodes=nodes, num_gpus_per_node=8)
    recipe.trainer.strategy.tensor_model_parallel_size = 2
    recipe.trainer.strategy.context_parallel_size = 1
    if nodes > 1:
        recipe.data.global_batch_size = 64 * nodes
    recipe.trainer.max_steps = 100
    return recipe

if __name__ == "__main__":
    run.run(mine(), executor=run.LocalExecutor())
"""
OWN = """import nemo_run as run
from nemo import lightning as nl

def trainer(tp: int = 1, pp: int = 1, sp: bool = False):
    strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=tp,\
 pipeline_model_parallel_size=pp, sequence_parallel=sp,
        virtual_pipeline_model_parallel_size=None,\
 ddp=run.Config(DistributedDataParallelConfig, grad_reduce_in_fp32=True))
    return run.Config(nl.Trainer, strategy=strategy, plugins=bf16_mixed(), num_nodes=1, devices=8)

def pretrain_recipe(fn=None):
    return run.Partial(fn, trainer=trainer(tp=4, sp=True),\
 data=run.Config(MockDataModule, seq_length=4096, global_batch_size=32,
        micro_batch_size=2))

def finetune_recipe(fn=None):
    return run.Partial(fn, trainer=trainer(),\
 data=run.Config(MockDataModule, seq_length=2048, global_batch_size=8, micro_batch_size=1))
"""
BRIDGE = """from megatron.bridge.recipes.common import _pretrain_common, _peft_common

def small_config():
    cfg = _pretrain_common()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 1
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.sequence_parallel = True
    cfg.dataset.seq_length = 8192
    cfg.train.global_batch_size = 4 * 16
    cfg.train.micro_batch_size = 1
    return cfg

def low_config(precision: str = "bf16_with_fp8_current_scaling_mixed"):
    cfg = small_config()
    cfg.mixed_precision = get_mixed_precision_config(precision)
    return cfg

def lora_config():
    cfg = _peft_common()
    cfg.model.tensor_model_parallel_size = 1
    cfg.train.global_batch_size = 32
    return cfg
"""
TITAN = """from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig

def big() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B",\
 converters=[Float8LinearConverter.Config(filter_fqns=["output"])]),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 8192,\
 max_context_length=8192, steps=10),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True, components=["model", "loss"]),
    )

def small() -> Trainer.Config:
    config = big()
    config.model_spec = model_registry("8B")
    config.parallelism.tensor_parallel_degree = 1
    config.training.max_context_length = 4096
    return config
"""
POD = """{indent}- name: pytorch
{indent}  image: mine
{indent}  env: [{{name: TP, value: "4"}}]
{indent}  command: [torchrun, --nproc_per_node=8, pretrain_gpt.py]
{indent}  args: [--tensor-model-parallel-size, $(TP), --micro-batch-size, "1",\
 --global-batch-size, "64", --seq-length, "4096",
{indent}    --bf16, --use-distributed-optimizer, --attention-dropout, "0", --hidden-dropout, "0"]
{indent}  resources: {{limits: {{nvidia.com/gpu: 8}}}}
"""
PYTORCH_JOB = (
    "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: mine}\nspec:\n "
    " pytorchReplicaSpecs:\n"
    + "".join(
        f"    {role}:\n      replicas: {count}\n      template:\n        spec:\n         "
        f" containers:\n{POD.format(indent=' ' * 12)}"
        for role, count in (("Master", 1), ("Worker", 3))
    )
)
TRAIN_JOB = """apiVersion: v1
kind: ConfigMap
metadata: {name: files}
data:
  sft.yaml: |
    stage: sft
    finetuning_type: full
    cutoff_len: 4096
    per_device_train_batch_size: 2
    gradient_accumulation_steps: 4
    deepspeed: examples/deepspeed/ds_z3_config.json
    bf16: true
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: mine}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    numNodes: 2
    command: [/bin/bash, -c]
    args: ["export FORCE_TORCHRUN=1 && llamafactory-cli train /config/sft.yaml"]
    resourcesPerNode: {limits: {nvidia.com/gpu: 8}}
"""


class TestNemoRecipes(Conformance):
    framework = "nemo-recipe"
    cases = (
        Case(
            files=(("mine.py", SCRIPT),),
            model=LLAMA,
            devices=16,
            strategy="tp2 dp8 mbs1 zero1 recompute=none order=tp-cp-ep-dp-pp",
            job=(8192, 128, "bf16"),
            runtime="nemo-25.04",
            assumed=("llama3_8b.pretrain_recipe", "micro-batch-size 1"),
        ),
        Case(
            files=(("own.py", OWN),),
            model=LLAMA,
            devices=8,
            strategy="tp4 sp dp2 mbs2 zero1 recompute=none order=tp-cp-ep-dp-pp grad_dtype=fp32",
            job=(4096, 32, "bf16"),
            runtime="nemo-25.04",
            assumed=("pretrain_recipe was read",),
        ),
    )
    refusals = (
        (
            "f.py",
            SCRIPT.replace("llama3_8b.pretrain_recipe", "llama3_8b.finetune_recipe"),
            "llama3_8b.finetune_recipe is not known",
        ),
        (
            "u.py",
            SCRIPT.replace("llama3_8b", "mystery_9b"),
            "mystery_9b.pretrain_recipe is not known",
        ),
        ("p.py", SCRIPT.replace('name="mine"', "performance_mode=True"), "performance_mode"),
        ("t.py", OWN.replace("tp=4", "tp=unknown_degree"), "is not a whole number"),
    )

    def renamed(self) -> frozenset[str]:
        return frozenset({"recipe"})


class TestBridgeRecipes(Conformance):
    framework = "bridge-recipe"
    cases = (
        Case(
            files=(("mine.py", BRIDGE),),
            given=(("recipe", "small_config"),),
            model=LLAMA,
            devices=8,
            strategy="tp2 sp dp4 mbs1 zero1 recompute=none order=tp-cp-ep-dp-pp",
            job=(8192, 64, "bf16"),
            runtime="megatron-bridge",
        ),
        Case(
            files=(("mine.py", BRIDGE),),
            given=(("recipe", "low_config"),),
            model=LLAMA,
            devices=8,
            strategy="tp2 sp dp4 mbs1 zero1 recompute=none order=tp-cp-ep-dp-pp",
            job=(8192, 64, "fp8"),
            runtime="megatron-bridge",
        ),
        Case(
            files=(("mine.py", BRIDGE),),
            given=(("recipe", "lora_config"),),
            model=LLAMA,
            devices=2,
            strategy=(
                "dp2 mbs1 zero1 recompute=none grad_overlap=off param_overlap=off"
                " grad_average=buffer"
            ),
            job=(2048, 32, "bf16"),
            runtime="megatron-bridge",
            train="lora:r32",
            assumed=("common._peft_common",),
        ),
    )
    refusals = (
        ("x.py", BRIDGE.replace("_pretrain_common", "llama9_1b_pretrain_config"), "not known here"),
        (
            "y.py",
            BRIDGE.replace(
                "cfg.dataset.seq_length",
                "cfg.ddp.use_megatron_fsdp = True\n    cfg.dataset.seq_length",
            ),
            "Megatron's own FSDP",
        ),
    )

    def test_without_a_name_it_is_asked_for(self) -> None:
        with pytest.raises(DataError) as raised:
            launch_of_files([("mine.py", BRIDGE)], model=load_model(LLAMA), devices=8)
        assert "2 configurations: low_config, lora_config" in raised.value.message


class TestTorchtitanRegistry(Conformance):
    framework = "torchtitan"
    cases = (
        Case(
            files=(("registry.py", TITAN),),
            given=(("config", "big"),),
            model=LLAMA,
            devices=8,
            strategy="tp2 sp dp4 mbs2 zero3 recompute=full order=tp-cp-ep-dp-pp",
            job=(8192, 8, "fp8"),
            runtime="torchtitan-0.2",
        ),
        Case(
            files=(("registry.py", TITAN),),
            given=(("config", "small"),),
            model=LLAMA,
            devices=8,
            strategy="dp8 mbs4 zero3 recompute=full",
            job=(4096, 32, "bf16"),
            runtime="torchtitan-0.2",
        ),
    )
    refusals = (
        (
            "l.py",
            TITAN.replace("Float8LinearConverter", "LoRAConverter").split("def small")[0],
            "the converter loraconverter",
        ),
    )

    def test_a_command_beside_it_names_the_function(self) -> None:
        for name, parallel in (("big", 2), ("small", 1)):
            command = (
                f"torchrun -m torchtitan.train --module llama3 --config {name} --training.steps 5\n"
            )
            files = [("registry.py", TITAN), ("run.sh", command)]
            assert launch_of_files(files, model=load_model(LLAMA), devices=8).grid.tp == parallel

    def renamed(self) -> frozenset[str]:
        return frozenset(
            {
                "config",
                "trainingconfig",
                "parallelismconfig",
                "compileconfig",
                "model-registry",
                "training",
            }
        )


class TestManifests(Conformance):
    framework = "megatron"
    cases = (
        Case(
            files=(("job.yaml", PYTORCH_JOB),),
            model=LLAMA,
            devices=32,
            strategy=(
                "tp4 dp8 mbs1 zero1 recompute=none order=tp-cp-ep-dp-pp grad_overlap=off"
                " param_overlap=off"
            ),
            job=(4096, 64, "bf16"),
            runtime="megatron-core-0.12",
        ),
    )
    refusals = (
        (
            "none.yaml",
            (
                "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: [{image:"
                " a}]}}}\n"
            ),
            "says its command",
        ),
    )

    def test_another_number_of_devices_is_told(self) -> None:
        notes = " ".join(
            launch_of_files([("job.yaml", PYTORCH_JOB)], model=load_model(LLAMA), devices=16).notes
        )
        assert "the manifest asks for 32 devices" in notes

    def test_files_of_its_config_maps_are_the_launch(self) -> None:
        launch = launch_of_files([("job.yaml", TRAIN_JOB)], model=load_model(LLAMA), devices=16)
        assert (launch.framework, launch.grid.zero, launch.global_batch, launch.seq_len) == (
            "llama-factory",
            3,
            128,
            4096,
        )


def test_recipes_of_the_framework_have_a_number_for_every_field() -> None:
    for row in RECIPES.values():
        assert len(row.split()) == len(FIELDS)


@settings(max_examples=200, deadline=None)
@given(a=st.integers(0, 50), b=st.integers(1, 50), held=st.booleans())
def test_what_a_function_sets_is_what_python_computes(a: int, b: int, held: bool) -> None:
    """Arithmetic, arguments, conditions and inheritance of functions, as Python itself has them."""
    text = f"""X = {a}
def base(n=X, flag={held}):
    cfg = start_config()
    cfg.a.n = n * {b} + 1
    if flag and n >= {b}:
        cfg.a.m = n // {b}
    elif not flag:
        cfg.a.m = -n
    else:
        cfg.a.m = n if n != 3 else 7
    return cfg
def top():
    cfg = base({b}, flag=not {held})
    cfg.a.k = {a} % {b}
    return cfg
"""
    made: dict[str, object] = {}

    class Part:
        def __setattr__(self, name: str, value: object) -> None:
            made[name] = value

    start = type("Config", (), {"a": Part()})
    scope: dict[str, object] = {"start_config": start}
    exec(text, scope)
    for function in ("base", "top"):
        made.clear()
        scope[function]()  # type: ignore[operator]
        found = settings_of_recipe(text, "x.py", given={"recipe": function})
        assert found is not None
        assert {name: found.settings[f"a.{name}"] for name in made} == {
            name: str(value) for name, value in made.items()
        }


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
def test_hostile_python_is_one_error_of_the_project(text: str) -> None:
    with suppress(ShardwrightError):
        body = f"    cfg = x_config()\n    cfg.b = {text}\n    return cfg\n"
        found = settings_of_recipe(
            f"def a():\n{body}def b():\n{body}", "x.py", given={"recipe": "a"}
        )
        assert found is not None
        assert found.function == "a"
