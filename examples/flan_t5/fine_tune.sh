#!/bin/sh
# Full fine-tune of FLAN-T5-XL in bf16 with 8-bit AdamW states.
#   fine_tune.sh MODEL_FOLDER TRAIN.jsonl OUTPUT_FOLDER [more flags]
# Run it again after a crash with --resume-from-checkpoint.
set -eu
model=$1 texts=$2 output=$3
shift 3
exec ballast train \
  --pretrained-model "$model" --model-output "$output" --train-file "$texts" \
  --epochs 3 --batch-size 8 --gradient-accumulation-steps 16 \
  --optim adamw_bnb_8bit --gradient_dtype bf16 --gradient_checkpointing --pad_to_multiple_of 8 "$@"
