#!/usr/bin/env python3
"""The table of third-party software is true, and what is written from it valid.   sbom_test.py"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import sbom  # noqa: E402


def small_program(folder, *libraries):
    """A program that loads these, besides the C library."""
    path = pathlib.Path(folder) / "program"
    source = path.with_suffix(".c")
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run([os.environ.get("CC", "cc"), source, "-o", path, "-Wl,--no-as-needed", *libraries], check=True)
    return path


class Sbom(unittest.TestCase):
    def test_the_page_is_that_of_the_table(self):
        page = (ROOT / "THIRD_PARTY.md").read_text()
        self.assertEqual(page, sbom.markdown(), "run scripts/sbom.py markdown > THIRD_PARTY.md")

    def test_sources_include_nothing_else(self):
        self.assertEqual(sbom.faults([]), [])

    def test_every_part_with_headers_is_included(self):
        headers = sbom.included_parts()
        for part in sbom.TABLE:
            used = any(h.startswith(part.headers) for h in headers) if part.headers else True
            self.assertTrue(used, f"no source includes {part.name}: remove it from the table")

    def test_a_header_of_nobody_is_reported(self):
        self.assertIsNone(sbom.part_of_header("boost/asio.hpp"))
        self.assertEqual(sbom.part_of_header("fmt/format.h").name, "fmt")

    @unittest.skipUnless(shutil.which("cc"), "no compiler")
    def test_a_library_that_is_not_standard_is_reported(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(sbom.faults([small_program(folder, "-lm")]), [])
            (pathlib.Path(folder) / "extra.c").write_text("int f(void) { return 1; }\n")
            extra = f"{folder}/libextra.so"
            subprocess.run(["cc", "-shared", "-fPIC", f"{folder}/extra.c", "-o", extra], check=True)
            wrong = sbom.faults([small_program(folder, extra)])
            self.assertEqual(len(wrong), 1)
            self.assertIn("libextra.so", wrong[0])

    def document(self, cuda):
        with tempfile.TemporaryDirectory() as folder:
            return json.loads(sbom.spdx([small_program(folder)], cuda))

    @unittest.skipUnless(shutil.which("cc"), "no compiler")
    def test_relations_lead_to_packages(self):
        for cuda in (False, True):
            document = self.document(cuda)
            known = {p["SPDXID"] for p in document["packages"]} | {"SPDXRef-DOCUMENT"}
            self.assertEqual(len(known), len(document["packages"]) + 1, "two parts with one id")
            for r in document["relationships"]:
                self.assertLessEqual({r["spdxElementId"], r["relatedSpdxElement"]}, known)
            names = {p["name"] for p in document["packages"]}
            self.assertEqual("CUDA runtime" in names, cuda)

    @unittest.skipUnless(shutil.which("cc"), "no compiler")
    def test_spdx_tools_find_no_fault(self):
        try:
            from spdx_tools.spdx.parser.parse_anything import parse_file
            from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
        except ImportError:
            self.skipTest("spdx-tools (PyPI) is not installed")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "ballast.spdx.json"
            path.write_text(json.dumps(self.document(True)))
            faults = validate_full_spdx_document(parse_file(str(path)), "SPDX-2.3")
            self.assertEqual([f.validation_message for f in faults], [])


if __name__ == "__main__":
    unittest.main()
