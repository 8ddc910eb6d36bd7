"""GPT-NeoX's YAML, read as Megatron-DeepSpeed's arguments."""
