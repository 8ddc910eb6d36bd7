"""Launches of torchtune, verl, GPT-NeoX and Primus."""

from __future__ import annotations

from tests.frameworks.readers.conformance import Case, Conformance

LLAMA = "llama-3.1-8b"
TUNE = """output_dir: /tmp/out
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: /tmp/t, max_seq_len: 4096}
dataset: {_component_: torchtune.datasets.alpaca_cleaned_dataset, packed: true}
model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: /tmp/c}
batch_size: 2
epochs: 1
optimizer: {_component_: torch.optim.AdamW, lr: 2.0e-5, fused: true}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
gradient_accumulation_steps: 4
enable_activation_checkpointing: true
dtype: bf16
"""
VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_batch_size=256 data.max_prompt_length=1024 data.max_response_length=3072 \\
    actor_rollout_ref.model.path=meta-llama/Llama-3.1-8B actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 {actor} \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm \\
    trainer.n_gpus_per_node=8 trainer.nnodes=2 $@
"""
NEOX = """{
  "pipe_parallel_size": 2, "model_parallel_size": 2,
  "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 2048,\
 "no_weight_tying": true, "norm": "rmsnorm",
  "attention_config": [[["flash"], 32]],
  "zero_optimization": {"stage": 1, "overlap_comm": true, "reduce_bucket_size": 500000000},
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
  "checkpoint_activations": true, "checkpoint_num_layers": 1,
  "optimizer": {"type": "Adam", "params": {"lr": 0.0002}},
  "scaled_upper_triang_masked_softmax_fusion": true, "bias_gelu_fusion": true,
  "fp16": {"enabled": true, "loss_scale": 0}
}
"""
PRIMUS = """work_group: amd
exp_name: mine
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3_8B.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: 128
      seq_length: ${SEQ:8192}
      tensor_model_parallel_size: ${TP:2}
      sequence_parallel: 1
      overlap_grad_reduce: true
      overlap_param_gather: true
      gradient_accumulation_fusion: false
      recompute_granularity: full
      recompute_method: block
      recompute_num_layers: 8
      mock_data: true
"""
TITAN = """work_group: amd
modules:
  pre_trainer:
    framework: torchtitan
    config: pre_trainer.yaml
    model: llama3.1_8B.yaml
    overrides:
      training: {batch_size: 4, seq_len: 4096}
      parallelism: {tensor_parallel_degree: 2}
      activation_checkpoint: {mode: full}
