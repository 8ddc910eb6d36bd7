tune run full_finetune_distributed --config llama3_1/8B_full
