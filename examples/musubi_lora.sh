#!/bin/sh
# musubi-tuner's command line for a LoRA on the high-noise expert of Wan2.2 T2V A14B, as it is; the
# last line is Ballast's own.
exec ballast train \
  --task t2v-A14B \
  --dit models/wan2.2_t2v_high_noise_14B_fp16.safetensors \
  --dataset_config examples/musubi_dataset.toml \
  --sdpa --mixed_precision bf16 --fp8_base \
  --optimizer_type adamw8bit --learning_rate 2e-4 --optimizer_args weight_decay=0.1 \
  --gradient_checkpointing --max_data_loader_n_workers 2 --persistent_data_loader_workers \
  --network_module networks.lora_wan --network_dim 32 --network_alpha 16 \
  --timestep_sampling shift --discrete_flow_shift 3.0 \
  --min_timestep 875 --max_timestep 1000 --preserve_distribution_shape \
  --max_train_epochs 16 --save_every_n_epochs 1 --save_state --seed 42 \
  --output_dir output --output_name motion_high \
  --gpu 24GB --ram 32GB