"""


class TestTorchtune(Conformance):
    framework = "torchtune"
    cases = (
        Case(
            files=(("full.yaml", TUNE),),
            model=LLAMA,
            devices=8,
            strategy=(
                "dp8 mbs2 zero3 recompute=full kernels=eager linear_loss=chunked grad_dtype=bf16"
            ),
            job=(4096, 64, "bf16-pure"),
            runtime="torchtitan-0.2",
            assumed=("fsdp.reshard-after-forward true",),
        ),
        Case(
            files=(
                (
                    "tp.yaml",
                    (
                        f"{TUNE}tensor_parallel_dim: 2\ndata_parallel_replicate_dim: 2\ncompile:"
                        " true\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=8,
            strategy=(
                "tp2 sp dp4 mbs2 zero3 shard2 recompute=full order=tp-cp-ep-dp-pp"
                " linear_loss=chunked grad_dtype=bf16"
            ),
            job=(4096, 32, "bf16-pure"),
            runtime="torchtitan-0.2",
        ),
        Case(
            files=(
                (
                    "lora.yaml",
                    TUNE.replace(
                        "llama3_1.llama3_1_8b",
                        "llama3_1.lora_llama3_1_8b, lora_attn_modules: [q_proj, v_proj],"
                        " lora_rank: 16",
                    ),
                ),
                (
                    "run.sh",
                    (
                        "tune run --nproc_per_node 2 lora_finetune_distributed --config lora.yaml"
                        " batch_size=1 dtype=fp32\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=2,
            strategy="dp2 mbs1 zero3 recompute=full kernels=eager linear_loss=chunked",
            job=(4096, 8, "fp32"),
            runtime="torchtitan-0.2",
            train="lora:r16:qkv",
        ),
    )
    refusals = (
        ("q.yaml", TUNE.replace("llama3_1.llama3_1_8b", "llama3_1.qlora_llama3_1_8b"), "QLoRA"),
        (
            "d.yaml",
            TUNE.replace(
                "torchtune.modules.loss.LinearCrossEntropyLoss", "torchtune.rlhf.loss.DPOLoss"
            ),
            "dpoloss",
        ),
        ("b.yaml", f"{TUNE}optimizer_in_bwd: true\n", "optimizer-in-bwd true"),
        ("o.yaml", f"{TUNE}enable_activation_offloading: true\n", "saved activations"),
        (
            "r.sh",
            "tune run full_finetune_distributed --config llama3_1/8B_full\n",
            "names llama3_1/8B_full",
        ),
    )


class TestVerl(Conformance):
    framework = "verl"
    cases = (
        Case(
            files=(
                (
                    "fsdp.sh",
                    VERL.format(actor="actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"),
                ),
            ),
            model=LLAMA,
            devices=16,
            strategy="dp16 mbs4 zero3 recompute=full kernels=eager",
            job=(4096, 512, "bf16"),
            runtime="torchtitan-0.2",
            assumed=(
                "the actor's training step alone",
                "gradient-checkpointing true",
                "4096 tokens of prompt and response",
            ),
        ),
        Case(
            files=(
                (
                    "sp.sh",
                    VERL.format(
                        actor=(
                            "actor_rollout_ref.actor.use_dynamic_bsz=True"
                            " actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192"
                            " actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"
                            " actor_rollout_ref.actor.fsdp_config.param_offload=True"
                        )
                    ),
                ),
            ),
            model=LLAMA,
            devices=16,
            strategy="cp2 ulysses2 dp8 mbs4 zero3 recompute=full order=tp-cp-ep-dp-pp",
            job=(4096, 512, "bf16"),
            runtime="deepspeed-0.16",
            told=frozenset({"actor-rollout-ref.actor.fsdp-config.param-offload"}),
            assumed=("a microbatch of up to 16,384 tokens is 4 of the longest samples",),
        ),
        Case(
            files=(
                (
                    "core.sh",
                    VERL.format(
                        actor=(
                            "--config-name=ppo_megatron_trainer.yaml"
                            " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
                            " actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4"
                            " +actor_rollout_ref.actor.megatron.override_transformer_config"
                            ".recompute_granularity=full"
                            " +actor_rollout_ref.actor.megatron.override_transformer_config"
                            ".recompute_method=uniform"
                            " actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2"
                        )
                    ),
                ),
            ),
            model=LLAMA,
            devices=16,
            strategy=(
                "tp4 sp pp2 dp2 mbs1 zero1 recompute=full schedule=1f1b order=tp-cp-ep-dp-pp"
                " attention=flash-2 tp_overlap=dgrad grad_overlap=off param_overlap=off"
            ),
            job=(4096, 512, "bf16"),
            runtime="megatron-core-0.12",
        ),
        Case(
            files=(
                (
                    "sft.sh",
                    (
                        "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer"
                        " data.train_batch_size=128 data.max_length=2048"
                        " data.micro_batch_size_per_gpu=2"
                        " model.partial_pretrain=meta-llama/Llama-3.1-8B model.lora_rank=32"
                        " model.target_modules=all-linear model.fsdp_config.model_dtype=bf16\n"
                    ),
                ),
            ),
            model=LLAMA,
            devices=8,
            strategy="dp8 mbs2 zero3 recompute=full kernels=eager grad_dtype=bf16",
            job=(2048, 128, "bf16"),
            runtime="torchtitan-0.2",
            train="lora:r32",
        ),
    )
    refusals = (
        (
            "n.sh",
            VERL.format(actor="actor_rollout_ref.actor.use_kl_loss=True"),
            "how many samples a microbatch",
        ),
        (
            "v.sh",
            VERL.format(
                actor=(
                    "actor_rollout_ref.actor.strategy=veomni"
                    " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
                )
            ),
            "actor.strategy veomni",
        ),
    )

    def renamed(self) -> frozenset[str]:
        return frozenset()


class TestGptNeox(Conformance):
    framework = "gpt-neox"
    cases = (
        Case(
            files=(("model.yml", NEOX),),
            model=LLAMA,
            devices=32,
            strategy=(
                "tp2 pp2 dp8 mbs4 zero1 recompute=full schedule=1f1b order=tp-cp-ep-dp-pp"
                " attention=flash-2"
            ),
            job=(2048, 256, "fp16"),
            runtime="deepspeed-2022",
            assumed=("hidden-dropout 0",),
            told=frozenset({"zero-optimization.reduce-bucket-size"}),
        ),
        Case(
            files=(
                (
                    "a.yml",
                    NEOX.replace('"num_layers": 32', '"num_layers": 24').replace(
                        '"fp16"', '"bf16"'
                    ),
                ),
                ("b.yml", "train_batch_size: 64\n"),
            ),
            model=LLAMA,
            devices=8,
            strategy=(
                "tp2 pp2 dp2 mbs4 zero1 recompute=full schedule=1f1b order=tp-cp-ep-dp-pp"
                " attention=flash-2 bf16_optimizer=on"
            ),
            job=(2048, 64, "bf16"),
            runtime="deepspeed-2022",
            told=frozenset({"zero-optimization.reduce-bucket-size"}),
            different=frozenset({"num-layers"}),
        ),
    )
    refusals = (
        ("m.yml", NEOX.replace('"norm"', '"moe_num_experts": 8, "norm"'), "moe-num-experts 8"),
        ("o.yml", NEOX.replace('"Adam"', '"OneBitAdam"'), "optimizer.type OneBitAdam"),
        (
            "s.yml",
            '{"pipe_parallel_size": 1, "model_parallel_size": 1, "no_weight_tying": true}',
            "train_micro_batch_size_per_gpu",
        ),
    )


class TestPrimus(Conformance):
    framework = "primus"
    cases = (
        Case(
            files=(("m.yaml", PRIMUS),),
            model=LLAMA,
            devices=8,
            strategy=(
                "tp2 sp dp4 mbs2 zero1 recompute=full:8 order=tp-cp-ep-dp-pp wgrad_fusion=off"
                " tp_overlap=dgrad"
            ),
            job=(8192, 128, "bf16"),
            runtime="megatron-core-0.12",
            assumed=("use-distributed-optimizer true", "TP is 2, its default in the file"),
        ),
        Case(
            files=(("t.yaml", TITAN),),
            model=LLAMA,
            devices=8,
            strategy="tp2 sp dp4 mbs4 zero3 recompute=full order=tp-cp-ep-dp-pp kernels=eager",
            job=(4096, 16, "bf16"),
            runtime="torchtitan-0.2",
        ),
    )
    refusals = (
        (
            "z.yaml",
            PRIMUS.replace("mock_data: true", "enable_zero_bubble: true"),
            "enable-zero-bubble",
        ),
        (
            "j.yaml",
            PRIMUS.replace("framework: megatron", "framework: maxtext"),
            "framework maxtext",
        ),
    )
