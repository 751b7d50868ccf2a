"""The check of documents must report what it exists to report."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).parents[2] / "tools" / "check_docs.py"

DECISION = "docs/decisions/0001-record.md"
INDEX = "docs/decisions/README.md"
GOOD = {
    "README.md": "# Project\n",
    "CONTRIBUTING.md": "## Where features live\n\n| feature | file |\n|---|---|\n| one | `src/a.h` |\n",
    "src/a.h": "",
    DECISION: "# 1. Record\n\nStatus: accepted\n",
    "docs/decisions/0002-plan.md": "# 2. Plan\n\nStatus: superseded by 1\n",
    INDEX: "| 1 | [Record](0001-record.md) | accepted |\n| 2 | [Plan](0002-plan.md) | superseded by 1 |\n",
}


def check(changes):
    """Runs the checker over a good repository with changes; gives (exit code, lines)."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in {**GOOD, **changes}.items():
            file = pathlib.Path(root) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        done = subprocess.run(
            [sys.executable, str(CHECKER), root], capture_output=True, text=True, check=False
        )
    return done.returncode, done.stdout.splitlines()


class DocumentCheck(unittest.TestCase):
    def expect_one(self, changes, place, words):
        code, lines = check(changes)
        self.assertEqual((code, len(lines)), (1, 1), lines)
        self.assertTrue(lines[0].startswith(place + ": "), lines[0])
        self.assertIn(words, lines[0])

    def test_a_good_repository_passes(self):
        self.assertEqual(check({}), (0, []))
        self.assertEqual(check({DECISION: GOOD[DECISION] + "x\n" * 37}), (0, []))

    def test_long_decisions_are_reported(self):
        self.expect_one({DECISION: GOOD[DECISION] + "x\n" * 38}, DECISION + ":41", "41 lines")

    def test_decisions_need_a_status(self):
        code, lines = check({DECISION: "# 1. Record\n"})
        self.assertEqual(code, 1)
        self.assertIn(f"{DECISION}:1: not exactly one line", lines[0])
        code, lines = check({DECISION: "# 1. Record\n\nStatus: holds\n"})
        self.assertEqual(code, 1)
        self.assertIn("not exactly one line", lines[0])

    def test_a_decision_may_be_superseded_only_by_one_that_exists(self):
        self.expect_one(
            {
                DECISION: "# 1. Record\n\nStatus: superseded by 7\n",
                INDEX: GOOD[INDEX].replace("accepted", "superseded by 7"),
            },
            DECISION + ":3",
            "7, which does not exist",
        )

    def test_the_title_has_the_number(self):
        self.expect_one({DECISION: "# 3. Record\n\nStatus: accepted\n"}, DECISION + ":1", '"# 1. "')

    def test_the_index_lists_every_decision(self):
        self.expect_one(
            {"docs/decisions/0003-run.md": "# 3. Run\n\nStatus: accepted\n"},
            INDEX + ":1",
            "0003-run.md is not listed",
        )

    def test_the_index_lists_what_exists_with_its_status(self):
        self.expect_one(
            {INDEX: GOOD[INDEX] + "| 9 | [Gone](0009-gone.md) | accepted |\n"}, INDEX + ":3", "does not exist"
        )
        self.expect_one(
            {INDEX: GOOD[INDEX].replace("superseded by 1", "accepted")}, INDEX + ":2", "its file says"
        )

    def test_files_of_features_exist(self):
        self.expect_one(
            {"CONTRIBUTING.md": GOOD["CONTRIBUTING.md"] + "| two | `src/b.h` |\n"},
            "CONTRIBUTING.md:6",
            "src/b.h does not exist",
        )

    def test_the_table_of_features_is_needed(self):
        self.expect_one({"CONTRIBUTING.md": "# Contributing\n"}, "CONTRIBUTING.md:1", "no table")

    def test_references_to_documents_that_are_not_here_are_reported(self):
        for text in ["as note " + "001 has it", "(wan" + ".md 2.6)"]:
            self.expect_one({"src/a.h": f"// one\n// {text}\n"}, "src/a.h:2", "means nothing here")
        self.assertEqual(check({"src/a.h": "// docs/training.md, decision 3; a note 12 times\n"}), (0, []))

    def test_the_readme_is_short(self):
        self.expect_one({"README.md": "x\n" * 121}, "README.md:121", "more than 120")


if __name__ == "__main__":
    unittest.main()
