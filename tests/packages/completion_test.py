#!/usr/bin/env python3
"""Completion as shells do it.

    completion_test.py PROGRAM program|bash|zsh|fish

`program` asks `ballast __complete`; bash and zsh get keys in a terminal of their own, fish is asked with
`complete -C`. Exits 77 where the shell is missing.
"""

import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
DEADLINE = 120  # seconds for an answer that takes milliseconds

# What is typed behind "ballast ", the words that are then on the line, and why.
SAME_IN_EVERY_SHELL = [
    ("doct", ["doctor"], "commands"),
    ("plan --detai", ["plan", "--details"], "options of CLI11"),
    ("train --gradient_checkpointing_", ["train", "--gradient_checkpointing_cpu_offload"], "options of trainers"),
    ("train --gradient-checkpointing-", ["train", "--gradient-checkpointing-cpu-offload"], "with dashes"),
    ("plan --target gh2", ["plan", "--target", "gh200"], "targets"),
    ("plan --target=gh2", ["plan", "--target=gh200"], "values behind ="),
    ("plan --model wan2.2-t2", ["plan", "--model", "wan2.2-t2v-a14b"], "presets"),
    ("train --device cu", ["train", "--device", "cuda"], "values of trainers' options"),
    ("bench kern", ["bench", "kernels"], "parts of a command"),
    ("completion fi", ["completion", "fish"], "words that the help names"),
    ("sample --vae mod", ["sample", "--vae", "model of mine.safetensors"], "model files, whatever their names"),
    ("train run", ["train", "run.toml"], "configurations"),
    ("doctor out", ["doctor", "outputs/"], "folders, without a space behind them"),
]


def scripted(shell):
    return subprocess.run([PROGRAM, "completion", shell], capture_output=True, text=True, check=True).stdout


class Folder:
    """A folder with files of every kind, the current one of the shell."""

    def __init__(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.temporary.name)
        for name in ("model of mine.safetensors", "model_notes.txt", "run.toml", "run.md"):
            (self.path / name).write_text("")
        (self.path / "outputs" / "run_1").mkdir(parents=True)
        (self.path / "outputs" / "run_1" / "run_log.jsonl").write_text("")
        (self.path / "bin").mkdir()
        (self.path / "bin" / "ballast").symlink_to(PROGRAM)
        self.environment = {"PATH": f"{self.path}/bin:{os.environ['PATH']}", "HOME": str(self.path),
                            "TERM": "xterm", "LC_ALL": "C.UTF-8", "PS1": "$ "}


class Terminal:
    """A shell that gets keys and prints."""

    def __init__(self, arguments, folder):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.chdir(folder.path)
            os.execvpe(arguments[0], arguments, folder.environment)
        self.text = ""

    def type(self, keys):
        os.write(self.file, keys.encode())

    def read_until(self, pattern):
        end = time.monotonic() + DEADLINE
        while not (found := re.search(pattern, self.text)):
            if time.monotonic() > end or not select.select([self.file], [], [], DEADLINE)[0]:
                raise AssertionError(f"no {pattern!r} in {self.text!r}")
            self.text += os.read(self.file, 65536).decode(errors="replace")
        self.text = self.text[found.end():]
        return found

    def close(self):
        os.close(self.file)
        os.waitpid(self.pid, 0)


class InATerminal:
    """Types a line and TAB; the shell then prints the line's words in brackets."""

    def setUp(self):
        self.folder = Folder()
        self.terminal = Terminal(self.arguments, self.folder)
        self.terminal.type(self.setup + "; words() { printf '<%s>' \"$@\"; echo '<'end'>'; }; echo rea''dy\n")
        self.terminal.read_until("ready\r?\n")

    def tearDown(self):
        self.terminal.close()
        self.folder.temporary.cleanup()

    def test_completes_as_typed(self):
        for typed, expected, why in SAME_IN_EVERY_SHELL:
            with self.subTest(why=why, typed=typed):
                # Control-A goes to the beginning, before "ballast".
                self.terminal.type(f"ballast {typed}\t\x01words \n")
                found = self.terminal.read_until("((?:<[^<>]*>)+)<end>")
                words = re.findall("<([^<>]*)>", found[1])
                self.assertEqual(words, ["ballast"] + expected)


