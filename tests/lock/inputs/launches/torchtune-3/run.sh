tune run --nproc_per_node 2 lora_finetune_distributed --config lora.yaml batch_size=1 dtype=fp32
