#!/usr/bin/env python3
"""The checks of scripts/lint.sh, whose header says what they are and which files they look at.

tools/lint.py ROOT [--all] [--limit N] [--commands FILE]
--commands: a compile_commands.json to take flags from, instead of configuring build/lint.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import time

SUFFIXES = (".cpp", ".h", ".cu", ".cuh")
FOLDERS = ("src", "tests", "bench", "examples")  # in the order in which they are checked
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<][^">]+)[">]', re.M)
CUDA_INCLUDE = re.compile(r"<(cuda|cublas|cudnn|nvml)")
OTHER_ISAS = {"-DBALLAST_ISA=sse2", "-DBALLAST_ISA=avx512"}
OLDEST_TIDY = 19  # the one that was tried; 14 cannot parse the sources


def git(root, *arguments):
    """What git prints; "" where it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def names(text):
    return [n for n in text.split("\0") if n.endswith(SUFFIXES)]


def base_commit(root):
    """The commit before the change, or "" where there is none."""
    wanted = os.environ.get("BALLAST_BASE")
    if wanted:
        found = git(root, "rev-parse", "--verify", "--quiet", wanted + "^{commit}").strip()
        if not found:
            sys.exit(f"lint: BALLAST_BASE={wanted} is no commit of this repository")
        return found
    head = git(root, "rev-parse", "HEAD").strip()
    for branch in ("origin/main", "main"):
        left_at = git(root, "merge-base", "HEAD", branch).strip()
        if left_at and left_at != head:
            return left_at
    return git(root, "rev-parse", "--verify", "--quiet", "HEAD^").strip()


def is_substantial(line):
    text = line.strip()
    return bool(text) and not text.startswith(("#include", "//"))


def substantially_changed(root, base, files):
    """Those of files in which more than includes, comments and blank lines differ."""
    found, name = set(), ""
    for line in git(root, "diff", "-U0", "-M", "--no-color", "--no-ext-diff", base).splitlines():
        if line.startswith("+++ "):
            name = line[6:]
        elif line.startswith(("+", "-")) and not line.startswith("--- ") and is_substantial(line[1:]):
            found.add(name)
    untracked = set(git(root, "ls-files", "-o", "--exclude-standard").splitlines())
    return [f for f in files if f in found or f in untracked]


def changed_files(root, base, tracked):
    if not base:
        print("lint: no earlier commit here to compare with, so only the format is checked")
        return []
    differ = names(git(root, "diff", "--name-only", "--diff-filter=d", "-z", base))
    return [f for f in tracked if f in set(differ)] + names(
        git(root, "ls-files", "-o", "-z", "--exclude-standard")
    )


def selected(root, base, files, limit):
    """At most limit of the changed files, and says which were left out."""
    if len(files) <= limit:
        return files
    print(f"lint: {len(files)} files changed, more than the {limit} that are checked at once")
    kept = substantially_changed(root, base, files)
    print(f"lint: left out {len(files) - len(kept)} in which only includes or comments changed")
    files = kept
    if len(files) > limit:
        print(f"lint: checking a sample of {limit} of {len(files)}; --all checks everything")
        files = sorted(random.Random(base).sample(files, limit))
    return files


class Includes:
    """What a file includes, directly or through files of the repository."""

    def __init__(self, root):
        self.root = root
        self.known = {}

    def of(self, file):
        if file in self.known:
            return self.known[file]
        self.known[file] = found = set()  # before it is complete: includes may form a circle
        for name in INCLUDE.findall((self.root / file).read_text(errors="replace")):
            found.add(name)
            for place in (self.root / "src", self.root, (self.root / file).parent):
                target = place / name[1:]
                if name[0] == '"' and target.is_file():
                    found |= self.of(os.path.relpath(target, self.root))
                    break
        return found


