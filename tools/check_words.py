#!/usr/bin/env python3
"""Checks that what users read keeps to the words of the documentation.

    tools/check_words.py [repository]

Looks at the string literals of src/, neighbours joined, for phrases that nobody outside the source
understands. Prints one line per phrase, "file:line: "phrase": say ...", and exits 1 if there are any.
"""

import pathlib
import re
import sys

SOURCES = {".h", ".cpp", ".cu", ".cuh"}

# A phrase, and what to say instead.
BANNED = [
    (r"\bdevice memory\b", "GPU memory"),
    (r"\bhost memory\b", "RAM"),
    (r"\b(device|host) arena\b|\boutside the arenas\b|\bboth arenas\b", "GPU memory or RAM"),
    (r"\bof device\b(?! nodes)", "of GPU memory"),
    (r"\b(from|on|of) the host\b", "RAM"),
    (r"\bon the device\b|\boff the device\b", "in GPU memory"),
    (r"\battention kept\b", "keeps attention outputs, recomputes the rest"),
    (r"\brecordings\b|\bby one call\b", "CUDA graphs"),
    (r"\bmap of pinned memory\b", "GPU page tables"),
    (r"\bfor want of memory\b|\bdied in phase\b", "the process was killed; memory was (not) the cause"),
    (r"\bmemory is short\b", "does not fit: ... more GPU memory needed"),
    (r"\bleanest\b|\bnot even under\b", "even with the lowest-memory plan"),
    (r"\bstill \{\} short\b|\bstep time x\b", "not enough alone: ... short; step 6 % faster"),
    (r"\bthe longest of \d", "9.96 s (4 passes of 2.49 s)"),
    (r"\bfirst state\b", "optimizer set-up"),
    (r"\bwere there\b", "already cached"),
    (r"\bknown, but without effect\b", "two lists: ignored; rejected"),
    (r"\bof a launcher\b|\bstarts by itself\b", "ignored: launcher option"),
    (r"\bthe same bits no longer\b", "faster; not bit-reproducible"),
    (r"^(Of this program|Every run)\b", "General options, Training options"),
    (r"\bbug of ours\b", "internal error (please report)"),
    (r"\bBallast does not need it\b", "(not needed)"),
    (r"\bgoes on\b", "continues"),
    (r"\bfrom nothing\b", "from scratch"),
    (r"\bpictures?\b", "image, or frame"),
    (r"\blessons?\b", "distillation batch"),
]

# Literals that may have them: file below src/, and the literal or a part of it.
EXCEPTIONS = [
    ("app/bench/vae.cpp", "arena"),  # a key of its JSON
]

# Names of keys, flags, programs and files are no text.
NAME = re.compile(r"[A-Za-z0-9_.\-/]*")
# Comments, character literals, raw strings and strings, whichever begins first.
TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|'(?:[^'\\\n]|\\.)'|R\"(?P<mark>[^()\\ ]*)\((?P<raw>.*?)\)(?P=mark)\""
    r'|(?P<include>#\s*include[^\n]*)|"(?P<text>(?:[^"\\\n]|\\.)*)"',
    re.S,
)


def literals(source):
    """(line, text) of every string literal, adjacent ones joined."""
    joined, line, end = None, 0, 0
    for token in TOKEN.finditer(source):
        text = token.group("raw") if token.group("raw") is not None else token.group("text")
        if text is None:
            continue
        between = source[end : token.start()]
        end = token.end()
        if joined is not None and not between.strip():
            joined += text
            continue
        if joined is not None:
            yield line, joined
        joined, line = text, source.count("\n", 0, token.start()) + 1
    if joined is not None:
        yield line, joined


def is_excepted(path, text):
    return any(path == file and part in text for file, part in EXCEPTIONS)


def check_source(path, source, banned):
    """path is relative to src/; yields (line, message)."""
    for line, text in literals(source):
        if NAME.fullmatch(text) and text not in ("picture", "pictures"):
            continue
        for phrase, instead in banned:
            found = phrase.search(text)
            if found and not is_excepted(path, text):
                yield line, f'"{found.group(0)}": say {instead}'


def check_repository(root):
    """All violations below root, as text lines."""
    banned = [(re.compile(phrase), instead) for phrase, instead in BANNED]
    violations = []
    for file in sorted((root / "src").rglob("*")):
        if file.suffix not in SOURCES or not file.is_file():
            continue
        path = file.relative_to(root / "src").as_posix()
        source = file.read_text(errors="replace")
        violations += [f"src/{path}:{n}: {what}" for n, what in check_source(path, source, banned)]
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
