python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
    data.train_batch_size=256 data.max_prompt_length=1024 data.max_response_length=3072 \
    actor_rollout_ref.model.path=meta-llama/Llama-3.1-8B actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.strategy=veomni actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm \
    trainer.n_gpus_per_node=8 trainer.nnodes=2 $@
