#!/usr/bin/env python3
"""Disturbs one rank of a training with several, or its launcher, and checks how the job ends.

usage: ranks.py --program PROGRAM --libraries FOLDER [options]; scripts/faults.sh --ranks calls it.

Faults come at calls of a rank (reads of weights and samples, writes, fsyncs, renames, allocations), so at
its start, while it loads, in its steps and while it saves. After each of them these must hold, or it is a
violation:
- the job ends by itself within the time limit, with the code of the fault
- one report is printed as a whole; nothing of the job is left running, or stopped
- outputs are absent, or have the bits of an undisturbed run
- a second, undisturbed run of the same command resumes what there is and ends with these bits
"""
import argparse
import collections
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time

import jobs as fixtures
from jobs import Job, run_program

SOURCE = pathlib.Path(__file__).resolve().parents[2]
RANKS = 3
HANG_SECONDS = 3
# Name, library, ranks that it can befall, calls, exit codes. Code 0: it was tolerated, or came too late.
FAULTS = {
    "killed": ("kill", [1, 2], ["read", "open", "map"], {8}),
    "coordinator killed": ("kill", [0], ["read", "write", "sync", "rename"], {8}),
    "crashed": ("segv", [0, 1, 2], ["read", "open"], {8}),
    "ended without a word": ("exit", [0, 1, 2], ["read", "open"], {8}),
    "SIGTERM to one rank": ("term", [0, 1, 2], ["read"], {0, 8}),
    "stopped": ("stop", [0, 1, 2], ["read"], {8}),
    "error": ("EIO", [0, 1, 2], ["read", "open"], {0, 3, 4, 5, 6}),
    "out of memory": ("ENOMEM", [0, 1, 2], ["alloc"], {0, 3, 4, 5, 6}),
    "full disk": ("ENOSPC", [0], ["write", "sync"], {0, 6}),
    "launcher killed": ("launcher", [0, 1, 2], ["read", "sync"], {-9}),
}
TITLES = list(FAULTS)
SIZE = 40  # runs of each fault


