"""Damaged and absurd inputs, made from the files of the jobs: models, adapters, checkpoints, caches,
configurations, texts, media and records. The same bytes every time.
"""
import io
import json
import pathlib
import pickle
import random
import re
import shutil
import struct
import sys
import types
import zipfile

# Bad input, a file that cannot be read, a run that does not fit; what cannot be noticed ends with 0.
ENDS = {0, 3, 4, 6}
ABSURD = ["0", "-1", "1e308", "9223372036854775807", "18446744073709551616", "4294967297", "null",
          '"text"', "[]", "{}", "true", "0.5"]


class Damage:
    """A run of the program on a damaged file; job: one whose bits must come out where it ends with 0."""

    def __init__(self, parser, name, prepare, job=None, ends=frozenset(ENDS)):
        self.parser, self.name, self.prepare, self.job, self.ends = parser, name, prepare, job, ends


def cut_and_flipped(data, seed, cuts=6, flips=8, head=None):
    """Truncations and changed bytes; head: how far most of the changes are from the start."""
    numbers = random.Random(seed)
    yield "empty", b""
    for i in range(1, cuts + 1):
        size = len(data) * i // (cuts + 1)
        yield f"first {size} bytes", data[:size]
    yield "without its last byte", data[:-1]
    yield "with a byte more", data + b"\0"
    for i in range(flips):
        at = numbers.randrange(min(head or len(data), len(data)) if i % 4 else len(data))
        value = numbers.choice([0, 0xFF, data[at] ^ 0x80, data[at] ^ 1])
        yield f"byte {at} is {value}", data[:at] + bytes([value]) + data[at + 1:]


def absurd_numbers(text, seed, most=24):
    """JSON or TOML with one number replaced."""
    numbers = random.Random(seed)
    found = list(re.finditer(r'(?<=[\[:,= ])-?\d+(\.\d+)?(?=[\],} \n])', text))
    for match in (numbers.sample(found, most) if len(found) > most else found):
        value = numbers.choice(ABSURD)
        yield f"{match.group()} at {match.start()} is {value}", text[:match.start()] + value + text[match.end():]


def odd_json():
    yield "no JSON", "}{"
    yield "an empty object", "{}"
    yield "an array", "[1, 2]"
    yield "a number", "7"
    yield "deep nesting", "[" * 100_000
    yield "nested objects", '{"a":' * 50_000
    yield "a long string", '{"' + "a" * 1_000_000 + '": 1}'
    yield "no UTF-8", '{"\udcff\udcfe": 1}'
    yield "the same key twice", '{"dim": 1, "dim": 2, "weight_map": {}, "weight_map": {"a": "b"}}'


def odd_safetensors(data):
    """Headers that lie."""
    size = struct.unpack("<Q", data[:8])[0]
    text, body = data[8:8 + size].decode(), data[8 + size:]
    for value in (0, 1, size - 1, size + 1, 100_000_001, 1 << 40, 1 << 63, (1 << 64) - 1):
        yield f"a header of {value} bytes", struct.pack("<Q", value & ((1 << 64) - 1)) + data[8:]

    def with_header(header):
        raw = header.encode("utf-8", "surrogateescape")
        return struct.pack("<Q", len(raw)) + raw + body

    for name, changed in absurd_numbers(text, "safetensors"):
        yield name, with_header(changed)
    for name, odd in odd_json():
        yield "header: " + name, with_header(odd)
    header = {k: v for k, v in json.loads(text).items() if k != "__metadata__"}
    first, second = list(header)[:2]

    def altered(name, **changes):
        return with_header(json.dumps({**header, name: {**header[name], **changes}}))

    yield "an unknown type", altered(first, dtype="Q7")
    yield "a type of other width", altered(first, dtype="F64")
    yield "another rank", altered(first, shape=header[first]["shape"] + [1] * 40)
    yield "an overflowing shape", altered(first, shape=[1 << 32, 1 << 32])
    yield "a shape of zeros", altered(first, shape=[0, 0])
    yield "offsets of another tensor", altered(first, data_offsets=header[second]["data_offsets"])
    yield "offsets that go back", altered(first, data_offsets=header[first]["data_offsets"][::-1])
    without = dict(header)
    del without[first]
    yield "a missing tensor", with_header(json.dumps(without))
    yield "a name with control characters", with_header(json.dumps({"\x1b[2J\n" + k: v for k, v in header.items()}))


def gguf(tensors=2):
    """A file of two small tensors."""
    def text(value):
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    out = b"GGUF" + struct.pack("<IQQ", 3, tensors, 2)
    out += text("general.architecture") + struct.pack("<I", 8) + text("wan")
    out += text("general.alignment") + struct.pack("<II", 4, 32)
    for i in range(tensors):
        out += text(f"blocks.{i}.weight") + struct.pack("<IQQIQ", 2, 8, 4, 0, 128 * i)
    out += b"\0" * (-len(out) % 32)
    return out + struct.pack("<64f", *range(64))


