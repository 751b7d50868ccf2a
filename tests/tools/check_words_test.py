"""The check of words must report what it exists to report."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).parents[2] / "tools" / "check_words.py"


def check(text, name="app/a.cpp"):
    """Runs the checker over a repository with one source; gives (exit code, lines)."""
    with tempfile.TemporaryDirectory() as root:
        file = pathlib.Path(root) / "src" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        done = subprocess.run(
            [sys.executable, str(CHECKER), root], capture_output=True, text=True, check=False
        )
    return done.returncode, done.stdout.splitlines()


class WordCheck(unittest.TestCase):
    def expect_one(self, text, line, words):
        code, lines = check(text)
        self.assertEqual((code, len(lines)), (1, 1), lines)
        self.assertTrue(lines[0].startswith(f"src/app/a.cpp:{line}: "), lines[0])
        self.assertIn(words, lines[0])

    def test_phrases_are_reported_with_what_to_say(self):
        for text, words in [
            ("needs 2 GB of device memory", "GPU memory"),
            ("streamed from host memory", "RAM"),
            ("refused: device memory is short", "GPU memory"),
            ("a bug of ours", "internal error"),
            ("a network from nothing", "from scratch"),
            ("the run goes on", "continues"),
            ("what the picture shows", "image"),
            ("clips 3 cached, 2 were there", "already cached"),
            ("faster on a GPU, the same bits no longer", "not bit-reproducible"),
        ]:
            code, lines = check(f'\nprint("{text}");\n')
            self.assertEqual(code, 1, text)
            self.assertIn(words, " ".join(lines))
            self.assertTrue(all(line.startswith("src/app/a.cpp:2: ") for line in lines), lines)

    def test_neighbouring_literals_are_one_text(self):
        self.expect_one('f("streamed from host "\n  "memory");\n', 1, '"host memory"')

    def test_raw_strings_are_read(self):
        self.expect_one('f(R"(of host memory)");\n', 1, "RAM")

    def test_comments_names_and_good_words_pass(self):
        for text in [
            "// host memory\nint a;\n",
            "/* a picture */\n",
            'f("GPU memory, RAM, disk");\n',
            'j["outside_arenas"];\n',
            '#include "infer/first_frame.h"\n',
            "char c = '\"'; // host memory\n",
        ]:
            self.assertEqual(check(text), (0, []), text)


if __name__ == "__main__":
    unittest.main()