class Matrix:
    def __init__(self, options, root):
        self.options, self.root = options, root
        self.program = str(pathlib.Path(options.program).resolve())
        libraries = pathlib.Path(options.libraries).resolve()
        self.library = {"calls": libraries / "libcall_fault.so", "allocations": libraries / "liballocation_fault.so"}
        for library in self.library.values():
            if not library.is_file():
                raise SystemExit(f"{library} is missing: build the target {library.stem[3:]}")
        train = fixtures.make_fixture(self.program, SOURCE, root)[1]
        ranks = ["--ranks", str(RANKS), "--columns", "3", "--global-batch", "3", "--threads", "1"]
        # A step takes the three samples of an epoch.
        config = root / "fixture" / "ranks.toml"
        config.write_text(train.inputs["run.toml"].read_text().replace("epochs = 2", "epochs = 6"))
        inputs = {**train.inputs, "run.toml": config}
        self.job = Job("train with ranks", inputs, train.command[:-2] + ["--device", "cpu", *ranks],
                       train.patterns, ["--resume"])
        self.counts = [collections.Counter() for _ in range(RANKS)]
        for library in self.library.values():
            self.measure(library)

    def environment(self, library, mark):
        return {"LD_PRELOAD": str(library), "BALLAST_FAULT_PATH": str(self.root),
                "BALLAST_HANG_SECONDS": str(HANG_SECONDS), "BALLAST_RANKS_MATRIX": mark}

    def measure(self, library):
        folder = self.root / "undisturbed" / library.stem
        self.job.prepare(folder)
        code, text = run_program([self.program, *self.job.arguments(folder)], folder,
                                {**self.environment(library, "0"), "BALLAST_FAULT_COUNTS": str(folder / "counts")},
                                self.options.seconds)
        if code != 0:
            raise RuntimeError(f"undisturbed: exit code {code}\n{text}")
        for rank in range(RANKS):
            for line in (folder / f"counts.{rank}").read_text().split("\n")[:-1]:
                call, count = line.split()
                self.counts[rank][call] = max(self.counts[rank][call], int(count))
        outputs = self.job.outputs(folder)
        if not outputs or (self.job.expected or outputs) != outputs:
            raise RuntimeError("two undisturbed runs differ, or left nothing")
        self.job.expected = outputs
        shutil.rmtree(folder)

    def choose(self, title, number):
        """Rank and fault, spread over the calls of the rank."""
        action, ranks, calls, codes = FAULTS[title]
        numbers = random.Random(f"{self.options.seed} {title} {number}")
        rank = ranks[number % len(ranks)]
        met = [c for c in calls if self.counts[rank][c] > 0]
        call = met[number // len(ranks) % len(met)]
        return rank, f"{call}:{action}:{1 + numbers.randrange(self.counts[rank][call])}", codes

    @staticmethod
    def left(mark):
        """Processes of a job that are there."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"BALLAST_RANKS_MATRIX={mark}".encode() in (
                        (entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
            except OSError:
                pass  # gone, or another user's
        return found

    def run(self, title, number):
        rank, what, codes = self.choose(title, number)
        mark = f"{os.getpid()}-{title}-{number}"
        folder = self.root / "runs" / f"{TITLES.index(title)}-{number}"
        folder.mkdir(parents=True)
        fired = folder.with_suffix(".fired")
        self.job.prepare(folder)
        (folder / "state").mkdir()
        library = self.library["allocations" if what.startswith("alloc") else "calls"]
        code, text = run_program(
            [self.program, *self.job.arguments(folder)], folder,
            {**self.environment(library, mark), "BALLAST_FAULT": what, "BALLAST_FAULT_RANK": str(rank),
             "BALLAST_FAULT_FIRED": str(fired)}, self.options.seconds)
        ended = time.time()
        happened, wrong = fired.exists(), []
        spent = ended - fired.stat().st_mtime if happened else None  # from the fault to the last exit
        fired.unlink(missing_ok=True)
        deadline = time.monotonic() + 10  # the kernel ends processes of a killed launcher beside us
        while (running := self.left(mark)) and time.monotonic() < deadline:
            time.sleep(0.01)
        if running:
            wrong.append(f"processes are left: {running}")
            for pid in running:
                os.kill(pid, 9)
        if code is None:
            wrong.append(f"no end within {self.options.seconds} s: {text.strip()[-600:]}")
        elif code not in (codes if happened else {0}):
            wrong.append(f"ended with {code}, expected one of {sorted(codes)}: {text.strip()[-900:]}")
        elif code > 0:
            whole = re.findall(r"^ballast: (?!warning|step|resumed|report|stopped)(.*)$", text, re.M)
            reports = [line for line in whole if re.match(r"rank \d+ ", line)]
            if code == 8 and len(reports) != 1:
                wrong.append(f"{len(reports)} reports: {text.strip()[-900:]}")
            if code == 8 and f"rank {rank} " not in (reports or [""])[0]:
                wrong.append(f"the report is of another rank than {rank}: {text.strip()[-900:]}")
            if not whole:
                wrong.append(f"exit code {code} without a message: {text.strip()[-900:]}")
        wrong += self.job.broken(folder)
        again, text = run_program([self.program, *self.job.arguments(folder)], folder, {}, self.options.seconds)
        if again != 0:
            wrong.append(f"the second run ended with {again}: {text.strip()[-600:]}")
        else:
            wrong += ["after the second run: " + w for w in self.job.broken(folder) + self.job.missing(folder)]
        if not self.options.keep:
            shutil.rmtree(folder, ignore_errors=True)
        if self.options.verbose:
            print(f"{title} {number}: rank {rank}, {what}, exit code {code}"
                  + (f", {spent:.2f} s after it" if happened else ""), flush=True)
        for w in wrong:
            print(f"VIOLATION {title} {number} (rank {rank}, {what}): {w}", flush=True)
        return title, code, happened, wrong, spent


def table(results):
    lines = ["| fault at one rank | runs | fault happened | exit codes (runs) | seconds to the last exit: median, most | violations |",
             "|---|---|---|---|---|---|"]
    for title in TITLES:
        of_kind = [r for r in results if r[0] == title]
        if not of_kind:
            continue
        codes = collections.Counter(str(r[1]) for r in of_kind)
        spent = sorted(r[4] for r in of_kind if r[4] is not None)
        seconds = f"{spent[len(spent) // 2]:.2f}, {spent[-1]:.2f}" if spent else "-"
        lines.append(f"| {title} | {len(of_kind)} | {sum(r[2] for r in of_kind)} | "
                     + ", ".join(f"{c} ({n})" for c, n in sorted(codes.items()))
                     + f" | {seconds} | {sum(bool(r[3]) for r in of_kind)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="disturbs one rank of a training and checks how the job ends")
    parser.add_argument("--program", required=True)
    parser.add_argument("--libraries", required=True, help="folder of libcall_fault.so and liballocation_fault.so")
    parser.add_argument("--only", action="append", choices=TITLES, help="this fault only; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="other calls to disturb")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="N", help="begin at run N of a fault")
    parser.add_argument("--count", type=int, default=SIZE, metavar="N", help="so many runs of each fault")
    parser.add_argument("--seconds", type=int, default=60, help="time limit of a run")
    parser.add_argument("--work", help="folder for what runs read and write (default: RAM, if there is any)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all runs")
    parser.add_argument("--verbose", action="store_true", help="a line for each run")
    options = parser.parse_args()
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    root = pathlib.Path(tempfile.mkdtemp(prefix="ballast-ranks-", dir=options.work or shared)).resolve()
    try:
        try:
            matrix = Matrix(options, root)
        except fixtures.Unsupported as e:
            print(f"skipped: {e}")
            return 77
        results = [matrix.run(title, n) for n in range(options.first, options.first + options.count)
                   for title in options.only or TITLES]
    finally:
        if options.keep:
            print(f"kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
    print("\n" + table(results))
    return 1 if not results or any(r[3] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
