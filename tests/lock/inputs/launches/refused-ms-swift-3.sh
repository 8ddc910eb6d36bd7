swift sft --model a/b --quant_bits 4 --max_length 1024
