#!/usr/bin/env python3
"""Turns a CUDA source into C++ for the emulated GPU.

    translate.py IN OUT

Two things are not C++: launches, kernel<<<grid, block, shared, stream>>>(arguments), and dynamic
shared memory. Everything else is left to emulated_cuda.h.
"""
import re
import sys

OPEN = {"(": ")", "[": "]", "{": "}"}
CLOSE = {v: k for k, v in OPEN.items()}


def split_arguments(text):
    """Top-level parts of an argument list."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in OPEN or c == "<" and re.match(r"<[\w:, ]+>", text[i:]):
            depth += 1
        elif c in CLOSE or c == ">" and depth > 0:
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return parts


def closing(text, at):
    """Index of the parenthesis that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        if text[i] == "(":
            depth += 1
        elif text[i] == ")":
            depth -= 1
            if depth == 0:
                return i
    raise SystemExit("a launch is not closed")


def kernel_start(text, end):
    """Where the name of the kernel before <<< begins, template arguments included."""
    i = end
    while text[i - 1].isspace():
        i -= 1
    if text[i - 1] == ">":
        depth = 0
        while True:
            i -= 1
            if text[i] == ">":
                depth += 1
            elif text[i] == "<":
                depth -= 1
                if depth == 0:
                    break
    while text[i - 1].isalnum() or text[i - 1] in "_:":
        i -= 1
    return i


def translate(text):
    while True:
        at = text.find("<<<")
        if at < 0:
            break
        begin = kernel_start(text, at)
        end = text.index(">>>", at)
        kernel = text[begin:at].strip()
        setup = split_arguments(text[at + 3 : end])
        if len(setup) != 4:
            raise SystemExit(f"{kernel}: a launch names grid, block, shared memory and stream")
        open_at = text.index("(", end)
        close_at = closing(text, open_at)
        arguments = text[open_at + 1 : close_at]
        launch = f"::emulated::launch({', '.join(setup)}, [=] {{ {kernel}({arguments}); }})"
        # as many lines as before: messages keep their places
        lost = text[begin:close_at].count("\n") - launch.count("\n")
        text = text[:begin] + launch + "\n" * lost + text[close_at + 1 :]
    return re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?([\w: ]+?) (\w+)\[\];",
        r"\1* \2 = static_cast<\1*>(::emulated::dynamic_shared());",
        text,
    )


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as f:
        source = f.read()
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write(f'#line 1 "{sys.argv[1]}"\n' + translate(source))
