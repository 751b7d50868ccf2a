#!/usr/bin/env python3
"""draw_plan_jobs.py [COUNT [SEED]]: random jobs of every model, one JSON line each, as
tests/models/plan_corpus_test.cpp plans them. Machines are bundled ones, budgets are given."""
import json
import math
import random
import sys

GB = 1_000_000_000
# Names and memory as src/plan/profile.cpp has them.
TARGETS = {"h200": 141, "gh200": 96, "b200": 180, "a100": 80, "rtx3090": 24, "rtx3080": 10, "a6000": 48,
           "rtx4090": 24, "rtx4070ti": 12, "l40s": 48, "rtx5090": 32, "rtx5080": 16}
FP8_UNITS = {"h200", "gh200", "b200", "rtx4090", "rtx4070ti", "l40s", "rtx5090", "rtx5080"}
WAN = {"wan2.2-ti2v-5b": (16, 48), "wan2.2-t2v-a14b": (8, 16), "wan2.2-i2v-a14b": (8, 16),
       "wan2.1-t2v-1.3b": (8, 16), "wan2.1-t2v-14b": (8, 16)}
SIZES = [(256, 256), (480, 832), (832, 480), (512, 512), (720, 1280), (704, 1280)]
SOME_FRAMES = [1, 5, 17, 33, 49, 81]


def spread(draw, least, most):
    """Evenly on a logarithmic scale, in GB."""
    return round(math.exp(draw.uniform(math.log(least), math.log(most))), 2)


def machine(draw, least_gpu=1.5):
    target = draw.choice(list(TARGETS))
    gpu = draw.choice([TARGETS[target] * 0.95, spread(draw, least_gpu, TARGETS[target])])
    ram = draw.choice([8, 16, 24, 32, 64, 128, 256, spread(draw, 3, 512)])
    disk = draw.choice([0, 0, spread(draw, 10, 2000)])
    return {"target": target, "gpu": int(gpu * GB), "ram": int(ram * GB), "disk": int(disk * GB),
            "deterministic": draw.random() < 0.8}


