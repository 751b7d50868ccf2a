#!/usr/bin/env python3
"""What Debian's policy wants in a package beside what is installed.

    tools/debian_files.py --package NAME --usr FOLDER --version VERSION --cuda ON|OFF

Writes copyright and changelog, compresses manual pages, moves zsh's completion to where Debian has
them. cmake/package_debian.cmake calls it for each package. The same input gives the same bytes.
"""

import argparse
import email.utils
import gzip
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SBOM = [sys.executable, str(ROOT / "scripts" / "sbom.py")]


def compress(path, data):
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(data)
    path.chmod(0o644)


def copyright_text(cuda):
    """Apache 2.0 for all of ours; after it what is compiled in."""
    done = subprocess.run(SBOM + ["licenses"] + (["--cuda"] if cuda else []), check=True, capture_output=True,
                          text=True)
    return ("Ballast\n\nCopyright 2026 the Ballast developers\n\n"
            "Licensed under the Apache License, Version 2.0. On Debian systems its text is in\n"
            "/usr/share/common-licenses/Apache-2.0.\n\n" + done.stdout)


def changelog(package, version, maintainer):
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    return (f"ballast ({version}) unstable; urgency=medium\n\n"
            f"  * Version {version}. CHANGELOG.md of the sources lists its changes.\n\n"
            f" -- {maintainer}  {email.utils.formatdate(epoch)}\n")


def main():
    parser = argparse.ArgumentParser(description="Completes the files of a Debian package.")
    parser.add_argument("--package", required=True)
    parser.add_argument("--usr", required=True, type=pathlib.Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--maintainer", required=True)
    parser.add_argument("--cuda", default="OFF")
    given = parser.parse_args()
    doc = given.usr / "share" / "doc" / given.package
    doc.mkdir(parents=True, exist_ok=True)
    (doc / "copyright").write_text(copyright_text(given.cuda == "ON"))
    compress(doc / "changelog.gz",
             changelog(given.package, given.version, given.maintainer).encode())
    overrides = ROOT / "cmake" / "lintian" / given.package
    if overrides.exists():
        folder = given.usr / "share" / "lintian" / "overrides"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / given.package).write_text(overrides.read_text())
    for page in sorted((given.usr / "share" / "man").glob("man*/*.[0-9]")):
        compress(page.with_name(page.name + ".gz"), page.read_bytes())
        page.unlink()
    zsh = given.usr / "share" / "zsh" / "site-functions"
    if zsh.exists():
        zsh.rename(zsh.with_name("vendor-completions"))


if __name__ == "__main__":
    main()
