"""The link check must report what it exists to report."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).parents[2] / "tools" / "check_links.py"


def check(files):
    """Runs the checker over a repository of {path: text}; gives (exit code, lines)."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            file = pathlib.Path(root) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        done = subprocess.run(
            [sys.executable, str(CHECKER), root], capture_output=True, text=True, check=False
        )
    return done.returncode, done.stdout.splitlines()


class LinkCheck(unittest.TestCase):
    def expect_clean(self, files):
        self.assertEqual(check(files), (0, []))

    def expect_one(self, files, place, words):
        code, lines = check(files)
        self.assertEqual((code, len(lines)), (1, 1), lines)
        self.assertTrue(lines[0].startswith(place + ": "), lines[0])
        self.assertIn(words, lines[0])

    def test_links_that_lead_somewhere_pass(self):
        self.expect_clean(
            {
                "README.md": "![image](docs/a.png) [page](docs/page.md), [folder](docs)\n"
                "[web](https://example.org/#x) [mail](mailto:a@example.org)\n"
                "[part](docs/page.md#two-words-and-code) [id](docs/page.md#below) [here](#top)\n\n# Top\n",
                "docs/page.md": "# Two words, and `code`\n<a id=\"below\"></a>\n[up](../README.md)\n[ref]: ../README.md\n",
                "docs/a.png": "",
            }
        )

    def test_a_missing_file_is_reported(self):
        self.expect_one({"docs/a.md": "text\n\n[b](b.md)\n"}, "docs/a.md:3", "b.md does not exist")

    def test_a_missing_image_is_reported(self):
        self.expect_one({"a.md": "![b](b.png)\n"}, "a.md:1", "b.png does not exist")

    def test_a_missing_reference_is_reported(self):
        self.expect_one({"a.md": "[b]: b.md\n"}, "a.md:1", "b.md does not exist")

    def test_a_missing_anchor_is_reported(self):
        files = {"a.md": "[b](b.md#two)\n", "b.md": "# One\n"}
        self.expect_one(files, "a.md:1", "no heading or id #two")
        self.expect_one({"a.md": "# One\n[here](#two)\n"}, "a.md:2", "no heading or id #two")

    def test_the_second_of_two_equal_headings_has_a_number(self):
        self.expect_clean({"a.md": "# One\n# One\n[here](#one-1)\n"})
        self.expect_one({"a.md": "# One\n[here](#one-1)\n"}, "a.md:2", "#one-1")

    def test_an_anchor_of_a_source_is_reported(self):
        self.expect_one({"a.md": "[b](b.h#L3)\n", "b.h": ""}, "a.md:1", "is no document")

    def test_absolute_paths_and_paths_outside_are_reported(self):
        self.expect_one({"a.md": "[b](/etc/passwd)\n"}, "a.md:1", "absolute")
        self.expect_one({"a.md": "[b](../..)\n"}, "a.md:1", "leaves the repository")

    def test_two_links_of_one_line_are_both_checked(self):
        code, lines = check({"a.md": "[b](b.md) and [c](c.md)\n"})
        self.assertEqual((code, len(lines)), (1, 2), lines)

    def test_code_is_no_link(self):
        self.expect_clean({"a.md": "`[b](b.md)`\n\n```\n[c](c.md)\n# no heading\n```\n"})

    def test_text_behind_a_code_block_is_checked(self):
        self.expect_one({"a.md": "```\nx\n```\n[c](c.md)\n"}, "a.md:4", "c.md")

    def test_folders_that_are_not_the_repositorys_are_left_out(self):
        self.expect_clean({"build/a.md": "[b](b.md)", ".venv/a.md": "[b](b.md)", "data/a.md": "[b](b.md)"})
        self.expect_one({"docs/build/a.md": "[b](b.md)"}, "docs/build/a.md:1", "b.md")


if __name__ == "__main__":
    unittest.main()
