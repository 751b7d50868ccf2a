#!/usr/bin/env python3
"""What others wrote and Ballast is made of: one table, and what is written from it.

scripts/sbom.py markdown                           THIRD_PARTY.md
scripts/sbom.py licenses [--cuda]                  licences of what is compiled in, for packages
scripts/sbom.py spdx [--cuda] PROGRAM LIBRARY...   SPDX 2.3 as JSON, checked against these files
scripts/sbom.py check PROGRAM LIBRARY...           the table against what they load and src/ includes

Versions are those of this machine's Debian packages.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any, Dict, Iterable, List, Optional, Tuple

ROOT = pathlib.Path(__file__).resolve().parent.parent

COMPILED, LINKED, LOADED = "compiled in", "linked when it starts", "loaded when used"


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    license: str  # SPDX
    use: str
    package: str  # of Debian, that it is built with; "": none
    headers: Tuple[str, ...]  # beginnings of what #include <...> names
    libraries: Tuple[str, ...]  # beginnings of the names that ldd may show
    home: str
    holder: str
    cuda: bool = False  # in builds with CUDA alone


TABLE = (
    Part("OpenBLAS", "BSD-3-Clause", COMPILED, "libopenblas-serial-dev", ("cblas.h",), (),
         "https://www.openblas.net", "The OpenBLAS Project"),
    Part("fmt", "MIT", COMPILED, "libfmt-dev", ("fmt/",), ("libfmt.so",), "https://fmt.dev", "Victor Zverovich"),
    Part("CLI11", "BSD-3-Clause", COMPILED, "libcli11-dev", ("CLI/",), (),
         "https://github.com/CLIUtils/CLI11", "University of Cincinnati"),
    Part("toml++", "MIT", COMPILED, "libtomlplusplus-dev", ("toml++/",), (),
         "https://github.com/marzer/tomlplusplus", "Mark Gillard"),
    Part("JSON for Modern C++", "MIT", COMPILED, "nlohmann-json3-dev", ("nlohmann/",), (),
         "https://json.nlohmann.me", "Niels Lohmann"),
    Part("xxHash", "BSD-2-Clause", COMPILED, "libxxhash-dev", ("xxhash.h",), (),
         "https://xxhash.com", "Yann Collet"),
    Part("CUDA runtime", "LicenseRef-NVIDIA-CUDA", COMPILED, "", ("cuda", "cublasLt.h"), (),
         "https://docs.nvidia.com/cuda/eula", "NVIDIA Corporation", cuda=True),
    Part("cuDNN", "LicenseRef-NVIDIA-cuDNN", LOADED, "", ("cudnn",), (),
         "https://developer.nvidia.com/cudnn", "NVIDIA Corporation", cuda=True),
    Part("GNU C library", "LGPL-2.1-or-later", LINKED, "libc6-dev",
         ("sys/", "linux/", "dirent.h", "dlfcn.h", "fcntl.h", "link.h", "malloc.h", "poll.h", "pthread.h", "sched.h",
          "signal.h", "netinet/", "arpa/", "netdb.h", "stddef.h", "stdint.h", "stdlib.h", "string.h", "spawn.h", "time.h",
          "unistd.h"),
         ("libc.so.6", "libm.so.6", "ld-linux", "linux-vdso", "libdl.so.2", "libpthread.so.0", "librt.so.1"),
         "https://www.gnu.org/software/libc", "Free Software Foundation"),
    Part("libstdc++ and libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1", LINKED, "g++", (),
         ("libstdc++.so.6", "libgcc_s.so.1"), "https://gcc.gnu.org", "Free Software Foundation"),
    Part("libcurl", "curl", LOADED, "libcurl4-openssl-dev", ("curl/",), (), "https://curl.se",
         "Daniel Stenberg and others"),
    Part("libmicrohttpd", "LGPL-2.1-or-later", LOADED, "libmicrohttpd-dev", ("microhttpd.h",), (),
         "https://www.gnu.org/software/libmicrohttpd", "Christian Grothoff and others"),
    Part("FFmpeg", "LGPL-2.1-or-later", LOADED, "libavformat-dev",
         ("libavformat/", "libavcodec/", "libavutil/", "libswscale/"), (), "https://ffmpeg.org",
         "the FFmpeg developers"),
)

# What a package may load when it starts, whatever it was built with.
STANDARD = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux", "linux-vdso")

INTRODUCTION = """\
# Third-party software

What Ballast is compiled with, links and loads. `scripts/sbom.py markdown` writes this page; the same table makes the SPDX file
in the packages (`ballast.spdx.json`), where each part has the version of the build, and is checked against what the program loads and
the sources include. The packages hold the licences of what is compiled in (`THIRD_PARTY_LICENSES`).

| what | licence | how | copyright |
|---|---|---|---|
"""


def included_parts() -> Dict[str, List[str]]:
    """Headers with a folder or an ending that src/ includes, and files that do."""
    found: Dict[str, List[str]] = {}
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        for header in re.findall(r"^\s*#\s*include <([^>]+)>", path.read_text(), re.M):
            if "/" in header or "." in header:
                found.setdefault(header, []).append(str(path.relative_to(ROOT)))
    return found


def part_of_header(header: str) -> Optional[Part]:
    return next((p for p in TABLE if header.startswith(p.headers or ("\0",))), None)


def loaded_by(program: pathlib.Path) -> List[str]:
    """Names of the libraries that start with it."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    return [pathlib.PurePath(words[0]).name for words in lines if words[0] != "statically"]


