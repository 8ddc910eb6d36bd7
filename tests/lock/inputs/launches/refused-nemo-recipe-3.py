from nemo.collections import llm
import nemo_run as run

NODES = 2


def mine(nodes: int = NODES):
    recipe = llm.llama3_8b.pretrain_recipe(
        performance_mode=True, num_nodes=nodes, num_gpus_per_node=8
    )
    recipe.trainer.strategy.tensor_model_parallel_size = 2
    recipe.trainer.strategy.context_parallel_size = 1
    if nodes > 1:
        recipe.data.global_batch_size = 64 * nodes
    recipe.trainer.max_steps = 100
    return recipe


if __name__ == "__main__":
    run.run(mine(), executor=run.LocalExecutor())
