#!/usr/bin/env python3
"""`ballast --version --json` says how the program was built.   version_test.py PROGRAM SOURCES"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

PROGRAM, SOURCES = sys.argv.pop(1), sys.argv.pop(1)


class Version(unittest.TestCase):
    def test_names_commit_compiler_flags_and_tree(self):
        done = subprocess.run([PROGRAM, "--version", "--json"], capture_output=True, text=True, check=True)
        said = json.loads(done.stdout)
        text = (pathlib.Path(SOURCES) / "CMakeLists.txt").read_text()
        self.assertEqual(said["version"], re.search(r"project\(ballast VERSION ([0-9.]+)", text)[1])
        self.assertRegex(said["compiler"], r"^(GNU|Clang) [0-9]+\.")
        self.assertIsInstance(said["flags"], str)
        self.assertRegex(said["target"], "^Linux ")
        self.assertIn(said["cuda"], (True, False))
        if said["commit"] is None:  # no git checkout
            self.assertIsNone(said["clean"])
        else:
            self.assertRegex(said["commit"], "^[0-9a-f]{40}$")
            self.assertIn(said["clean"], (True, False))


if __name__ == "__main__":
    unittest.main()
