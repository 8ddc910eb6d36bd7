#!/bin/bash
# Settings of Megatron-LM's example of Llama 3 8B in fp8 (examples/llama/train_llama3_8b_h100_fp8.sh at 157006d), in a script of our own.
PLACE=${1:-"kept/llama3"}
TOKENIZER=${3:-"MOCK"}
DATA=${4:-"MOCK"}
mkdir -p "$(dirname "$PLACE")"
TP_SIZE=1     
DTYPE="fp8"
CACHE="${PWD}/cache"
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 1000000 
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --swiglu
    --attention-backend fused
    --apply-layernorm-1p 
    --untie-embeddings-and-output-weights
    --disable-bias-linear 
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --bf16
    --grad-reduce-in-bf16
    --cross-entropy-loss-fusion
    --calculate-per-token-loss 
    --manual-gc 
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-param-gather"
    )
fi
SPLIT_ARGS=(
    --tensor-model-parallel-size $TP_SIZE
    # --pipeline-model-parallel-size 1
    --sequence-parallel  # always
)
DDP_ARGS=(
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
TRAINING_ARGS+=("${DDP_ARGS[@]}")
DATA_ARGS=()
if [[ "$TOKENIZER" == "MOCK" ]] || [[ "$DATA" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    DATA_ARGS+=(
        "--mock-data"
        "--vocab-size 128256" 
        "--data-cache-path ${CACHE}"
        "--split '99,1,0'"
    )
else
    DATA_ARGS+=("--data-path $DATA")
fi
if [ ! -f "pretrain_gpt.py" ]; then
    echo "no pretrain_gpt.py"
    exit 1
fi
torchrun --nproc_per_node 8 --nnodes 1 \
    "pretrain_gpt.py" \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${DTYPE_ARGS[@]} \
    ${SPLIT_ARGS[@]} \
    ${DATA_ARGS[@]}
set +x