def latent(draw, model, most_tokens=40_000):
    side = WAN[model][0]
    while True:
        height, width = draw.choice(SIZES)
        z = [(draw.choice(SOME_FRAMES) - 1) // 4 + 1, height // side // 2 * 2, width // side // 2 * 2]
        if z[0] * z[1] * z[2] // 4 <= most_tokens:
            return z


def optimizer(draw, kinds):
    kind = draw.choice(kinds)
    job = {"optimizer": kind}
    if kind == "adamw" and draw.random() < 0.4:
        job |= {"state": "bf16", "rounding": "stochastic"}
    return job


def switches(draw):
    if draw.random() < 0.8:
        return {}
    return {"checkpointing": draw.choice(["automatic", "on", "off"]),
            "offloading": draw.choice(["automatic", "on", "off"])}


def wan(draw):
    model = draw.choice(list(WAN))
    mode = draw.choices(["infer", "lora", "full"], [3, 5, 2])[0]
    job = {"kind": "wan", "model": model, "mode": mode} | machine(draw)
    kinds = draw.choice([1, 1, 1, 2])
    samples = draw.choice([1, 1, 1, 2, 4]) if mode != "infer" else 1
    job["batches"] = [[latent(draw, model)] * samples for _ in range(kinds)]
    if mode != "full":
        formats = ["stored"] * 4 + ["fp8", "fp8_e5m2", "fp8_rows", "int8"]
        job["format"] = draw.choice(formats)
        if mode == "infer" and job["target"] in FP8_UNITS and draw.random() < 0.15:
            job |= {"format": "fp8_rows", "fp8_matmul": True}
        if "a14b" in model and draw.random() < 0.4:
            job["experts"] = 2
    else:
        job["stored"] = draw.choice(["bf16", "f32"])
    if mode == "lora":
        job["rank"] = draw.choice([8, 16, 32, 128])
    if mode != "infer":
        job |= optimizer(draw, ["adamw", "adamw", "adamw8bit", "adafactor"])
    return job | switches(draw)


def dmd2(draw):
    model = draw.choice(["wan2.2-ti2v-5b", "wan2.1-t2v-1.3b", "wan2.1-t2v-14b"])
    job = {"kind": "wan", "model": model, "mode": "lora", "distil": True} | machine(draw)
    return job | {"batches": [[latent(draw, model)]], "rank": draw.choice([16, 64])} | optimizer(draw, ["adamw"])


def taught(draw):
    job = {"kind": "wan", "model": "wan2.1-t2v-1.3b", "mode": "full", "teacher": "wan2.1-t2v-14b"}
    job |= machine(draw) | {"batches": [[latent(draw, "wan2.1-t2v-1.3b")]]}
    job |= {"teacher_format": draw.choice(["stored", "fp8"]), "guided": draw.random() < 0.5}
    return job | optimizer(draw, ["adamw", "adamw8bit"])


def t5(draw):
    model = draw.choice(["t5-v1.1-base", "t5-v1.1-large", "t5-v1.1-xl", "t5-v1.1-xl", "t5-v1.1-xxl", "t5-3b"])
    job = {"kind": "t5", "model": model} | machine(draw)
    source = draw.choice([128, 512, 1024])
    job["batches"] = [[draw.choice([1, 2, 8, 16]), source, draw.choice([64, 256])]]
    if draw.random() < 0.3:
        job["rank"] = draw.choice([8, 32])
    job["stored"] = draw.choice(["bf16", "f32"])
    job["gradient"] = draw.choice(["f32", "bf16"])
    job["runs"] = draw.choice([1, 1, 4])
    return job | optimizer(draw, ["adamw", "adamw8bit", "adafactor"]) | switches(draw)


def vae_latent(draw, model):
    side = 8 if model == "wan2.1-vae" else 16
    height, width = draw.choice(SIZES)
    return [1, height // side, width // side]


def vae(draw):
    model = draw.choice(["wan2.1-vae", "wan2.2-vae"])
    job = {"kind": "vae", "model": model, "mode": draw.choice(["decode", "decode", "encode"])}
    return job | machine(draw, 0.8) | {"latent": vae_latent(draw, model), "dtype": draw.choice(["bf16", "f32"])}


def vae_training(draw):
    model = draw.choice(["wan2.1-vae", "wan2.2-vae"])
    side = 8 if model == "wan2.1-vae" else 16
    clip = [draw.choice([1, 2, 5]), *[draw.choice([128, 256, 480]) // side for _ in range(2)]]
    job = {"kind": "vae_training", "model": model} | machine(draw, 4)
    job |= {"clips": [clip], "dtype": draw.choice(["bf16", "f32"]), "train_encoder": draw.random() < 0.7}
    return job | optimizer(draw, ["adamw", "adamw8bit"])


def pair(draw):
    job = {"kind": "pair", "model": draw.choice(["wan2.1-t2v-1.3b", "wan2.1-t2v-14b", "wan2.2-t2v-a14b"])}
    job |= machine(draw) | {"format": draw.choice(["stored", "fp8"])}
    job |= {"width": draw.choice([512, 1024]), "depth": draw.choice([8, 16]), "image": draw.choice([256, 512, 1024])}
    job |= {"batch": draw.choice([1, 2, 4]), "runs": draw.choice([1, 1, 4]), "recompute": draw.random() < 0.2}
    return job | optimizer(draw, ["adamw", "adamw8bit"])


def main():
    count, seed = (int(a) for a in (sys.argv[1:] + ["300", "1"][len(sys.argv) - 1:]))
    draw = random.Random(seed)
    kinds = [wan] * 13 + [dmd2, taught] + [t5] * 5 + [vae] * 4 + [vae_training] * 3 + [pair] * 3
    for _ in range(count):
        print(json.dumps({"job": draw.choice(kinds)(draw)}))


if __name__ == "__main__":
    main()
