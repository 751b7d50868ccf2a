#!/usr/bin/env python3
"""The manual pages say what the help pages say.   man_pages_test.py PROGRAM"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()


def make(folder, epoch="1700000000"):
    subprocess.run([sys.executable, ROOT / "tools" / "make_man_pages.py", "--program", PROGRAM, "--docs",
                    ROOT / "docs", "--output", folder], check=True,
                   env={**os.environ, "SOURCE_DATE_EPOCH": epoch})
    return {p.name: p.read_text() for p in sorted(pathlib.Path(folder).iterdir())}


def plain(page):
    return re.sub(r"\\f.", "", page).replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


class ManPages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.pages = make(self.folder.name)

    def test_every_command_has_a_page_with_every_option(self):
        help_text = subprocess.run([PROGRAM, "help", "--markdown"], capture_output=True, text=True, check=True).stdout
        commands = re.findall(r"^## ballast (\w+)$", help_text, re.M)
        self.assertGreater(len(commands), 10)
        for command in commands:
            page = plain(self.pages[f"ballast-{command}.1"])
            text = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
            for option in re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.M):
                self.assertIn(option, page)
            self.assertIn(f"ballast-{command}(1)", plain(self.pages["ballast.1"]))

    def test_pages_have_the_tables_of_the_documents(self):
        for name, page in self.pages.items():
            for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "FILES", "ENVIRONMENT", "EXIT STATUS"):
                self.assertEqual(page.count(f".SH {section}\n"), 1, f"{section} of {name}")
            self.assertIn("BALLAST_LOG", page)
            self.assertIn("a rank of a run with several was killed", plain(page))
            self.assertNotIn("](", page)

    def test_the_same_program_and_date_give_the_same_bytes(self):
        with tempfile.TemporaryDirectory() as again:
            self.assertEqual(make(again), self.pages)

    def test_groff_has_nothing_to_say(self):
        if not shutil.which("groff"):
            self.skipTest("groff is not installed")
        for name in self.pages:
            done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", pathlib.Path(self.folder.name) / name],
                                  capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
            self.assertEqual(done.stderr, "", name)


if __name__ == "__main__":
    unittest.main()
