"""The layer check must report what it exists to report."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).parents[2] / "tools" / "check_layers.py"


def check(files):
    """Runs the checker over a repository of {path: text}; gives (exit code, lines)."""
    with tempfile.TemporaryDirectory() as root:
        (pathlib.Path(root) / "src").mkdir()
        for name, text in files.items():
            file = pathlib.Path(root) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        done = subprocess.run(
            [sys.executable, str(CHECKER), root], capture_output=True, text=True, check=False
        )
    return done.returncode, done.stdout.splitlines()


def source(*includes):
    return "".join(f'#include "{name}"\n' for name in includes)


class LayerCheck(unittest.TestCase):
    def expect_clean(self, files):
        self.assertEqual(check(files), (0, []))

    def expect_one(self, files, place, words):
        code, lines = check(files)
        self.assertEqual((code, len(lines)), (1, 1), lines)
        self.assertTrue(lines[0].startswith(place + ": "), lines[0])
        self.assertIn(words, lines[0])

    def test_allowed_directions_pass(self):
        self.expect_clean(
            {
                "src/core/a.cpp": source("core/a.h"),
                "src/plan/a.cpp": source("core/a.h", "memory/a.h", "plan/a.h"),
                "src/models/wan/a.cpp": source("nn/a.h", "ops/a.h", "io/a.h", "models/wan/a.h"),
                "src/train/a.cpp": source("infer/a.h", "data/a.h", "dist/a.h", "report/a.h"),
                "src/report/a.cpp": source("plan/a.h"),
                "src/app/a.cpp": source("train/a.h", "report/a.h", "data/a.h"),
                "src/ballast/a.cpp": source("ballast/a.h", "train/a.h", "report/a.h"),
            }
        )

    def test_forbidden_directions_are_reported(self):
        for layer, target in [
            ("core", "memory"),
            ("memory", "plan"),
            ("plan", "ops"),
            ("plan", "io"),
            ("ops", "io"),
            ("ops", "nn"),
            ("nn", "models"),
            ("nn", "io"),
            ("models", "infer"),
            ("models", "report"),
            ("infer", "data"),
            ("io", "plan"),
            ("dist", "io"),
            ("data", "plan"),
            ("report", "ops"),
            ("report", "io"),
            ("train", "app"),
            ("train", "ballast"),
            ("ballast", "app"),
            ("app", "ballast"),
        ]:
            with self.subTest(layer=layer, target=target):
                files = {f"src/{layer}/a.cpp": "// c\n" + source(f"{target}/b.h")}
                self.expect_one(files, f"src/{layer}/a.cpp:2", f'may not include "{target}/b.h"')

    def test_includes_start_at_src(self):
        self.expect_one({"src/core/a.cpp": source("a.h")}, "src/core/a.cpp:1", "does not start")
        self.expect_one({"src/app/a.cpp": source("../core/a.h")}, "src/app/a.cpp:1", "does not start")
        self.expect_one({"src/app/a.cpp": source("tests/a.h")}, "src/app/a.cpp:1", "does not start")

    def test_rooms_of_a_layer(self):
        self.expect_clean(
            {
                "src/train/recipes/a.cpp": source("train/config/a.h", "train/run/a.h", "train/a.h"),
                "src/train/a.cpp": source("train/recipes/a.h"),
                "src/ops/linear/a.cpp": source("ops/kernels/a.h", "ops/add.h"),
            }
        )
        self.expect_one(
            {"src/train/config/a.cpp": source("train/recipes/a.h")}, "src/train/config/a.cpp:1", "may not"
        )
        self.expect_one(
            {"src/ops/kernels/a.cpp": source("ops/linear/a.h")}, "src/ops/kernels/a.cpp:1", "may not"
        )
        self.expect_one({"src/app/misc/a.cpp": ""}, "src/app/misc/a.cpp:1", "is not a folder of app")

    def test_unknown_folders_are_reported(self):
        self.expect_one({"src/misc/a.cpp": ""}, "src/misc/a.cpp:1", "is not a layer")
        self.expect_one({"src/a.cpp": ""}, "src/a.cpp:1", "is not a layer")

    def test_commented_includes_do_not_count(self):
        self.expect_clean({"src/core/a.cpp": '/*\n#include "app/a.h"\n*/\n// #include "app/b.h"\n'})

    def test_headers_need_pragma_once(self):
        self.expect_one({"src/core/a.h": "int f();\n"}, "src/core/a.h:1", "#pragma once")
        self.expect_one({"tests/ref/a.h": "int f();\n"}, "tests/ref/a.h:1", "#pragma once")

    def test_headers_have_no_using_namespace(self):
        text = "#pragma once\nusing namespace std;\n"
        self.expect_one({"src/core/a.h": text}, "src/core/a.h:2", "using namespace")
        self.expect_clean({"src/core/a.cpp": "using namespace std;\n"})

    def test_conditions_live_in_few_places(self):
        text = "#ifdef X\n#endif\n"
        self.expect_one({"src/io/a.cpp": text}, "src/io/a.cpp:1", "conditional compilation")
        self.expect_one({"src/io/a.cpp": "  # if X\n#endif\n"}, "src/io/a.cpp:1", "conditional")
        self.expect_clean(
            {
                "src/ops/kernels/on_device.h": "#pragma once\n" + text,
                "src/core/simd.h": "#pragma once\n" + text,
                "src/core/simd.cpp": text,
                "src/ops/a_cuda.cu": text,
                "tests/support/a.cpp": text,
            }
        )

    def test_gpu_memory_comes_from_the_arena(self):
        call = "cudaMalloc(&p, n);\n"
        arena = "GpuArena memory;\n"
        self.expect_one({"src/ops/a_cuda.cpp": call}, "src/ops/a_cuda.cpp:1", "cudaMalloc: ")
        self.expect_one({"src/nn/a.cu": "cudaMallocAsync(&p, n, s);\n"}, "src/nn/a.cu:1", "cudaMalloc")
        self.expect_one({"src/ops/a_cuda.cpp": arena}, "src/ops/a_cuda.cpp:1", "GpuArena: ")
        self.expect_clean(
            {
                "src/memory/gpu_cuda.cpp": call,
                "src/plan/run_memory.cpp": arena,
                "src/ops/a.cpp": "// not as cudaMalloc does\n",
                "tests/support/a.cpp": call,
            }
        )

    def test_long_files_are_reported(self):
        self.expect_clean({"src/core/a.cpp": "int x;\n" * 500})
        self.expect_one({"src/core/a.cpp": "int x;\n" * 501}, "src/core/a.cpp:501", "501 lines")

    def test_a_folder_without_sources_is_an_error(self):
        with tempfile.TemporaryDirectory() as root:
            done = subprocess.run(
                [sys.executable, str(CHECKER), root], capture_output=True, check=False
            )
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main()