class Commands:
    """How each file is compiled."""

    def __init__(self, root, database, work):
        self.root, self.work = root, work
        self.includes = Includes(root)
        self.sources = {}  # path in the repository: (folder, arguments)
        for entry in json.loads(database.read_text()):
            path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), root)
            arguments = entry.get("arguments") or shlex.split(entry["command"])
            # Vector kernels are compiled once per instruction set: one of them is enough. What a
            # build makes itself is not ours to check, but for the batches of unity builds.
            generated = path.startswith("build/") and "/Unity/" not in path
            if path.endswith(".cu") or generated or OTHER_ISAS & set(arguments):
                continue
            self.sources.setdefault(path, (entry["directory"], self.plain(arguments)))
        self.with_cuda = any(p.endswith("_cuda.cpp") for p in self.sources)

    @staticmethod
    def plain(arguments):
        """The compiler and its flags, without what is compiled and where to."""
        flags, skip = [], False
        for argument in arguments:
            if skip:
                skip = False
            elif argument in ("-o", "-c"):
                skip = True
            elif "ccache" not in os.path.basename(argument):
                flags.append(argument)
        return flags

    def why_not(self, file):
        """Why a file cannot be checked here; "" when it can."""
        if file.endswith((".cu", ".cuh")):
            return "need nvcc"
        includes = self.includes.of(file)
        kernels = any(name.endswith(".cuh") for name in includes)
        if file.endswith(".h") and (kernels or "__device__" in (self.root / file).read_text()):
            return "need nvcc"
        if not self.with_cuda and (
            file.endswith("_cuda.cpp") or any(CUDA_INCLUDE.match(name) for name in includes)
        ):
            return "need CUDA's headers, which are not installed"
        return ""

    def of(self, file):
        """(folder, flags, source): a header's source is one that includes it alone."""
        if file in self.sources:
            return (*self.sources[file], self.root / file)
        folder, flags = self.sources[self.neighbour(file)]
        source = self.root / file
        if file.endswith(".h"):
            source = self.work / "headers" / (file + ".cpp")
            source.parent.mkdir(parents=True, exist_ok=True)
            text = f'#include "{self.root / file}"\n'
            if not source.is_file() or source.read_text() != text:
                source.write_text(text)
        return folder, flags, source

    def neighbour(self, file):
        """The source whose flags suit a file that the build does not name."""
        includes = self.includes.of(file)
        wants_cuda = any(CUDA_INCLUDE.match(name) for name in includes)
        wants_isa = "BALLAST_ISA" in (self.root / file).read_text()
        stem, folders = pathlib.PurePath(file).stem, file.split("/")[:-1]

        def likeness(source):
            return (
                not wants_cuda or source.endswith("_cuda.cpp"),
                source.endswith("_cpu.cpp") == wants_isa,
                len(os.path.commonprefix([source.split("/")[:-1], folders])),
                pathlib.PurePath(source).stem in (stem, stem + "_cpu", stem + "_cuda", stem + "_test"),
            )

        return max(sorted(self.sources), key=likeness)


def configure(root, work, batch):
    """Configures, builds nothing; gives the compile_commands.json. batch 0: each source by itself."""
    done = subprocess.run(
        ["cmake", "--preset", "release", "-B", work, f"-DBALLAST_UNITY_BATCH={batch}"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"lint: cmake failed\n{done.stdout}{done.stderr}")
    return work / "compile_commands.json"


def version_of(program):
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d+)", done.stdout)
    return int(found[1]) if found else 0


def find_tidy():
    for name in ("clang-tidy-19", "clang-tidy-20", "clang-tidy-21", "clang-tidy"):
        program = shutil.which(name)
        if program and version_of(program) >= OLDEST_TIDY:
            return program
    sys.exit(f"lint: no clang-tidy of version {OLDEST_TIDY} or newer; scripts/setup.sh --lint installs it")


class Run:
    """Runs checks side by side, tells how far they are and keeps what they find."""

    def __init__(self, root, jobs):
        self.root, self.jobs = root, jobs
        self.rows, self.reported = [], set()
        self.began = time.monotonic()

    def check(self, name, tasks, files=None):
        """tasks: (subject, command, folder). A command that fails has findings in what it prints."""
        began = shown = time.monotonic()
        findings = 0
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            running = [pool.submit(self.one, *task) for task in tasks]
            for done, future in enumerate(concurrent.futures.as_completed(running), 1):
                findings += self.report(name, *future.result())
                now = time.monotonic()
                if now - shown >= 15:
                    shown = now
                    left = (now - began) / done * (len(tasks) - done)
                    print(f"lint: {name} {done} of {len(tasks)}, {findings} findings, "
                          f"about {left:.0f} s left", flush=True)  # fmt: skip
        self.rows.append((name, files or len(tasks), findings, time.monotonic() - began))

    @staticmethod
    def one(subject, command, folder):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        return subject, done.returncode, done.stdout + done.stderr

    def report(self, name, subject, code, text):
        """Prints each finding once, however many sources include the place; gives how many are new."""
        if code == 0:
            return 0
        text = text.replace(f"{self.root}/", "").replace("/./", "/")
        lines = text.splitlines()
        starts = [i for i, line in enumerate(lines) if re.search(r"(warning|error): ", line)]
        if not starts:
            print(f"{subject}: {name} exited {code}\n{text}", flush=True)
            return 1
        new = 0
        for i, start in enumerate(starts):
            if lines[start] in self.reported:
                continue
            self.reported.add(lines[start])
            new += 1
            end = starts[i + 1] if i + 1 < len(starts) else len(lines)
            print("\n".join(lines[start : min(end, start + 6)]), flush=True)
        return new

    def summary(self):
        print("\nlint      files  findings  seconds")
        for name, files, findings, seconds in self.rows:
            print(f"{name:<8}{files:>7}{findings:>10}{seconds:>9.0f}")
        return 1 if any(row[2] for row in self.rows) else 0


