#!/usr/bin/env python3
"""Checks what documents promise about themselves and about the tree.

    tools/check_docs.py [repository]

- Every decision (docs/decisions/NNNN-title.md) has at most 40 lines, its own number in its title, a
  line "Status: accepted" or "Status: superseded by N", and a row with the same status in the index.
- The index (docs/decisions/README.md) names no decision that does not exist.
- The files in the table "Where features live" of CONTRIBUTING.md exist.
- README.md has at most 120 lines.
- No document or comment refers to a numbered note or to a section of a page that is not here.

Prints one line per violation, "file:line: what is wrong", and exits 1 if there are any.
"""

import pathlib
import re
import sys

MAX_DECISION_LINES = 40
MAX_README_LINES = 120

DECISION = re.compile(r"(\d{4})-[a-z0-9-]+\.md")
TITLE = re.compile(r"# (\d+)\. \S")
STATUS = re.compile(r"Status: (accepted|superseded by (\d+))(;.*)?$")
INDEX_ROW = re.compile(r"\|\s*(\d+)\s*\|\s*\[[^\]]*\]\(([^)]+)\)\s*\|\s*(.*?)\s*\|$")
FEATURES = "## Where features live"
NAMED_FILE = re.compile(r"`([^`]+)`")

# Where documents and comments are, and references that mean nothing to a reader of the repository.
REFERRING = ("src", "tests", "bench", "tools", "scripts", "examples", "cmake", "docs")
TEXTS = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".txt", ".toml", ".md"}
DEAD_REFERENCE = re.compile(r"\b(?:source )?note 0\d\d\b|\b[a-z0-9_-]+\.md \d+(?:\.\d+)?\b", re.I)


def read_lines(file):
    return file.read_text(errors="replace").splitlines()


def check_decision(file, numbers):
    """Yields (line, message); numbers are those of all decisions."""
    lines = read_lines(file)
    number = int(file.name[:4])
    if len(lines) > MAX_DECISION_LINES:
        yield len(lines), f"{len(lines)} lines, more than {MAX_DECISION_LINES}"
    title = TITLE.match(lines[0]) if lines else None
    if not title or int(title.group(1)) != number:
        yield 1, f'the title does not begin with "# {number}. "'
    found = [(n, STATUS.match(line)) for n, line in enumerate(lines, 1) if line.startswith("Status:")]
    if len(found) != 1 or not found[0][1]:
        yield 1, 'not exactly one line "Status: accepted" or "Status: superseded by N"'
    elif found[0][1].group(2) and int(found[0][1].group(2)) not in numbers:
        yield found[0][0], f"superseded by {found[0][1].group(2)}, which does not exist"


def status_of(file):
    return next((line[8:] for line in read_lines(file) if line.startswith("Status: ")), None)


def check_index(index, decisions):
    """Yields (line, message); decisions are the files by name."""
    listed = set()
    for number, line in enumerate(read_lines(index), 1):
        row = INDEX_ROW.match(line)
        if not row:
            continue
        name, status = row.group(2), row.group(3)
        listed.add(name)
        if name not in decisions:
            yield number, f"{name} does not exist"
        elif int(row.group(1)) != int(name[:4]):
            yield number, f"{name} is listed as number {row.group(1)}"
        elif status != status_of(decisions[name]):
            yield number, f'{name} is listed as "{status}", its file says "{status_of(decisions[name])}"'
    for name in sorted(set(decisions) - listed):
        yield 1, f"{name} is not listed"


def check_decisions(folder):
    """Yields (file, line, message)."""
    decisions = {}
    for file in sorted(folder.glob("*.md")):
        if DECISION.fullmatch(file.name):
            decisions[file.name] = file
        elif file.name != "README.md":
            yield file, 1, "a decision is called NNNN-title.md"
    numbers = {int(name[:4]) for name in decisions}
    for file in decisions.values():
        yield from ((file, *what) for what in check_decision(file, numbers))
    index = folder / "README.md"
    if not index.is_file():
        yield index, 1, "the index of decisions is missing"
    else:
        yield from ((index, *what) for what in check_index(index, decisions))


def check_features(file, root):
    """Yields (line, message) for the table of features."""
    inside, named = False, 0
    for number, line in enumerate(read_lines(file), 1):
        if line.startswith("## "):
            inside = line == FEATURES
        if not inside or not line.startswith("|"):
            continue
        for name in NAMED_FILE.findall(line):
            named += 1
            if not (root / name).is_file():
                yield number, f"{name} does not exist"
    if not named:
        yield 1, f'no table of files under "{FEATURES}"'


def check_references(root):
    """Yields (file, line, message)."""
    for top in REFERRING:
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in TEXTS or not file.is_file():
                continue
            for number, line in enumerate(read_lines(file), 1):
                found = DEAD_REFERENCE.search(line)
                if found:
                    yield file, number, f'"{found.group(0)}" means nothing here: state the fact or link a page'


def check_repository(root):
    """All violations below root, as text lines."""
    found = list(check_decisions(root / "docs" / "decisions"))
    contributing = root / "CONTRIBUTING.md"
    found += [(contributing, *what) for what in check_features(contributing, root)]
    found += check_references(root)
    readme = read_lines(root / "README.md")
    if len(readme) > MAX_README_LINES:
        found.append((root / "README.md", len(readme), f"{len(readme)} lines, more than {MAX_README_LINES}"))
    return [f"{file.relative_to(root).as_posix()}:{line}: {what}" for file, line, what in found]


def main(arguments):
    root = pathlib.Path(arguments[1]) if len(arguments) > 1 else pathlib.Path(__file__).parents[1]
    for name in ("README.md", "CONTRIBUTING.md"):
        if not (root / name).is_file():
            print(f"{root} has no {name}", file=sys.stderr)
            return 2
    violations = check_repository(root)
    for line in violations:
        print(line)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
