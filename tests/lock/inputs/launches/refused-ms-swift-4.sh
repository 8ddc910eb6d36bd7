swift sft --model a/b --attn_impl eager --max_length 1024
