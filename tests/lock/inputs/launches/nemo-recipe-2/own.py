import nemo_run as run
from nemo import lightning as nl


def trainer(tp: int = 1, pp: int = 1, sp: bool = False):
    strategy = run.Config(
        nl.MegatronStrategy,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        sequence_parallel=sp,
        virtual_pipeline_model_parallel_size=None,
        ddp=run.Config(DistributedDataParallelConfig, grad_reduce_in_fp32=True),
    )
    return run.Config(nl.Trainer, strategy=strategy, plugins=bf16_mixed(), num_nodes=1, devices=8)


def pretrain_recipe(fn=None):
    return run.Partial(
        fn,
        trainer=trainer(tp=4, sp=True),
        data=run.Config(MockDataModule, seq_length=4096, global_batch_size=32, micro_batch_size=2),
    )


def finetune_recipe(fn=None):
    return run.Partial(
        fn,
        trainer=trainer(),
        data=run.Config(MockDataModule, seq_length=2048, global_batch_size=8, micro_batch_size=1),
    )
