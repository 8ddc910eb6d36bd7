swift rlhf --rlhf_type dpo --model a/b --deepspeed zero2
