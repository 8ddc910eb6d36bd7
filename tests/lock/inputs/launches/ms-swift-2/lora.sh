n=2
swift sft --model meta-llama/Llama-3.1-8B --torch_dtype bfloat16 --lora_rank 16 --target_modules all-linear --gradient_accumulation_steps $(expr 16 / $n) --max_length 2048 --packing true --fsdp fsdp2
