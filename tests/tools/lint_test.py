"""scripts/lint.sh must find what it exists to find, in the files it promises to look at."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

LINT = pathlib.Path(__file__).parents[2] / "tools" / "lint.py"
CHECKS = pathlib.Path(__file__).parents[2] / ".clang-tidy"
GOOD = "int one() { return 1; }\n"
UNFORMATTED = "int   one( ) { return 1; }\n"
WRONG = "int one() { return two; }\n"
MOVED = """#include <string>
#include <utility>

std::string twice(std::string a) {
  std::string b = std::move(a);
  return a + b;
}
"""


class Repository:
    """A repository whose first commit holds good.cpp and, where given, an old file."""

    def __init__(self, test, **old):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / ".clang-tidy").write_text(CHECKS.read_text())
        (self.root / ".clang-format").write_text("BasedOnStyle: Google\n")
        (self.root / ".gitignore").write_text("/build/\n")
        self.git("init", "-q", "-b", "main")
        self.commit({"good.cpp": GOOD, **old})

    def git(self, *arguments):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=self.root, check=True
        )

    def write(self, files):
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def commit(self, files):
        self.write(files)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change")

    def lint(self, *flags, base=None):
        """Gives (exit code, what it prints)."""
        entries = [
            {"directory": str(self.root), "file": str(f), "command": f"g++ -std=c++20 -c {f} -o {f}.o"}
            for f in self.root.rglob("*.cpp")
            if "build" not in f.parts
        ]
        commands = self.root / "build" / "commands.json"
        commands.parent.mkdir(exist_ok=True)
        commands.write_text(json.dumps(entries))
        environment = {k: v for k, v in os.environ.items() if k != "BALLAST_BASE"}
        if base:
            environment["BALLAST_BASE"] = base
        done = subprocess.run(
            [sys.executable, str(LINT), str(self.root), "--commands", str(commands), *flags],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


class Lint(unittest.TestCase):
    def expect(self, outcome, code, *texts):
        self.assertEqual(outcome[0], code, outcome[1])
        for text in texts:
            self.assertIn(text, outcome[1])

    def test_an_unformatted_file_is_found_whether_or_not_it_changed(self):
        there = Repository(self, **{"old.cpp": UNFORMATTED})
        there.commit({"new.h": "#pragma once\n"})
        self.expect(there.lint(), 1, "old.cpp:1:")

    def test_errors_and_findings_of_changed_files_are_found(self):
        there = Repository(self)
        there.commit({"wrong.cpp": WRONG, "wrong.h": "#pragma once\n" + WRONG, "moved.cpp": MOVED})
        self.expect(
            there.lint(), 1, "wrong.cpp:1:20: error", "wrong.h:2:20: error",
            "moved.cpp:6:10: error", "bugprone-use-after-move",
        )  # fmt: skip

    def test_files_that_did_not_change_are_checked_with_all(self):
        there = Repository(self, **{"moved.cpp": MOVED})
        there.commit({"good.cpp": GOOD + "\nint two() { return 2; }\n"})
        self.expect(there.lint(), 0, "1 files differ")
        self.expect(there.lint("--all"), 1, "bugprone-use-after-move")

    def test_the_base_is_where_the_branch_left_main_or_what_is_asked_for(self):
        there = Repository(self)
        there.git("checkout", "-q", "-b", "part")
        there.commit({"moved.cpp": MOVED})
        there.commit({"good.cpp": GOOD + "\nint two() { return 2; }\n"})
        self.expect(there.lint(), 1, "2 files differ", "bugprone-use-after-move")
        self.expect(there.lint(base="HEAD^"), 0, "1 files differ")
        self.expect(there.lint(base="nowhere"), 1, "BALLAST_BASE=nowhere")

    def test_changes_that_are_not_committed_count(self):
        there = Repository(self)
        there.commit({"good.cpp": GOOD + "\nint two() { return 2; }\n"})
        there.write({"moved.cpp": MOVED})
        self.expect(there.lint(), 1, "2 files differ", "bugprone-use-after-move")

    def test_large_changes_are_sampled_and_say_so(self):
        there = Repository(self, **{f"old{i}.cpp": GOOD.replace("one", f"f{i}") for i in range(4)})
        there.commit({
            **{f"old{i}.cpp": "#include <string>\n\n" + GOOD.replace("one", f"f{i}") for i in range(4)},
            **{f"new{i}.cpp": GOOD.replace("one", f"g{i}") for i in range(3)},
        })  # fmt: skip
        self.expect(
            there.lint("--limit", "2"), 0, "7 files changed", "left out 4", "a sample of 2 of 3"
        )

    def test_cuda_sources_are_checked_for_format_only_and_that_is_said(self):
        there = Repository(self)
        there.commit({"kernel.cu": WRONG, "call.h": "#pragma once\n\n#include <cuda_runtime.h>\n"})
        self.expect(there.lint(), 0, "need nvcc", "need CUDA's headers")


if __name__ == "__main__":
    tools = ("git", "g++", "clang-format", "clang-tidy-19")
    if missing := [tool for tool in tools if not shutil.which(tool)]:
        print(f"skipped: {', '.join(missing)} not installed")
        sys.exit(77)
    unittest.main()