def torch_file():
    """As torch.save writes a dictionary of two tensors."""
    class Storage:
        def __init__(self, key):
            self.key = key

    class Tensor:
        def __init__(self, key):
            self.key = key

        def __reduce__(self):
            return sys.modules["torch._utils"]._rebuild_tensor_v2, (Storage(self.key), 0, (4, 8), (8, 1), False, {})

    class Pickler(pickle.Pickler):
        def persistent_id(self, item):
            if isinstance(item, Storage):
                return ("storage", sys.modules["torch"].FloatStorage, item.key, "cpu", 32)
            return None

    names = {"torch": "FloatStorage", "torch._utils": "_rebuild_tensor_v2"}
    before = {n: sys.modules.get(n) for n in names}
    try:
        for module, name in names.items():
            sys.modules[module] = types.ModuleType(module)
            kind = type(name, (), {"__module__": module, "__qualname__": name})
            if module == "torch._utils":
                kind = types.FunctionType((lambda *a: None).__code__, {}, name)
                kind.__module__, kind.__qualname__ = module, name
            setattr(sys.modules[module], name, kind)
        sys.modules["torch"]._utils = sys.modules["torch._utils"]
        out = io.BytesIO()
        Pickler(out, 2).dump({"a.weight": Tensor("0"), "b.weight": Tensor("1")})
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return archive(out.getvalue())


def archive(pickled, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in {"archive/data.pkl": pickled, "archive/version": b"3\n",
                           "archive/data/0": b"\0" * 128, "archive/data/1": b"\1" * 128}.items():
            file.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, method)
    return out.getvalue()


def odd_pickles():
    yield "a pickle that runs a command", archive(b"cos\nsystem\n(S'touch executed'\ntR.")
    yield "a pickle that reduces", archive(pickle.dumps(pathlib.PurePosixPath("/"), 2))
    yield "a pickle without an end", archive(b"\x80\x02}q\x00")
    yield "a pickle of marks", archive(b"\x80\x02" + b"(" * 100_000)
    yield "a long string", archive(b"\x80\x02X\xff\xff\xff\x7f")
    yield "a memo of its own", archive(b"\x80\x02]q\x00h\x00a.")
    yield "compressed members", archive(b"\x80\x02}q\x00.", zipfile.ZIP_DEFLATED)


def odd_toml(text):
    yield from absurd_numbers(text, "toml")
    for name, more in {"an open string": "a = 'b", "an open table": "[a", "a table twice": "[model]\n[model]\n",
                       "deep arrays": "a = " + "[" * 50_000, "dotted keys": "a" + ".a" * 20_000 + " = 1",
                       "control characters": "a = \"\x00\x1b\"", "a huge number": "a = " + "9" * 5000,
                       "an unknown key": "no_such_key = 1\n" + text}.items():
        yield name, text + "\n" + more if more[0] != "n" else more
    for i, line in enumerate(text.splitlines()):
        if "=" in line:
            key = line.split("=")[0]
            lines = text.splitlines()
            for value in ("[]", "''", "-1", "'../../../etc'"):
                yield f"{key.strip()} = {value}", "\n".join(lines[:i] + [f"{key}= {value}"] + lines[i + 1:])


