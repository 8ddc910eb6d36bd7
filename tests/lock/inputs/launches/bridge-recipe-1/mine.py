from megatron.bridge.recipes.common import _pretrain_common, _peft_common

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
