"""Small real jobs with the demo model: what matrix.py disturbs.

A job runs in a folder of its own, with relative paths, and is deterministic: its outputs have the same
bits however often it was interrupted.
"""
import hashlib
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import zlib

WORDS = ("zero one two three four five six seven eight nine red blue green cat dog say count of and "
         "to").split()

RUN = """output_dir = 'out'
dataset = 'set.toml'
epochs = 2
save_every_n_steps = 3
checkpoint_every_n_steps = 2
uncond_fraction = 0.5
seed = 3
[model]
type = 'wan'
ckpt_path = '{model}'
dtype = 'bfloat16'
[adapter]
type = 'lora'
rank = 2
dtype = 'float32'
[optimizer]
type = 'adamw'
lr = 1e-3
"""
SET = "resolutions = [32]\nframe_buckets = [1]\n[[directory]]\npath = 'clips'\n"
STUDENT = {"hidden_size": 32, "depth": 2, "num_heads": 2, "num_channels": 4, "image_size": 128,
           "patch_size": 16, "text_max_length": 77, "text_encoder_output_dim": 128}


def png(color, side=32):
    """A square of a colour on a dark ground."""
    rows = bytearray()
    for y in range(side):
        rows.append(0)
        for x in range(side):
            rows += bytes(color if 8 <= x < 24 and 8 <= y < 24 else (20, 20, 20))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(rows)))
            + chunk(b"IEND", b""))


def safetensors(tensors):
    """A file of float32 tensors: name -> (shape, values)."""
    header, data = {}, bytearray()
    for name, (shape, values) in tensors.items():
        begin = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def text_model(folder):
    """A T5 of random weights, as Hugging Face stores one."""
    d_model, d_kv, d_ff, heads, layers, vocabulary = 32, 8, 48, 3, {"encoder": 2, "decoder": 2}, 24
    inner = d_kv * heads
    shapes = {"shared.weight": (vocabulary, d_model), "lm_head.weight": (vocabulary, d_model)}
    for side, count in layers.items():
        shapes[f"{side}.final_layer_norm.weight"] = (d_model,)
        bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        shapes[f"{side}.{bias}"] = (32, heads)
        for block in range(count):
            attentions = ["SelfAttention"] + (["EncDecAttention"] if side == "decoder" else [])
            for i, attention in enumerate(attentions):
                layer = f"{side}.block.{block}.layer.{i}."
                shapes[layer + "layer_norm.weight"] = (d_model,)
                for matrix in "qkv":
                    shapes[f"{layer}{attention}.{matrix}.weight"] = (inner, d_model)
                shapes[f"{layer}{attention}.o.weight"] = (d_model, inner)
            layer = f"{side}.block.{block}.layer.{len(attentions)}."
            shapes[layer + "layer_norm.weight"] = (d_model,)
            for matrix in ("wi_0", "wi_1"):
                shapes[f"{layer}DenseReluDense.{matrix}.weight"] = (d_ff, d_model)
            shapes[layer + "DenseReluDense.wo.weight"] = (d_model, d_ff)
    numbers = random.Random(5)
    tensors = {}
    for name, shape in shapes.items():
        scale, mean = (0.2, 1) if len(shape) == 1 else (1 / math.sqrt(shape[1]), 0)
        values = [mean + scale * numbers.gauss(0, 1) for _ in range(math.prod(shape))]
        tensors[name] = (shape, values)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": d_model,
        "d_kv": d_kv, "d_ff": d_ff, "num_heads": heads, "num_layers": layers["encoder"],
        "num_decoder_layers": layers["decoder"], "vocab_size": vocabulary,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "dropout_rate": 0.1,
        "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "n_positions": 512}))
    vocab = [["<pad>", 0], ["</s>", 0], ["<unk>", 0]] + [["▁" + w, -3] for w in WORDS] + [["▁", -5]]
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": 0, "content": "<pad>", "special": True},
                         {"id": 1, "content": "</s>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}]},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": vocab}}))


class Job:
    """command: arguments; resumed: those of a second run; inputs: what its folder begins with; skips: words
    with which it says that inputs which could not be read were left out."""

    def __init__(self, name, inputs, command, outputs, resumed=None, skips=None):
        self.name, self.inputs, self.command, self.patterns = name, inputs, command, outputs
        self.resumed, self.skips = resumed, skips
        self.expected = self.counts = self.seconds = None

    def prepare(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in self.inputs.items():
            if source.is_dir():
                shutil.copytree(source, folder / name)
            else:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, folder / name)

    def arguments(self, folder):
        """Of the next run there, which continues where one has begun."""
        begun = [p for pattern in ("20*_*", "checkpoint-[0-9]*") for p in (folder / "out").glob(pattern)]
        return self.command + (self.resumed if begun and self.resumed else [])

    def outputs(self, folder):
        """Name -> hashes of what is there under it; the folder of a run is named by its time."""
        found = {}
        for pattern in self.patterns:
            for path in folder.glob(pattern):
                parts = path.relative_to(folder).parts
                name = "/".join(p for p in parts if not (p[:8].isdigit() and "_" in p))
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found.setdefault(name, set()).add(digest)
        return found

    def broken(self, folder):
        """What is wrong with outputs that are there; they may be absent."""
        wrong = []
        for name, digests in self.outputs(folder).items():
            if name not in self.expected:
                wrong.append(f"{name} is no output of the undisturbed run")
            elif digests != self.expected[name]:
                wrong.append(f"{name} differs from the undisturbed run")
        return wrong

    def missing(self, folder):
        there = self.outputs(folder)
        return [f"{name} is missing" for name in self.expected if name not in there]