def faults(programs: Iterable[pathlib.Path]) -> List[str]:
    wrong = []
    for header, files in included_parts().items():
        if part_of_header(header) is None:
            wrong.append(f"{files[0]} includes <{header}>, which is in no part of the table of scripts/sbom.py")
    for program in programs:
        for library in loaded_by(program):
            if not library.startswith(STANDARD):
                wrong.append(f"{program} loads {library}: expected libc, libm, libstdc++ and libgcc_s alone. "
                             "Build with the preset package, which compiles fmt in")
    return wrong


def version_of(part: Part) -> str:
    """Of the Debian package; NOASSERTION where that cannot be told."""
    if part.package and shutil.which("dpkg-query"):
        done = subprocess.run(["dpkg-query", "-W", "-f=${db:Status-Status} ${Version}", part.package],
                              capture_output=True, text=True, check=False)
        words = done.stdout.split()
        if done.returncode == 0 and words[:1] == ["installed"]:
            return words[1]
    return "NOASSERTION"


def parts_of(cuda: bool) -> List[Part]:
    return [p for p in TABLE if cuda or not p.cuda]


def own_version() -> str:
    found = re.search(r"project\(ballast VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert found, "CMakeLists.txt names no version"
    return found[1]


def created() -> str:
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    utc = datetime.timezone.utc
    time = datetime.datetime.fromtimestamp(int(epoch), utc) if epoch else datetime.datetime.now(utc)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def element(name: str) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")


def package(name: str, version: str, license_id: str, holder: str, home: str) -> Dict[str, Any]:
    return {
        "SPDXID": element(name),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "homepage": home,
        "licenseConcluded": license_id,
        "licenseDeclared": license_id,
        "copyrightText": f"Copyright {holder}",
        "supplier": "NOASSERTION",
    }


def spdx(programs: List[pathlib.Path], cuda: bool) -> str:
    wrong = faults(programs)
    if wrong:
        sys.exit("\n".join(wrong))
    own = package("Ballast", own_version(), "Apache-2.0", "the Ballast developers", "NOASSERTION")
    del own["homepage"]
    packages, relations = [own], []
    kinds = {COMPILED: "STATIC_LINK", LINKED: "DYNAMIC_LINK", LOADED: "OPTIONAL_DEPENDENCY_OF"}
    for part in parts_of(cuda):
        entry = package(part.name, version_of(part), part.license, part.holder, part.home)
        if part.package and entry["versionInfo"] != "NOASSERTION":
            entry["externalRefs"] = [{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:deb/debian/{part.package.replace('+', '%2B')}@{entry['versionInfo']}",
            }]
        packages.append(entry)
        ends = [element("Ballast"), element(part.name)]
        if part.use == LOADED:
            ends.reverse()
        relations.append({"spdxElementId": ends[0], "relationshipType": kinds[part.use],
                          "relatedSpdxElement": ends[1]})
    digest = hashlib.sha256()
    for program in programs:
        digest.update(program.read_bytes())
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"ballast-{own_version()}",
        "documentNamespace": f"https://spdx.org/spdxdocs/ballast-{own_version()}-{digest.hexdigest()[:32]}",
        "creationInfo": {"created": created(), "creators": ["Tool: ballast-sbom"]},
        "packages": packages,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                           "relatedSpdxElement": element("Ballast")}] + relations,
    }
    names = {p.license for p in parts_of(cuda) if p.license.startswith("LicenseRef-")}
    if names:
        document["hasExtractedLicensingInfos"] = [
            {"licenseId": n, "name": n[len("LicenseRef-"):],
             "extractedText": "NVIDIA's licence agreement, at the part's homepage"} for n in sorted(names)]
    return json.dumps(document, indent=2) + "\n"


def markdown() -> str:
    text = INTRODUCTION
    for p in TABLE:
        how = p.use + (", in builds with CUDA" if p.cuda else "")
        text += f"| [{p.name}]({p.home}) | {p.license.replace('LicenseRef-', '')} | {how} | {p.holder} |\n"
    return text


def licenses(cuda: bool) -> str:
    """Of what packages hold a copy of, as its own packages have them."""
    text = "Licences of what is compiled into Ballast.\n"
    for p in parts_of(cuda):
        if p.use != COMPILED:
            continue
        text += f"\n{'=' * 78}\n{p.name}, {p.license}, Copyright {p.holder}\n{p.home}\n{'=' * 78}\n\n"
        path = pathlib.Path("/usr/share/doc") / p.package / "copyright"
        if p.package and path.exists():
            text += path.read_text(errors="replace").rstrip() + "\n"
        elif p.package:
            sys.exit(f"{path} is missing: it has the licence of {p.name}; install {p.package}")
        else:
            text += "Distributed under NVIDIA's licence agreement, at the address above.\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="What Ballast is made of, from one table.")
    parser.add_argument("what", choices=["markdown", "licenses", "spdx", "check"])
    parser.add_argument("--cuda", action="store_true", help="of a build with CUDA")
    parser.add_argument("programs", nargs="*", type=pathlib.Path)
    given = parser.parse_intermixed_args()
    if given.what == "markdown":
        print(markdown(), end="")
    elif given.what == "licenses":
        print(licenses(given.cuda), end="")
    elif given.what == "spdx":
        print(spdx(given.programs, given.cuda), end="")
    else:
        wrong = faults(given.programs)
        print("\n".join(wrong), end="\n" if wrong else "")
        sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