class Bash(InATerminal, unittest.TestCase):
    arguments = ["bash", "--norc", "--noprofile", "-i"]
    setup = "bind 'set enable-bracketed-paste off'; eval \"$(ballast completion bash)\""


class Zsh(InATerminal, unittest.TestCase):
    arguments = ["zsh", "-f", "-i"]
    setup = ("bindkey -e; unset zle_bracketed_paste; unsetopt prompt_sp; autoload -Uz compinit; compinit -u -D; "
             "eval \"$(ballast completion zsh)\"")


class Fish(unittest.TestCase):
    def test_completes_as_typed(self):
        folder = Folder()
        (folder.path / "ballast.fish").write_text(scripted("fish"))
        for typed, expected, why in SAME_IN_EVERY_SHELL:
            with self.subTest(why=why, typed=typed):
                command = f"source ballast.fish; complete -C 'ballast {typed}'"
                done = subprocess.run(["fish", "--no-config", "-c", command], cwd=folder.path, text=True,
                                      env=folder.environment, capture_output=True, check=True)
                words = [line.split("\t")[0] for line in done.stdout.splitlines()]
                self.assertEqual([w.replace("\\ ", " ") for w in words], expected[-1:], done.stderr)
        folder.temporary.cleanup()


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = Folder()
        self.addCleanup(self.folder.temporary.cleanup)

    def candidates(self, *words):
        done = subprocess.run([PROGRAM, "__complete", *words], cwd=self.folder.path, capture_output=True,
                              text=True, check=True)
        return dict((line.split("\t") + [""])[:2] for line in done.stdout.splitlines())

    def commands(self):
        return [c for c in self.candidates("") if c != "help"]

    def test_every_command_and_every_option_of_its_help_page_is_known(self):
        commands = [[c] for c in self.commands() if c != "bench"]
        for command in commands + [["bench", part] for part in self.candidates("bench", "")]:
            page = subprocess.run([PROGRAM, *command, "--help-all" if command == ["train"] else "--help"],
                                  capture_output=True, text=True, check=True).stdout
            named = set(re.findall(r"^  (?:-\w,)?(--[a-zA-Z0-9_-]+)", page, re.M))
            offered = {name.replace("_", "-") for name in self.candidates(*command, "--")}
            missing = {name for name in named if name.replace("_", "-") not in offered}
            self.assertFalse(missing, f"{command} does not complete these options")
            self.assertTrue(named, f"{command} has no option in its help page")

    def test_explanations_are_those_of_the_help_page(self):
        self.assertEqual(self.candidates("plan", "--ra")["--ram"], "RAM, pinned memory included")
        self.assertIn("measure this machine", self.candidates("ben").values())

    def test_values_of_options_are_known(self):
        self.assertEqual(set(self.candidates("plan", "--mode", "")), {"infer", "lora", "full"})
        self.assertIn("auto", self.candidates("plan", "--policy", ""))
        self.assertIn("fp8", self.candidates("plan", "--weights", "fp"))
        self.assertIn("this", self.candidates("train", "--target", "t"))
        self.assertEqual(self.candidates("plan", "--frames", ""), self.candidates("plan", "--ram", ""))

    def test_runs_are_told_from_other_folders(self):
        self.assertEqual(self.candidates("doctor", "outputs/"), {"outputs/run_1/": "a run"})

    def test_a_line_that_bash_split_at_equals_is_one_word(self):
        self.assertEqual(list(self.candidates("plan", "--target", "=", "gh2")), ["gh200"])
        self.assertIn("gh200", self.candidates("plan", "--target", "="))

    def test_nothing_fails(self):
        for words in ([], ["nothing", ""], ["plan", "--nothing", ""], ["inspect", "missing/x"], ["bench", "x", ""]):
            self.candidates(*words)


def main():
    shell = sys.argv[2]
    if shell != "program" and not shutil.which(shell):
        print(f"{shell} is not installed: its completion is not tested. scripts/setup.sh --packages installs it")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], shell.capitalize()])


if __name__ == "__main__":
    main()