def run_program(arguments, folder, environment=None, seconds=60):
    """Exit code (negative: signal; None: no end in time), what it printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BALLAST_", "DISCORD_"))}
    env.update({"XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "state"),
                "CUDA_VISIBLE_DEVICES": "-1", "OPENBLAS_NUM_THREADS": "1"})
    env.update(environment or {})
    printed = folder.with_name(folder.name + ".log")  # not on the disk that may be full
    with open(printed, "wb") as log:
        process = subprocess.Popen(arguments, cwd=folder, env=env, stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
    text = printed.read_text(errors="replace")
    printed.unlink()
    return code, text


class Unsupported(Exception):
    """The program was built without a part that the jobs need."""


def make_fixture(program, source, root):
    """What jobs read, below root/fixture; returns the jobs."""
    fixture = root / "fixture"
    fixture.mkdir(parents=True)
    model = fixture / "model"
    shutil.copytree(source / "examples/demo_model/model", model)
    t5 = fixture / "t5"
    text_model(t5)
    clips = fixture / "clips"
    clips.mkdir()
    for i, (name, color) in enumerate({"red": (220, 0, 0), "green": (0, 220, 0), "blue": (0, 0, 220)}.items()):
        (clips / f"{i}.png").write_bytes(png(color))
        (clips / f"{i}.txt").write_text(f"a {name} square falls")

    def text(name, content):
        (fixture / name).write_text(content)
        return fixture / name

    config, dataset = text("run.toml", RUN.format(model=model)), text("set.toml", SET)
    rows = "".join(f'"count\n{a}",{b}\n' for a, b in zip(WORDS[:6], WORDS[1:]))
    pairs, prompts = text("pairs.csv", "text,summary\n" + rows), text("prompts.txt", "count one\nsay red\n")
    student = text("student.json", json.dumps(STUDENT))
    captions = text("captions.txt", "a red circle falls\na blue square grows\n")

    cpu = ["--device", "cpu"]
    base = {"run.toml": config, "set.toml": dataset}
    train = ["train", "run.toml", *cpu]
    lora = ["out/*/step[0-9]/adapter_model.safetensors", "out/*/step[0-9]/adapter_config.json"]
    cached = ["clips/cache/**/*.safetensors"]
    cache = Job("cache", {**base, "clips": clips}, ["cache", "run.toml", *cpu], cached,
                skips="files skipped")

    # Cached once, for the trainings.
    first = fixture / "first"
    cache.prepare(first)
    code, err = run_program([program, *cache.command], first)
    if code == 5 and "reads and writes no images" in err:
        raise Unsupported("this program was built without FFmpeg")
    if code != 0:
        raise RuntimeError(f"cache: exit code {code}\n{err}")
    base["clips"] = first / "clips"
    code, err = run_program([program, *train], first)
    if code != 0:
        raise RuntimeError(f"train: exit code {code}\n{err}")
    adapter = next(first.glob("out/*/step6"))

    streamed = Job("train streamed", base, [*train, "--policy", "stream1"], lora, ["--resume"])
    resident = Job("train resident", base, [*train, "--threads", "2"], lora, ["--resume"])
    # A folder of a run whose last checkpoint is gone: from step 4 to 6 once more.
    half = fixture / "half"
    shutil.copytree(first / "out", half)
    run = next(half.iterdir())
    shutil.rmtree(run / "step6")
    shutil.rmtree(run / "checkpoints/step-00000006")
    (run / "checkpoints/latest").write_text("step-00000004\n")
    resumed = Job("resume", {**base, "out": half}, train, lora, ["--resume"])

    sample = Job("sample", {"lora": adapter},
                 ["sample", "--model", str(model), "--lora", "lora", "--prompt", "a red circle falls",
                  "--frames", "5", "--width", "32", "--height", "32", "--steps", "2", "--seed", "7",
                  "--output", "clip.gif", *cpu], ["clip.gif"])
    generate = Job("generate", {"prompts.txt": prompts},
                   ["generate", "--model", str(t5), "--prompt-file", "prompts.txt", "--max-new-tokens",
                    "4", "--policy", "stream1", "--output", "texts", *cpu], ["texts"])
    merge = Job("convert merge", {"lora": adapter},
                ["convert", "merge", str(model), "lora", "merged.safetensors"], ["merged.safetensors"])
    seq2seq = Job("train T5", {"pairs.csv": pairs},
                  ["train", "--pretrained-model", str(t5), "--model-output", "out", "--train-file",
                   "pairs.csv", "--epochs", "2", "--batch-size", "2", "--save-steps", "2", *cpu],
                  ["out/model.safetensors", "out/config.json"], ["--resume-from-checkpoint"])
    distill = Job("distill", {"student.json": student, "captions.txt": captions},
                  ["distill", "--teacher_path", str(model), "--student_config", "student.json",
                   "--data_path", "captions.txt", "--lr", "1e-3", "--output_dir", "out", "--num_steps",
                   "2", "--checkpoint_steps", "1", *cpu],
                  ["out/diffusion_pytorch_model.safetensors", "out/output_proj.safetensors",
                   "out/config.json"], ["--resume"])
    return [streamed, resident, resumed, cache, sample, generate, merge, seq2seq, distill]