class Corpus:
    def __init__(self, root, jobs):
        self.fixture = root / "fixture"
        self.jobs = {job.name: job for job in jobs}
        self.all = []

    def read(self, path):
        return (self.fixture / path).read_bytes()

    def single(self, parser, name, file, data, *command, ends=frozenset(ENDS)):
        """One damaged file by itself."""
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")

        def prepare(folder):
            (folder / file).write_bytes(data)
            return list(command)

        self.all.append(Damage(parser, f"{file}: {name}", prepare, ends=ends))

    def within(self, parser, name, job, file, data, same_bits=False, ends=frozenset(ENDS), model=None):
        """A damaged file among the inputs of a job; model: a folder that the job reads, copied."""
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        job = self.jobs[job]

        def prepare(folder):
            job.prepare(folder)
            if model is not None:
                shutil.copytree(self.fixture / model, folder / model)
            path = folder / file
            if "*" in file:
                path = sorted(folder.glob(file))[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            arguments = job.arguments(folder)
            if model is None:
                return arguments
            original = str(self.fixture / model)
            config = folder / "run.toml"
            if config.exists():
                config.write_text(config.read_text().replace(original, model))
            return [model if a == original else a for a in arguments]

        self.all.append(Damage(parser, f"{job.name}, {file}: {name}", prepare, job if same_bits else None, ends))

    def make(self):
        self.models()
        self.foreign_models()
        self.adapters()
        self.checkpoints()
        self.caches()
        self.configurations()
        self.texts()
        self.media()
        self.records()
        return self.all

    def models(self):
        transformer = "model/transformer/diffusion_pytorch_model.safetensors"
        data = self.read(transformer)
        head = 8 + struct.unpack("<Q", data[:8])[0]
        damaged = list(cut_and_flipped(data, "model", head=head)) + list(odd_safetensors(data))
        for i, (name, bad) in enumerate(damaged):
            self.single("safetensors", name, "model.safetensors", bad, "inspect", "model.safetensors")
            if i % 3 == 0:
                self.within("safetensors", name, "sample", transformer, bad, model="model")
            if i % 3 == 1:
                self.within("safetensors", name, "convert merge", transformer, bad, model="model")
        for part in ("model/vae.safetensors", "model/umt5_encoder.safetensors"):
            data = self.read(part)
            for name, bad in list(cut_and_flipped(data, part, 3, 6, 2000)) + list(odd_safetensors(data))[::4]:
                self.within("safetensors", name, "sample", part, bad, model="model")
        for file, job, model in (("model/transformer/config.json", "sample", "model"),
                                 ("t5/config.json", "generate", "t5")):
            text = self.read(file).decode()
            for name, bad in [*absurd_numbers(text, file), *odd_json()]:
                self.within("config.json", name, job, file, bad, model=model)
        for file, job, model in (("model/tokenizer.json", "sample", "model"), ("t5/tokenizer.json", "generate", "t5")):
            data = self.read(file)
            for name, bad in [*cut_and_flipped(data, file, 4, 12), *odd_json()]:
                self.within("tokenizer.json", name, job, file, bad, model=model)
        data = self.read("t5/model.safetensors")
        for name, bad in list(odd_safetensors(data))[::2]:
            self.within("safetensors", name, "train T5", "t5/model.safetensors", bad, model="t5")
        for name, bad in [*odd_json(), ("empty map", '{"weight_map":{}}'), ("upwards", '{"weight_map":{"a":"../a"}}'),
                          ("absolute", '{"weight_map":{"a":"/etc/passwd"}}'), ("itself", '{"weight_map":{"a":"model.safetensors.index.json"}}'),
                          ("no string", '{"weight_map":{"a":1}}'), ("absent", '{"weight_map":{"a":"b.safetensors"}}')]:
            index = "model.safetensors.index.json"
            self.single("index of shards", name, index, bad, "inspect", index)
            self.single("index of shards", name, index, bad, "convert", "model", index, "out.safetensors")

    def foreign_models(self):
        data = gguf()
        damaged = list(cut_and_flipped(data, "gguf", 12, 24, 180))
        for at in (4, 8, 16, 24):
            for value in (0, 0xFFFFFFFF, 1 << 31):
                damaged.append((f"number at {at} is {value}", data[:at] + struct.pack("<I", value) + data[at + 4:]))
        for name, bad in [("whole", data), *damaged]:
            self.single("GGUF", name, "model.gguf", bad, "inspect", "model.gguf")
            self.single("GGUF", name, "model.gguf", bad, "convert", "model", "model.gguf", "out.safetensors")
        data = torch_file()
        for name, bad in [("whole", data), *cut_and_flipped(data, "pickle", 12, 40), *odd_pickles()]:
            self.single("pickle and zip", name, "model.pth", bad, "inspect", "model.pth")
            self.single("pickle and zip", name, "model.pth", bad, "convert", "model", "model.pth", "out.safetensors")

    def adapters(self):
        folder = next(self.fixture.glob("first/out/*/step6"))
        data = (folder / "adapter_model.safetensors").read_bytes()
        damaged = [*cut_and_flipped(data, "lora", 4, 8, 4000), *odd_safetensors(data)]
        for i, (name, bad) in enumerate(damaged):
            self.within("LoRA", name, "convert merge" if i % 2 else "sample", "lora/adapter_model.safetensors", bad)
        text = (folder / "adapter_config.json").read_text()
        for name, bad in [*absurd_numbers(text, "lora"), *odd_json()]:
            self.within("LoRA", name, "convert merge", "lora/adapter_config.json", bad)

    def checkpoints(self):
        """A damaged newest checkpoint is left for the one before it, or refused: the bits stay."""
        folder = next(self.fixture.glob("half/*/checkpoints/step-00000004"))
        for file in sorted(p.name for p in folder.iterdir()):
            data = (folder / file).read_bytes()
            damaged = list(cut_and_flipped(data, file, 4, 10)) if data else [("not empty", b"x")]
            if file.endswith(".json"):
                damaged += [*absurd_numbers(data.decode(), file, 12), *odd_json()]
            for name, bad in damaged:
                self.within("checkpoint", name, "resume", f"out/*/checkpoints/step-00000004/{file}", bad, same_bits=True)
        for file in ("run_log.jsonl", "flight_record", "checkpoints/latest", "lock"):
            data = (folder.parents[1] / file).read_bytes()
            for name, bad in cut_and_flipped(data, file, 3, 6) if data else [("not empty", b"x" * 5000)]:
                self.within("records of a run", name, "resume", f"out/*/{file}", bad, same_bits=True)

    def caches(self):
        for part in ("clips/cache/wan/latents/0*", "clips/cache/wan/text/0*", "clips/cache/wan/empty_caption*"):
            data = sorted((self.fixture / "first").glob(part))[0].read_bytes()
            head = 8 + struct.unpack("<Q", data[:8])[0]
            damaged = [*cut_and_flipped(data, part, 4, 8, head), *list(odd_safetensors_of_one(data))]
            for name, bad in damaged:
                self.within("cache", name, "train resident", part, bad)

    def configurations(self):
        usage = frozenset(ENDS | {2})
        for file in ("run.toml", "set.toml"):
            data = self.read(file)
            for name, bad in [*odd_toml(data.decode()), *cut_and_flipped(data, file, 8, 16)]:
                if "epochs" in name or re.search(rb"(epochs|_steps) = \d{4,}", bad if isinstance(bad, bytes) else bad.encode("utf-8", "surrogateescape")):
                    continue  # a long run is no defect
                self.single("TOML", name, file, bad, "plan", file, ends=usage)
                self.within("TOML", name, "train resident", file, bad, ends=usage)
        text = self.read("student.json").decode()
        for name, bad in [*absurd_numbers(text, "student"), *odd_json()]:
            self.within("student's config", name, "distill", "student.json", bad)

    def texts(self):
        data = self.read("pairs.csv")
        for name, bad in [*cut_and_flipped(data, "csv", 8, 16), ("an open quote", data + b'"a'), ("one column", b"text\na\n"),
                          ("a long field", data + b"a" * 2_000_000 + b",b\n"), ("no UTF-8", data + b"\xff\xfe,b\n"),
                          ("empty columns", b",,,\n" * 100)]:
            self.within("CSV and JSON Lines", name, "train T5", "pairs.csv", bad)
        for name, bad in [*odd_json(), ("a line", '{"text": 1, "summary": {}}\n'), ("half a line", '{"text": "a"')]:
            self.single("CSV and JSON Lines", name, "pairs.jsonl", bad, "train", "--pretrained-model",
                        str(self.fixture / "t5"), "--model-output", "out", "--train-file", "pairs.jsonl",
                        "--max_steps", "1", "--device", "cpu")
        for name, bad in [("no UTF-8", b"\xff\xfe\n"), ("zeros", b"\0" * 1000), ("empty", b""),
                          ("a long line", b"say red " * 100_000), ("control characters", b"\x1b[2J\r\n\x07\n")]:
            self.within("prompt file", name, "generate", "prompts.txt", bad)
            self.within("prompt file", name, "distill", "captions.txt", bad)

    def media(self):
        data = self.read("clips/0.png")
        damaged = list(cut_and_flipped(data, "png", 6, 24))
        for value in (0, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFF):
            damaged.append((f"{value} columns", data[:16] + struct.pack(">I", value) + data[20:]))
        for name, bad in damaged:
            self.single("media", name, "a.png", bad, "inspect", "a.png")
            self.within("media", name, "cache", "clips/0.png", bad)

    def records(self):
        folder = next(self.fixture.glob("first/out/*"))
        data = (folder / "run_log.jsonl").read_bytes()
        for name, bad in [*cut_and_flipped(data, "log", 6, 24), *absurd_numbers(data.decode(), "log"), *odd_json()]:
            self.single("records of a run", name, "run_log.jsonl", bad, "report", "run_log.jsonl")
        data = (folder / "flight_record").read_bytes()
        for name, bad in cut_and_flipped(data, "flight", 6, 24, 600):
            self.single("records of a run", name, "flight_record", bad, "doctor", ".", "--no-disk-trial")


def odd_safetensors_of_one(data):
    """odd_safetensors() of a file that may hold one tensor only."""
    size = struct.unpack("<Q", data[:8])[0]
    text, body = data[8:8 + size].decode(), data[8 + size:]
    for name, changed in [*absurd_numbers(text, "cache"), *odd_json()]:
        raw = changed.encode("utf-8", "surrogateescape")
        yield name, struct.pack("<Q", len(raw)) + raw + body


def corpus(root, jobs):
    return Corpus(root, jobs).make()
