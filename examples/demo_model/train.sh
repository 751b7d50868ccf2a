#!/usr/bin/env bash
# Makes a small text-to-video model from nothing but seeds.
#   train.sh FOLDER            all of it
#   train.sh FOLDER STEP...    some of: clips vae latents transformer decoder model
# Clips are read with FFmpeg where they are cached (clips, latents); the trainings (vae, transformer,
# decoder) read the caches alone, so they may run on another machine, in a copy of the folder.
# ballast and demo_model are taken from PATH, else from build/release/bin. TRAIN_FLAGS goes to `ballast
# train`: TRAIN_FLAGS='--device cuda' train.sh ...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PATH=$PATH:$here/../../build/release/bin
folder=${1:?a folder to work in}
shift
steps=${*:-clips vae latents transformer decoder model}
mkdir -p "$folder"
cp "$here"/*.toml "$folder"
cd "$folder"

clips() { # what there is to see, weights to begin with, and the clips as the VAE reads them
  demo_model first first
  demo_model clips shapes clips/shapes
  demo_model clips base clips/base
  ballast cache vae.toml
}

vae() {
  ballast train vae.toml --trust_cache ${TRAIN_FLAGS:-}
}

latents() { # of a few clips with the VAE as it was trained; of all when those have unit size
  rm -rf model clips/few clips/base/cache
  cp -r first model
  cp "$(ls -t runs/vae/*/*/model.safetensors | head -n 1)" model/vae.safetensors
  demo_model clips base clips/few --repeats 1
  sed 's,clips/base,clips/few,' base_clips.toml >few_clips.toml
  sed 's,base_clips,few_clips,' transformer.toml >few.toml
  ballast cache few.toml
  demo_model centre model/vae.safetensors clips/few/cache/wan centred.safetensors --bf16
  mv centred.safetensors model/vae.safetensors
  ballast cache transformer.toml
}

transformer() {
  ballast train transformer.toml --trust_cache ${TRAIN_FLAGS:-}
}

decoder() { # further, with the encoder as it is: latents, and so the transformer, stay what they are
  ballast train decoder.toml --trust_cache ${TRAIN_FLAGS:-}
}

model() { # as it is committed
  cp "$(ls -t runs/transformer/*/*/model.safetensors | head -n 1)" \
    model/transformer/diffusion_pytorch_model.safetensors
  cp "$(ls -t runs/decoder/*/*/model.safetensors | head -n 1)" model/vae.safetensors
  rm -rf "$here/model"
  cp -r model "$here/model"
  du -sb "$here/model"
}

for step in $steps; do
  printf '== %s\n' "$step"
  "$step"
done
