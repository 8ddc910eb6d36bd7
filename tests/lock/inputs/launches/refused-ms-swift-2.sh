megatron rlhf --rlhf_type dpo --model a/b
