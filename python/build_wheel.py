"""Makes the wheel ballast-ml of a built program and library: pip's hooks, and a command.

python3 python/build_wheel.py [--build build/release] [--output FOLDER] [--sbom ballast.spdx.json]
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from typing import Dict, List, Optional, Tuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
LIBRARY = "libballast.so.0"

METADATA = """\
Metadata-Version: 2.4
Name: ballast-ml
Version: {version}
Summary: Trains and runs large video and text transformers inside the memory you have
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.9
Requires-Dist: numpy>=1.23
Provides-Extra: cuda
Requires-Dist: nvidia-cublas>=13; extra == "cuda"
Requires-Dist: nvidia-cudnn-cu13>=9.12; extra == "cuda"
Requires-Dist: nvidia-cuda-nvrtc>=13; extra == "cuda"
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{description}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: ballast
Root-Is-Purelib: false
Tag: {tag}
"""


def version() -> str:
    found = re.search(r"project\(ballast VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert found, "CMakeLists.txt names no version"
    return found[1]


def tag() -> str:
    return "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())


def stripped(path: pathlib.Path, folder: str) -> bytes:
    """Without symbols, where the machine has strip."""
    copy = pathlib.Path(folder) / path.name
    shutil.copy(path, copy)
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", str(copy)], check=True)
    return copy.read_bytes()


def contents(build: pathlib.Path, sbom: Optional[pathlib.Path]) -> List[Tuple[str, bytes, int]]:
    """Names in the wheel with bytes and file mode."""
    program = build / "bin" / "ballast"
    if not program.exists():
        sys.exit(f"{program} is not there: scripts/build.sh release ballast_cli builds it")
    info = f"ballast_ml-{version()}.dist-info"
    description = (ROOT / "docs" / "python.md").read_text()
    files: Dict[str, Tuple[bytes, int]] = {}
    for path in sorted((HERE / "ballast").glob("*")):
        if path.suffix == ".py" or path.name == "py.typed":
            files[f"ballast/{path.name}"] = path.read_bytes(), 0o644
    with tempfile.TemporaryDirectory() as folder:
        libraries = [p for p in (build / "lib" / LIBRARY, build / "src" / LIBRARY) if p.exists()]
        if libraries:
            files[f"ballast/{LIBRARY}"] = stripped(libraries[0], folder), 0o755
        files[f"ballast_ml-{version()}.data/scripts/ballast"] = stripped(program, folder), 0o755
    text = METADATA.format(version=version(), description=description)
    files[f"{info}/METADATA"] = text.encode(), 0o644
    files[f"{info}/WHEEL"] = WHEEL.format(tag=tag()).encode(), 0o644
    files[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes(), 0o644
    if sbom:
        files[f"{info}/sboms/{sbom.name}"] = sbom.read_bytes(), 0o644
    lines = []
    for name, (data, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    lines.append(f"{info}/RECORD,,\n")
    files[f"{info}/RECORD"] = "".join(lines).encode(), 0o644
    return [(name, data, mode) for name, (data, mode) in files.items()]


def assemble(
    build: pathlib.Path, output: pathlib.Path, sbom: Optional[pathlib.Path] = None
) -> pathlib.Path:
    """The same files give the same bytes."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"ballast_ml-{version()}-{tag()}.whl"
    date = time.gmtime(315532800)[:6]  # the first that zip files can hold: 1980
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data, mode in contents(build, sbom):
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, data)
    return path


# What pip calls.


def build_wheel(
    wheel_directory: str,
    config_settings: Optional[Dict[str, str]] = None,
    metadata_directory: Optional[str] = None,
) -> str:
    build = (config_settings or {}).get("build", str(ROOT / "build" / "release"))
    return assemble(pathlib.Path(build), pathlib.Path(wheel_directory)).name


def build_sdist(sdist_directory: str, config_settings: Optional[Dict[str, str]] = None) -> str:
    raise RuntimeError("there is no source distribution: a wheel is made of a built program")


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the wheel of a built program and library.")
    parser.add_argument("--build", default=ROOT / "build" / "release", type=pathlib.Path)
    parser.add_argument("--output", default=ROOT / "build" / "python", type=pathlib.Path)
    parser.add_argument("--sbom", type=pathlib.Path, help="the parts list that goes into it")
    given = parser.parse_args()
    print(assemble(given.build, given.output, given.sbom))


if __name__ == "__main__":
    main()
