#!/bin/bash
# Settings of Megatron-LM's example of 175B (examples/gpt3/train_gpt3_175b_distributed.sh at 157006d), in a script of our own.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8
NODES=1
WORLD_SIZE=$(($GPUS*$NODES))
VOCAB=$3 #<path>
LAUNCH=(
    --nproc_per_node $GPUS
    --nnodes $NODES
)
MODEL=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # or another
)
TRAINING=(
    --micro-batch-size 1
    --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --train-iters 500000
    --fp16
    --lr 6.0e-5
)
SPLIT=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)
torchrun ${LAUNCH[@]} pretrain_gpt.py \
    ${MODEL[@]} \
    ${TRAINING[@]} \
    ${SPLIT[@]} \
    --vocab-file $VOCAB --split 949,50,1
