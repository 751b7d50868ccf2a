#!/usr/bin/env python3
"""Checks that includes go one way and that the cheap rules of style hold.

    tools/check_layers.py [repository]

Prints one line per violation, "file:line: what is wrong", and exits 1 if there are any.
"""

import pathlib
import re
import sys

# Which folders of src/ each folder may include from, besides itself.
LEFT_TO_RIGHT = ["core", "memory", "plan", "ops", "nn", "fit", "models", "infer", "train"]
ALLOWED = {layer: set(LEFT_TO_RIGHT[:i]) for i, layer in enumerate(LEFT_TO_RIGHT)}
ALLOWED["io"] = {"core", "memory"}
ALLOWED["dist"] = {"core", "memory"}
ALLOWED["data"] = {"core", "memory", "io"}
ALLOWED["report"] = {"core", "memory", "plan"}
ALLOWED["fit"] |= {"report"}
ALLOWED["models"] |= {"io"}
ALLOWED["infer"] |= {"io", "report"}
ALLOWED["train"] |= {"io", "data", "dist", "report"}
ALLOWED["ballast"] = set(ALLOWED)
ALLOWED["app"] = set(ALLOWED) - {"ballast"}
ALLOWED["c_api"] = set(ALLOWED)

# Folders inside a layer, and which of its other folders each may include from, besides the sources
# directly in the layer.
ROOMS = {
    "ops": {
        "kernels": set(),
        "linear": {"kernels"},
        "attention": {"kernels", "linear"},
        "conv3d": {"kernels", "linear"},
    },
    "train": {
        "config": set(),
        "checkpoint": {"config"},
        "run": {"config", "checkpoint"},
        "recipes": {"config", "checkpoint", "run"},
    },
    "app": {"golden": set(), "bench": set(), "commands": {"golden"}},
}

# Read by compilers of C, which know no #pragma once by standard.
C_HEADER = "ballast/ballast_c.h"

MOST_LINES = 500
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
HEADERS = {".h", ".cuh"}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]*)"')
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|elifdef|elifndef)\b")
ALLOCATION = re.compile(r"\b(cuda(?:Malloc|HostAlloc)\w*|GpuArena)\b")
USING_NAMESPACE = re.compile(r"^\s*using\s+namespace\b")


def may_have_conditions(path):
    """path is relative to src/."""
    if path.suffix in {".cu", ".cuh"}:
        return True
    name = path.as_posix()
    # Releases of toml++ name their headers differently.
    if name in {"ops/kernels/on_device.h", "io/toml_file.cpp"} or name.startswith("core/simd"):
        return True
    return name == C_HEADER


def may_allocate(path, what):
    """Whether a file, relative to src/, may have GPU memory of its own. A plan counts the arena of
    a run alone; golden files are run without a plan."""
    name = path.as_posix()
    if what != "GpuArena":
        return name == "memory/gpu_cuda.cpp"
    return name.startswith(("memory/gpu", "plan/run_memory.", "plan/runner_memory.", "app/golden/"))


def without_block_comments(text):
    """Blanks /* ... */ but keeps the lines."""
    return re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)


def check_includes(path, lines):
    """path is relative to src/; yields (line, message)."""
    layer = path.parts[0]
    if len(path.parts) < 2 or layer not in ALLOWED:
        yield 1, f"src/{layer} is not a layer: one of {', '.join(sorted(ALLOWED))}"
        return
    if room_of(path) not in {None, *ROOMS.get(layer, {})}:
        yield 1, f"src/{path.parent} is not a folder of {layer}: one of {', '.join(ROOMS[layer])}"
        return
    for number, line in enumerate(lines, 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        target = found.group(1)
        folder = target.split("/")[0]
        if "/" not in target or folder not in ALLOWED:
            yield number, f'#include "{target}" does not start at a folder of src/'
        elif folder != layer and folder not in ALLOWED[layer]:
            may = ", ".join(x for x in ALLOWED if x in ALLOWED[layer]) or "nothing else"
            yield number, f'{layer} may not include "{target}" (it may use: {may})'
        elif folder == layer and not may_use_room(path, pathlib.PurePosixPath(target)):
            yield number, f'{path.parent} may not include "{target}"'


def room_of(path):
    """The folder inside its layer that holds a file, or None; path is relative to src/."""
    return path.parts[1] if path.parts[0] in ROOMS and len(path.parts) > 2 else None


def may_use_room(path, target):
    """Both are in the same layer."""
    here, there = room_of(path), room_of(target)
    return here is None or there is None or here == there or there in ROOMS[path.parts[0]][here]


def check_style(path, lines, in_src):
    """path is relative to src/ when in_src; yields (line, message)."""
    if path.suffix in HEADERS and path.as_posix() != C_HEADER:
        if not any(line.strip() == "#pragma once" for line in lines):
            yield 1, "a header without #pragma once"
        for number, line in enumerate(lines, 1):
            if USING_NAMESPACE.match(line):
                yield number, "using namespace in a header"
    if not in_src:
        return
    if not may_have_conditions(path):
        for number, line in enumerate(lines, 1):
            if CONDITION.match(line):
                yield number, "conditional compilation outside ops/kernels/on_device.h, core/simd* and .cu files"
    for number, line in enumerate(lines, 1):
        found = ALLOCATION.search(line.split("//")[0])
        if found and not may_allocate(path, found.group(1)):
            yield number, f"{found.group(1)}: memory beside the arena, which no plan counts"
    if len(lines) > MOST_LINES:
        yield len(lines), f"{len(lines)} lines, more than {MOST_LINES}: look for the second subject"


def check_repository(root):
    """All violations below root, as text lines."""
    violations = []
    for top in ("src", "tests", "bench"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SOURCES or not file.is_file():
                continue
            lines = without_block_comments(file.read_text(errors="replace")).splitlines()
            path = file.relative_to(root / top)
            found = list(check_style(path, lines, top == "src"))
            if top == "src":
                found += check_includes(path, lines)
            violations += [f"{top}/{path.as_posix()}:{n}: {what}" for n, what in sorted(found)]
    return violations


def main(arguments):
    root = pathlib.Path(arguments[1]) if len(arguments) > 1 else pathlib.Path(__file__).parents[1]
    if not (root / "src").is_dir():
        print(f"{root} has no src folder", file=sys.stderr)
        return 2
    violations = check_repository(root)
    for line in violations:
        print(line)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