def for_clang(flags):
    """Warnings are g++'s to give; some of its names for them are not known to clang."""
    return [f for f in flags if not f.startswith("-W")]


def tidy_tasks(tidy, work, entries, header_filter):
    """entries: (subject, folder, flags, source). Writes the flags where clang-tidy reads them."""
    database = work / "tidy"
    database.mkdir(parents=True, exist_ok=True)
    (database / "compile_commands.json").write_text(
        json.dumps([
            {"directory": str(folder), "file": str(source),
             "arguments": [*for_clang(flags), "-c", str(source)]}
            for _, folder, flags, source in entries
        ])
    )  # fmt: skip
    base = [tidy, "-p", str(database), "--quiet", "--warnings-as-errors=*"]
    return [
        (subject, [*base, f"--header-filter={header_filter(subject)}", str(source)], folder)
        for subject, folder, _, source in entries
    ]


def rank(file):
    folder = file.split("/")[0]
    return (FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS), file)


def main():
    parser = argparse.ArgumentParser(description="Checks sources; scripts/lint.sh says how.")
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--all", action="store_true", help="all files, not only those that changed")
    parser.add_argument("--limit", type=int, default=24, help="changed files to check at most")
    parser.add_argument("--commands", type=pathlib.Path, help="a compile_commands.json to use")
    options = parser.parse_args()
    root = options.root.resolve()
    work = root / "build" / "lint"
    run = Run(root, int(os.environ.get("BALLAST_JOBS") or os.cpu_count() or 1))
    tidy = find_tidy()

    tracked = [f for f in names(git(root, "ls-files", "-z")) if (root / f).is_file()]
    tracked.sort(key=rank)
    base = "" if options.all else base_commit(root)
    files = tracked if options.all else changed_files(root, base, tracked)
    formatted = sorted(set(tracked) | set(files), key=rank)
    run.check("format", [
        (part[0], ["clang-format", "--dry-run", "-Werror", *part], root)
        for part in (formatted[i : i + 20] for i in range(0, len(formatted), 20))
    ], len(formatted))  # fmt: skip
    if not options.all:
        print(f"lint: {len(files)} files differ from {base[:12] or 'nothing: there is no commit before'}")
    if not files:
        return run.summary()

    work.mkdir(parents=True, exist_ok=True)
    commands = Commands(root, options.commands or configure(root, work, 0), work)
    reasons = {f: commands.why_not(f) for f in files}
    for reason in sorted(set(filter(None, reasons.values()))):
        print(f"lint: {sum(r == reason for r in reasons.values())} files are checked for format only: "
              f"they {reason}")  # fmt: skip
    files = [f for f in files if not reasons[f]]
    if not options.all:
        files = selected(root, base, files, options.limit)
    entries = [(f, *commands.of(f)) for f in files]
    run.check("syntax", [
        (f, [*flags, "-fsyntax-only", str(source)], folder) for f, folder, flags, source in entries
    ])  # fmt: skip

    if options.all and not options.commands:
        batches = Commands(root, configure(root, root / "build" / "lint_batches", 24), work)
        known = set(tracked)
        entries = [
            (file, folder, flags, root / file)
            for file, (folder, flags) in batches.sources.items()
            if file in known or "/Unity/" in file
        ]
        here = f"^{re.escape(str(root))}/({'|'.join(FOLDERS)})/"
        run.check("tidy", tidy_tasks(tidy, work, entries, lambda file: here))
    else:
        run.check("tidy", tidy_tasks(tidy, work, entries, lambda f: re.escape(f) + "$"))
    return run.summary()


if __name__ == "__main__":
    sys.exit(main())
