#!/bin/sh
# Full fine-tune of TI2V-5B with flow matching, on latents and text embeddings beside the
# media (X.latent.safetensors and X.safetensors for X.mp4).
exec ballast train \
  --model models/wan2.2_ti2v_5B_fp16.safetensors \
  --dataset_path dataset \
  --batch_size 1 \
  --num_epochs 10 \
  --learning_rate 1e-5 \
  --gradient_checkpointing \
  --use_8bit_adam \
  --rounding stochastic \
  --checkpoint_dir checkpoints \
  --gpu 48GB --ram 64GB
