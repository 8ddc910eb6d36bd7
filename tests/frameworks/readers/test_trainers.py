"""Launches of Transformers' Trainer and of frameworks built on it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.frameworks.read_launch import launch_of_files
from shardwright.model.catalog.load_model_by_name import load_model
from tests.frameworks.readers.conformance import Case, Conformance

LLAMA = "llama-3.1-8b"
DDP = "deepspeed-0.16"
FSDP = "torchtitan-0.2"
ZERO3 = (
    '{"zero_optimization": {"stage": 3, "overlap_comm": true}, "bf16": {"enabled": "auto"},'
    ' "train_batch_size": "auto"}'
)


class TestTransformers(Conformance):
    framework = "huggingface-trainer"
    cases = (
        Case(
            files=(
                (
                    "run.sh",
                    (
                        "torchrun --nproc_per_node=8 run_clm.py --model_name_or_path"
                        " meta-llama/Llama-3.1-8B --block_size 4096 --per_device_train_batch_size 2"
                        " --gradient_accumulation_steps 4 --bf16 True --fsdp 'full_shard auto_wrap'"
                        " --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer --learning_rate"
                        " 2e-5 --output_dir out\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=8,
            strategy="dp8 mbs2 zero3 recompute=none kernels=eager",
            job=(4096, 64, "bf16"),
            runtime=FSDP,
            assumed=("gradient-checkpointing false", "weights fp32"),
        ),
        Case(
            files=(
                (
                    "args.json",
                    (
                        '{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16,'
                        ' "bf16": true, "num_train_epochs": 1, "gradient_checkpointing": true,'
                        ' "deepspeed": "zero.json", "max_seq_length": 2048, "optim":'
                        ' "adamw_bnb_8bit"}'
                    ),
                ),
                ("zero.json", ZERO3),
            ),
            model=LLAMA,
            devices=16,
            strategy="dp16 mbs1 zero3 recompute=full moments=8bit",
            job=(2048, 256, "bf16"),
            runtime=DDP,
        ),
        Case(
            files=(
                (
                    "train.py",
                    (
                        "from transformers import TrainingArguments\n"
                        "args = TrainingArguments(output_dir='o', per_device_train_batch_size=4, "
                        "gradient_accumulation_steps=2, bf16=True, "
                        "gradient_checkpointing=True, num_train_epochs=2)\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=2,
            strategy="dp2 mbs4 zero0 recompute=full",
            job=(0, 16, "bf16"),
            runtime=DDP,
            assumed=("replicas (PyTorch DDP)",),
        ),
    )
    refusals = (
        (
            "a.json",
            '{"per_device_train_batch_size": 1, "num_train_epochs": 1, "deepspeed": "other.json"}',
            "names other.json",
        ),
        (
            "a.json",
            '{"per_device_train_batch_size": 1, "num_train_epochs": 1, "optim": "galore_adamw"}',
            "optimizer galore_adamw",
        ),
        (
            "a.yaml",
            "per_device_train_batch_size: 1\nnum_train_epochs: 1\nload_in_4bit: true\n",
            "QLoRA",
        ),
        (
            "a.yaml",
            "per_device_train_batch_size: 1\nnum_train_epochs: 1\nattn_implementation: eager\n",
            "attn-implementation eager",
        ),
        (
            "r.sh",
            "python finetune.py --per_device_train_batch_size 1 --num_train_epochs 1 --use_lora\n",
            "does not say their rank",
        ),
    )

    def renamed(self) -> frozenset[str]:
        return frozenset()


class TestTrl(Conformance):
    framework = "trl"
    cases = (
        Case(
            files=(
                (
                    "sft.yaml",
                    (
                        "model_name_or_path: meta-llama/Llama-3.1-8B\ndtype:"
                        " bfloat16\nattn_implementation: flash_attention_2\ndataset_name:"
                        " x/y\npacking: true\npacking_strategy: bfd\nmax_length:"
                        " 8192\nper_device_train_batch_size: 2\ngradient_accumulation_steps:"
                        " 8\nlearning_rate: 2.0e-05\nnum_train_epochs: 1\noutput_dir: out\n"
                    ),
                ),
                (
                    "zero3.yaml",
                    (
                        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage:"
                        " 3}\nmixed_precision: bf16\nnum_processes: 8\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=8,
            strategy="dp8 mbs2 zero3 recompute=full",
            job=(8192, 128, "bf16"),
            runtime=DDP,
            assumed=("gradient-checkpointing true",),
        ),
        Case(
            files=(
                (
                    "sft.sh",
                    (
                        "trl sft --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name x/y"
                        " --per_device_train_batch_size 4 --use_peft --lora_r 32 --lora_alpha 16"
                        " --lora_target_modules q_proj k_proj v_proj o_proj gate_proj up_proj"
                        " down_proj --gradient_accumulation_steps 2 --output_dir o\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=4,
            strategy="dp4 mbs4 zero0 recompute=full",
            job=(1024, 32, "bf16"),
            runtime=DDP,
            train="lora:r32",
            assumed=("seq-len 1024", "packing false", "counted at its full 1024 tokens"),
        ),
    )
    refusals = (
        (
            "dpo.sh",
            (
                "trl dpo --model_name_or_path a/b --per_device_train_batch_size 1 --beta 0.1"
                " --output_dir o\n"
            ),
            "trl dpo",
        ),
        (
            "grpo.yaml",
            (
                "reward_funcs: accuracy\nnum_generations: 8\nper_device_train_batch_size:"
                " 1\nuse_peft: false\n"
            ),
            "reinforcement",
        ),
        (
            "q.yaml",
            (
                "use_peft: true\nload_in_4bit: true\nper_device_train_batch_size:"
                " 1\npacking_strategy: ffd\n"
            ),
            "QLoRA",
        ),
    )


class TestLlamaFactory(Conformance):
    framework = "llama-factory"
    cases = (
        Case(
            files=(
                (
                    "full.yaml",
                    (
                        "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\ndo_train:"
                        " true\nfinetuning_type: full\ndeepspeed:"
                        " examples/deepspeed/ds_z3_offload_config.json\ndataset: a,b\ntemplate:"
                        " llama3\ncutoff_len: 4096\nper_device_train_batch_size:"
                        " 2\ngradient_accumulation_steps: 4\nlearning_rate: 1.0e-5\nbf16: true\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=8,
            strategy="dp8 mbs2 zero3 recompute=full offload=100 grad_overlap=off param_offload=on",
            job=(4096, 64, "bf16"),
            runtime=DDP,
            assumed=(
                "gradient-checkpointing true",
                "is the framework's own, with zero-optimization.stage 3",
            ),
        ),
        Case(
            files=(
                (
                    "lora.yaml",
                    (
                        "stage: pt\nfinetuning_type: lora\nlora_target:"
                        " q_proj,v_proj\nper_device_train_batch_size: 1\nfp16: true\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=2,
            strategy="dp2 mbs1 zero0 recompute=full",
            job=(2048, 2, "fp16"),
            runtime=DDP,
            train="lora:r8:qkv",
            assumed=("seq-len 2048", "adapters on q_proj, v_proj are counted"),
        ),
        Case(
            files=(
                (
                    "pure.yaml",
                    (
                        "finetuning_type: full\ncutoff_len: 1024\npure_bf16:"
                        " true\nper_device_train_batch_size: 1\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=1,
            strategy="dp1 mbs1 zero0 recompute=full",
            job=(1024, 1, "bf16-pure"),
            runtime=DDP,
        ),
        Case(
            files=(
                (
                    "mca.yaml",
                    (
                        "stage: sft\nfinetuning_type: full\ncutoff_len:"
                        " 4096\nper_device_train_batch_size: 1\ngradient_accumulation_steps:"
                        " 8\nbf16: true\ntensor_model_parallel_size:"
                        " 2\npipeline_model_parallel_size: 2\nsequence_parallel:"
                        " true\nuse_distributed_optimizer: true\noverlap_grad_reduce:"
                        " true\nrecompute_granularity: full\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=8,
            strategy=(
                "tp2 sp pp2 dp2 mbs1 zero1 recompute=full schedule=1f1b order=tp-cp-ep-dp-pp"
                " tp_overlap=dgrad param_overlap=off"
            ),
            job=(4096, 16, "bf16"),
            runtime="megatron-core-0.12",
        ),
    )
    refusals = (
        ("d.yaml", "stage: dpo\nfinetuning_type: lora\npref_loss: sigmoid\n", "stage dpo"),
        (
            "q.yaml",
            "stage: sft\nfinetuning_type: lora\nquantization_bit: 4\n",
            "quantization-bit 4",
        ),
        ("f.yaml", "stage: sft\nfinetuning_type: freeze\n", "finetuning-type freeze"),
        ("g.yaml", "stage: sft\nfinetuning_type: full\nuse_galore: true\n", "GaLore"),
        ("m.yaml", "finetuning_type: full\ndeepspeed: mine.json\n", "names mine.json"),
        ("r.sh", "llamafactory-cli train conf/mine.yaml\n", "names conf/mine.yaml"),
    )


class TestAxolotl(Conformance):
    framework = "axolotl"
    cases = (
        Case(
            files=(
                (
                    "fft.yaml",
                    (
                        "base_model: meta-llama/Llama-3.1-8B\ndatasets:\n  - path: a/b\n    type:"
                        " alpaca\nval_set_size: 0.05\nsequence_len: 8192\nsample_packing:"
                        " true\ngradient_accumulation_steps: 4\nmicro_batch_size: 1\nnum_epochs:"
                        " 1\noptimizer: paged_adamw_8bit\nbf16: auto\ntf32:"
                        " false\ngradient_checkpointing: true\nattn_implementation:"
                        " flash_attention_2\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=8,
            strategy="dp8 mbs1 zero0 recompute=full moments=8bit",
            job=(8192, 32, "bf16-pure"),
            runtime=DDP,
        ),
        Case(
            files=(
                (
                    "nd.yaml",
                    (
                        "base_model: meta-llama/Llama-3.1-8B\ndp_replicate_size: 2\ndp_shard_size:"
                        " 2\ntensor_parallel_size: 2\ncontext_parallel_size: 2\nfsdp_version:"
                        " 2\nfsdp_config:\n  offload_params: false\n  reshard_after_forward:"
                        " true\nsequence_len: 16384\nsample_packing: true\nmicro_batch_size:"
                        " 1\nbf16: true\noptimizer: adamw_torch_fused\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=16,
            strategy=(
                "tp2 cp2 cp-gather dp4 mbs1 zero3 shard4 recompute=none order=tp-cp-ep-dp-pp"
                " kernels=eager"
            ),
            job=(16384, 4, "bf16"),
            runtime=FSDP,
        ),
        Case(
            files=(
                (
                    "lora.yml",
                    (
                        "base_model: meta-llama/Llama-3.1-8B\nadapter: lora\nlora_r:"
                        " 16\nlora_target_linear: true\nsequence_len: 2048\nsample_packing:"
                        " false\nmicro_batch_size: 2\ndeepspeed:"
                        " deepspeed_configs/zero2.json\nplugins:"
                        " [axolotl.integrations.liger.LigerPlugin]\nliger_rms_norm: true\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=4,
            strategy="dp4 mbs2 zero2 recompute=none offload=100",
            job=(2048, 8, "bf16"),
            runtime=DDP,
            train="lora:r16",
            told=frozenset({"liger-rms-norm"}),
            assumed=(
                "zero2.json is the framework's own",
                "counted at its full 2048 tokens",
                "bf16 auto",
            ),
        ),
    )
    refusals = (
        (
            "q.yml",
            "base_model: a/b-8B\nadapter: qlora\nload_in_4bit: true\nsequence_len: 2048\n",
            "QLoRA",
        ),
        ("r.yml", "base_model: a/b-8B\nrl: dpo\nsequence_len: 2048\n", "rl dpo"),
        (
            "p.yml",
            "base_model: a/b-8B\nsequence_len: 2048\nplugins: [axolotl.integrations.kd.KDPlugin]\n",
            "plugins",
        ),
        (
            "s.yml",
            (
                "base_model: a/b-8B\nsequence_len: 2048\nlora_modules_to_save:"
                " [embed_tokens]\nadapter: lora\n"
            ),
            "whole modules",
        ),
    )


class TestSwift(Conformance):
    framework = "ms-swift"
    cases = (
        Case(
            files=(
                (
                    "full.sh",
                    (
                        "NPROC_PER_NODE=8 swift sft --model meta-llama/Llama-3.1-8B --tuner_type"
                        " full --torch_dtype bfloat16 --per_device_train_batch_size 1 --max_length"
                        " 4096 --deepspeed zero3 --gradient_checkpointing false --dataset a\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=8,
            strategy="dp8 mbs1 zero3 recompute=none grad_overlap=off",
            job=(4096, 16, "bf16"),
            runtime=DDP,
            assumed=("gradient_accumulation_steps 2",),
        ),
        Case(
            files=(
                (
                    "lora.sh",
                    (
                        "n=2\nswift sft --model meta-llama/Llama-3.1-8B --torch_dtype bfloat16"
                        " --lora_rank 16 --target_modules all-linear --gradient_accumulation_steps"
                        " $(expr 16 / $n) --max_length 2048 --packing true --fsdp fsdp2\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=2,
            strategy="dp2 mbs1 zero3 recompute=full kernels=eager",
            job=(2048, 16, "bf16"),
            runtime=FSDP,
            train="lora:r16",
        ),
        Case(
            files=(
                (
                    "core.sh",
                    (
                        "megatron sft --model Qwen/Qwen3-30B-A3B --pipeline_model_parallel_size 2"
                        " --expert_model_parallel_size 4 --sequence_parallel true"
                        " --micro_batch_size 1 --global_batch_size 32 --recompute_granularity full"
                        " --recompute_method uniform --recompute_num_layers 1 --max_length 8192"
                        " --packing true --save_safetensors true\n"
                    ),
                ),
            ),
            model="qwen3-30b-a3b",
            devices=8,
            strategy=(
                "ep4 pp2 dp4 mbs1 zero1 recompute=full schedule=1f1b order=tp-cp-ep-dp-pp"
                " attention=flash-2 loss=native grad_overlap=off param_overlap=off"
            ),
            job=(8192, 32, "bf16"),
            runtime="megatron-core-0.12",
            assumed=("expert-tensor-parallel-size 1", "use-distributed-optimizer true"),
        ),
    )
    refusals = (
        ("r.sh", "swift rlhf --rlhf_type dpo --model a/b --deepspeed zero2\n", "swift rlhf"),
        ("m.sh", "megatron rlhf --rlhf_type dpo --model a/b\n", "megatron rlhf"),
        ("q.sh", "swift sft --model a/b --quant_bits 4 --max_length 1024\n", "quant-bits 4"),
        ("e.sh", "swift sft --model a/b --attn_impl eager --max_length 1024\n", "attn-impl eager"),
    )


@settings(max_examples=60, deadline=None)
@given(
    micro=st.integers(1, 8), steps=st.integers(1, 8), power=st.integers(0, 6), sharded=st.booleans()
)
def test_a_step_has_the_samples_of_all_replicas(
    micro: int, steps: int, power: int, sharded: bool
) -> None:
    """Whatever shards the states, and however many devices there are."""
    text = (
        "finetuning_type: full\ncutoff_len: 1024\nper_device_train_batch_size:"
        f" {micro}\ngradient_accumulation_steps: {steps}\nbf16: true\n"
    )
    text += "fsdp: full_shard auto_wrap\n" if sharded else ""
    launch = launch_of_files([("a.yaml", text)], model=load_model(LLAMA), devices=2**power)
    assert (
        launch.global_batch
        == micro * steps * 2**power
        == launch.grid.dp * launch.grid.microbatch * steps
    )
    assert launch.grid.zero == (3 if sharded and power else 0)
