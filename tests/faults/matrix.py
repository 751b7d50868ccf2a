#!/usr/bin/env python3
"""Disturbs small real jobs of the program in many ways and checks how each run ends.

usage: matrix.py --program PROGRAM --libraries FOLDER [options]; scripts/faults.sh builds both and calls it.

After every disturbed run these must hold, or it is a violation:
- it has ended by itself within the time limit, with an exit code of docs/exit-codes.md that is no
  internal error, and with a message; or by the SIGKILL that was injected
- its outputs are absent, or have the bits of the undisturbed run
- a second, undisturbed run (--resume where there is something to resume) ends with all outputs, in the
  bits of the undisturbed run
"""
import argparse
import collections
import concurrent.futures
import datetime
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import hostile
import jobs as fixtures
from jobs import run_program

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# Runs of each kind; "hostile" has as many as its corpus has files.
KINDS = {"kills": 1000, "io": 500, "disks": 100, "memory": 100, "allocations": 100, "threads": 50,
         "hostile": None}
TITLES = {"kills": "SIGKILL at a write, fsync or rename", "io": "I/O faults", "disks": "full disks",
          "memory": "memory limits", "allocations": "failed allocations",
          "threads": "threads that cannot start", "hostile": "hostile inputs"}
IO_FAULTS = ["open:EIO", "open:EMFILE", "open:EACCES", "read:EIO", "read:EINTR", "read:short",
             "write:EIO", "write:ENOSPC", "write:EINTR", "write:short", "sync:EIO", "sync:ENOSPC",
             "rename:EIO", "rename:EACCES", "mkdir:EACCES", "mkdir:ENOSPC", "map:ENOMEM"]
KILLS = [f"{call}:{action}" for call in ("write", "sync", "rename") for action in ("kill", "kill-after")]
ENDS = {0, 3, 4, 5, 6}


class MemoryGroup:
    """A control group (v1 or v2) below our own, or beside it; path is None where none can be made."""

    def __init__(self, name, limit):
        self.path = None
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            v1 = "memory" in controllers.split(",")
            if not v1 and controllers:
                continue
            below = pathlib.Path("/sys/fs/cgroup" + ("/memory" if v1 else "") + own)
            for parent in (below, below.parent):
                path = parent / name
                try:
                    path.mkdir()
                except OSError:
                    continue
                try:
                    (path / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(limit))
                    self.path = path
                    return
                except OSError:
                    path.rmdir()

    def remove(self):
        if self.path is not None:
            self.path.rmdir()


class Case:
    """kind and number say everything about it, given the seed."""

    def __init__(self, kind, number, job, what):
        self.kind, self.number, self.job, self.what = kind, number, job, what


