from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig


def big() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry(
            "8B", converters=[Float8LinearConverter.Config(filter_fqns=["output"])]
        ),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192, steps=10
        ),
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