class Matrix:
    def __init__(self, options, root):
        self.options, self.root = options, root
        self.program = str(pathlib.Path(options.program).resolve())
        libraries = pathlib.Path(options.libraries).resolve()
        self.calls, self.allocations = (libraries / f"lib{n}_fault.so" for n in ("call", "allocation"))
        self.limits_work = self.starts_within(4 << 20)
        self.all_jobs = fixtures.make_fixture(self.program, SOURCE, root)
        self.jobs = [j for j in self.all_jobs if options.job in (None, j.name)]
        self.mounts = self.groups = None

    # -- the undisturbed runs

    def starts_within(self, kib):
        return run_program(["/bin/sh", "-c", 'ulimit -v "$0" && exec "$@"', str(kib), self.program,
                            "--version"], self.root)[0] == 0

    def preload(self, library):
        # A program with a sanitizer wants to be first, but these calls do not disturb it.
        return {"LD_PRELOAD": str(library), "BALLAST_FAULT_PATH": str(self.root),
                "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}

    def measure(self, job):
        """Runs a job undisturbed: its outputs, how many calls there are, how long it takes."""
        job.counts = {}
        libraries = [self.calls] + ([self.allocations] if self.limits_work else [])
        for library in libraries:
            folder = self.root / "undisturbed" / job.name / library.stem
            job.prepare(folder)
            began = time.monotonic()
            code, text = run_program([self.program, *job.arguments(folder)], folder,
                                    {**self.preload(library), "BALLAST_FAULT_COUNTS": str(folder / "counts")},
                                    self.options.seconds)
            if code != 0:
                raise RuntimeError(f"{job.name}, undisturbed: exit code {code}\n{text}")
            job.seconds = time.monotonic() - began
            for line in (folder / "counts").read_text().split("\n")[:-1]:
                call, count = line.split()
                job.counts[call] = int(count)
            outputs = job.outputs(folder)
            if not outputs or (job.expected or outputs) != outputs:
                raise RuntimeError(f"{job.name}: two undisturbed runs differ, or left nothing")
            job.expected = outputs
            shutil.rmtree(folder)

    def least_address_space(self):
        """KiB with which the program starts."""
        low, high = 0, 4 << 20
        while high - low > 1000:
            middle = (low + high) // 2
            low, high = (low, middle) if self.starts_within(middle) else (middle, high)
        return high

    def limited(self, job, folder, kib):
        return ["/bin/sh", "-c", 'ulimit -v "$0" && exec "$@"', str(kib), self.program,
                *job.arguments(folder)]

    # -- cases

    def cases(self, kind):
        if kind == "hostile":
            yield from (Case(kind, i, None, c) for i, c in enumerate(self.corpus))
            return
        for i in range(KINDS[kind]):
            numbers = random.Random(f"{self.options.seed} {kind} {i}")
            job = self.jobs[i % len(self.jobs)]
            yield Case(kind, i, job, getattr(self, "choose_" + kind)(job, i // len(self.jobs), numbers))

    @staticmethod
    def nth_call(job, faults, turn, numbers):
        """The faults of the list that this job can meet in turn, at calls spread over the run."""
        met = [f for f in faults if job.counts[f.split(":")[0]] > 0]
        fault = met[turn % len(met)]
        return f"{fault}:{1 + numbers.randrange(job.counts[fault.split(':')[0]])}"

    def choose_kills(self, job, turn, numbers):
        return self.nth_call(job, KILLS, turn, numbers)

    def choose_io(self, job, turn, numbers):
        return self.nth_call(job, IO_FAULTS, turn, numbers)

    def choose_allocations(self, job, turn, numbers):
        return f"alloc:ENOMEM:{1 + numbers.randrange(job.counts['alloc'])}"

    def choose_threads(self, job, turn, numbers):
        return f"thread:EAGAIN:{1 + numbers.randrange(max(job.counts['thread'], 1))}+"

    def choose_disks(self, job, turn, numbers):
        """Every other one is a real file system, where one can be mounted."""
        size = numbers.randrange(max(job.counts["bytes"], 1))
        return f"mount:{size}" if turn % 2 == 0 and self.mounts else f"bytes:ENOSPC:{size + 1}"

    def choose_memory(self, job, turn, numbers):
        """Every other one is a control group, where one can be made, that has room for the program."""
        if turn % 2 == 1 and self.groups:
            return f"cgroup {numbers.randrange(16 << 20, 64 << 20)}"
        return f"ulimit -v {numbers.randrange(self.starts, job.counts['address_kib'] + 4000)}"

    # -- one run

    def run(self, case):
        folder = self.root / "runs" / f"{case.kind}-{case.number}"
        folder.mkdir(parents=True)
        try:
            if case.kind == "hostile":
                return self.run_hostile(case, folder)
            return self.run_job(case, folder)
        finally:
            if os.path.ismount(folder):
                subprocess.run(["umount", "-l", str(folder)], check=True)
            if not self.options.keep:
                shutil.rmtree(folder, ignore_errors=True)

    def run_job(self, case, folder):
        """Exit code of the disturbed run, whether the fault happened, violations."""
        job, what, wrong = case.job, case.what, []
        fired = self.root / "runs" / f"{folder.name}.fired"
        environment, small_disk, group = {}, what.startswith("mount:"), None
        if small_disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "faults", str(folder)], check=True)
        job.prepare(folder)
        (folder / "state").mkdir()
        command = [self.program, *job.arguments(folder)]
        if small_disk and case.number % 4 == 0 and job.command[0] in ("train", "cache", "distill"):
            command.append("--ignore-limits")  # fills the disk instead of being refused
        if small_disk:
            used = sum(p.stat().st_blocks * 512 for p in folder.rglob("*"))
            self.resize(folder, used + int(what.split(":")[1]))
        elif what.startswith("ulimit"):
            command = self.limited(job, folder, int(what.split()[2]))
        elif what.startswith("cgroup"):
            group = MemoryGroup(f"ballast_faults_{os.getpid()}_{case.number}", int(what.split()[1]))
            command = ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group.path), *command]
        else:
            library = self.allocations if what.startswith("alloc") else self.calls
            environment = {**self.preload(library), "BALLAST_FAULT": what, "BALLAST_FAULT_FIRED": str(fired)}
        code, text = run_program(command, folder, environment, self.options.seconds)
        if group is not None:
            group.remove()
        happened = fired.exists() if environment else code != 0
        fired.unlink(missing_ok=True)
        if code is None:
            wrong.append(f"no end within {self.options.seconds} s")
        elif code == -9 and ":kill" in what:
            pass
        elif code not in ENDS:
            wrong.append(f"ended with {code}: {text.strip()[-600:]}")
        elif code != 0 and "ballast: " not in text:
            wrong.append(f"exit code {code} without a message")
        if code != 0 and ("EINTR" in what or "short" in what):
            wrong.append(f"ended with {code} instead of going on: {text.strip()[-600:]}")
        wrong += job.broken(folder)
        if code == 0 and not (job.skips and job.skips in text):
            wrong += job.missing(folder)
        if small_disk:
            self.resize(folder, 64 << 20)
        again, text = run_program([self.program, *job.arguments(folder)], folder, {}, self.options.seconds)
        if again != 0:
            wrong.append(f"the second run ended with {again}: {text.strip()[-600:]}")
        else:
            wrong += ["after the second run: " + w for w in job.broken(folder) + job.missing(folder)]
        return code, happened, wrong

    @staticmethod
    def resize(folder, size):
        subprocess.run(["mount", "-o", f"remount,size={max(size, 4096)}", str(folder)], check=True)

    def run_hostile(self, case, folder):
        damage, wrong = case.what, []
        command = [self.program, *damage.prepare(folder)]
        if self.limits_work:  # what a damaged file says is no reason to allocate
            command = ["/bin/sh", "-c", 'ulimit -v "$0" && exec "$@"', str(2 << 20), *command]
        # A thread that finds malloc busy reserves 128 MiB of addresses: chance, not the file.
        code, text = run_program(command, folder, {"MALLOC_ARENA_MAX": "1"}, self.options.seconds)
        if code is None:
            wrong.append(f"no end within {self.options.seconds} s")
        elif code not in damage.ends:
            wrong.append(f"ended with {code}: {text.strip()[-600:]}")
        elif code != 0 and "ballast: " not in text:
            wrong.append(f"exit code {code} without a message")
        if code == 0 and damage.job is not None:
            wrong += damage.job.broken(folder) + damage.job.missing(folder)
        return code, True, wrong

    # -- all of them

    def prepare(self, kinds):
        for job in self.all_jobs if "hostile" in kinds else self.jobs:
            self.measure(job)
        # Streamed, resident or resumed: the same training.
        trained = {str(sorted(map(str, j.expected.items()))) for j in self.all_jobs[:3] if j.expected}
        if len(trained) > 1:
            raise RuntimeError("the same training under two policies has other bits")
        self.starts = self.least_address_space() if "memory" in kinds else None
        group = MemoryGroup(f"ballast_faults_{os.getpid()}", 64 << 20)
        self.groups = group.path is not None
        group.remove()
        probe = self.root / "probe"
        probe.mkdir()
        self.mounts = subprocess.run(["mount", "-t", "tmpfs", "faults", str(probe)],
                                     capture_output=True).returncode == 0
        if self.mounts:
            subprocess.run(["umount", str(probe)], check=True)
        if "hostile" in kinds:
            self.corpus = hostile.corpus(self.root, self.jobs)

    def select(self, kinds):
        """The cases of this call: all, or a sample spread over all kinds."""
        chosen = []
        for kind in kinds:
            all_cases = [c for c in self.cases(kind) if c.number >= self.options.first]
            if self.options.count is not None:
                all_cases = all_cases[:self.options.count]
            if self.options.sample is not None:
                share = min(len(all_cases), max(self.options.sample // len(kinds), 1))
                # One step beyond a round of the jobs: every job and every kind of fault comes.
                step = max(len(all_cases) // max(share, 1), 1)
                all_cases = all_cases[::step | 1][:share]
            chosen += all_cases
        return chosen

    def run_all(self, cases):
        results, lock, began, shown = [], threading.Lock(), time.monotonic(), [0.0]

        def one(case):
            code, happened, wrong = self.run(case)
            with lock:
                results.append((case, code, happened, wrong))
                for w in wrong:
                    what = case.what if case.job else case.what.name
                    job = case.job.name + ", " if case.job else ""
                    print(f"VIOLATION {case.kind} {case.number} ({job}{what}): {w}", flush=True)
                spent = time.monotonic() - began
                if spent - shown[0] > 10:
                    shown[0] = spent
                    left = spent / len(results) * (len(cases) - len(results))
                    print(f"{len(results)} of {len(cases)} runs, {left:.0f} s left", flush=True)

        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for future in [pool.submit(one, c) for c in cases]:
                future.result()
        return results


def table(results, kinds):
    lines = ["| kind | runs | fault happened | exit codes (runs) | violations |", "|---|---|---|---|---|"]
    for kind in kinds:
        of_kind = [r for r in results if r[0].kind == kind]
        if not of_kind:
            continue
        codes = collections.Counter("no end" if c is None else "SIGKILL" if c == -9 else str(c)
                                    for _, c, _, _ in of_kind)
        text = ", ".join(f"{code} ({n:,})" for code, n in sorted(codes.items()))
        happened = "" if kind == "hostile" else f"{sum(h for _, _, h, _ in of_kind):,}"
        violated = sum(1 for r in of_kind if r[3])
        lines.append(f"| {TITLES[kind]} | {len(of_kind):,} | {happened} | {text} | {violated} |")
    parsers = collections.Counter(r[0].what.parser for r in results if r[0].kind == "hostile")
    if parsers:
        lines += ["", "| hostile inputs by parser | files | violations |", "|---|---|---|"]
        violated = collections.Counter(r[0].what.parser for r in results if r[0].kind == "hostile" and r[3])
        lines += [f"| {p} | {n} | {violated[p]} |" for p, n in sorted(parsers.items())]
    return "\n".join(lines)


def write_table(path, text, seed):
    begin, end = "<!-- faults: begin -->", "<!-- faults: end -->"
    commit = subprocess.run(["git", "-C", str(SOURCE), "describe", "--always", "--dirty"],
                            capture_output=True, text=True).stdout.strip()
    head = f"{datetime.date.today().isoformat()}, commit {commit}, seed {seed}, {os.cpu_count()} processors:"
    old = path.read_text()
    if begin not in old or end not in old:
        raise SystemExit(f"{path} has no lines {begin} and {end}")
    before, after = old.split(begin)[0], old.split(end)[1]
    path.write_text(f"{before}{begin}\n{head}\n\n{text}\n{end}{after}")


def folder_in_ram():
    """Where fsync takes no time; None where there is too little of it."""
    try:
        space = os.statvfs("/dev/shm")
    except OSError:
        return None
    enough = space.f_bavail * space.f_frsize > 1 << 30
    return "/dev/shm" if enough and os.access("/dev/shm", os.W_OK) else None


def main():
    parser = argparse.ArgumentParser(description="disturbs small jobs and checks how they end")
    parser.add_argument("--program", required=True)
    parser.add_argument("--libraries", required=True, help="folder of libcall_fault.so and liballocation_fault.so")
    parser.add_argument("--only", action="append", choices=KINDS, help="this kind only; may be repeated")
    parser.add_argument("--job", help="this job only: \"train streamed\", \"convert merge\", ...")
    parser.add_argument("--hostile", action="store_true", help="hostile inputs only")
    parser.add_argument("--seed", type=int, default=1, help="other calls to disturb")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="N", help="begin at case N of a kind")
    parser.add_argument("--count", type=int, metavar="N", help="at most so many cases of a kind")
    parser.add_argument("--sample", type=int, metavar="N", help="so many cases in all, spread evenly")
    parser.add_argument("--seconds", type=int, default=60, help="time limit of a run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at once")
    parser.add_argument("--work", help="folder for what runs read and write (default: RAM, if there is any)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all runs")
    parser.add_argument("--write", type=pathlib.Path, help="put the table into this document")
    options = parser.parse_args()
    kinds = ["hostile"] if options.hostile else options.only or list(KINDS)
    root = pathlib.Path(tempfile.mkdtemp(prefix="ballast-faults-", dir=options.work or folder_in_ram())).resolve()
    try:
        try:
            matrix = Matrix(options, root)
        except fixtures.Unsupported as e:
            print(f"skipped: {e}")
            return 77
        if not matrix.limits_work:
            without = [k for k in kinds if k in ("memory", "allocations")]
            kinds = [k for k in kinds if k not in without]
            if without:
                print("the program does not start under ulimit -v (a sanitizer?): no " + ", ".join(without))
        if not matrix.jobs:
            parser.error("--job: there are " + ", ".join(j.name for j in matrix.all_jobs))
        matrix.prepare(kinds)
        results = matrix.run_all(matrix.select(kinds))
    finally:
        if options.keep:
            print(f"kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
    text = table(results, kinds)
    print("\n" + text)
    if options.write:
        write_table(options.write, text, options.seed)
    return 1 if not results or any(r[3] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
