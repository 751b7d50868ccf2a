"""tools/check_elf.py finds relative elements of RUNPATH in programs that this test links."""
import os
import pathlib
import subprocess
import sys
import tempfile

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_elf.py"
compiler = os.environ.get("CXX", "c++")

# What -rpath holds, and whether it may.
CASES = [
    (None, True),
    ("/usr/lib", True),
    ("/usr/lib:/opt/lib", True),
    ("$ORIGIN/../lib", True),
    ("/usr/lib:", False),
    ("/usr/lib::/opt/lib", False),
    (":/usr/lib", False),
    ("lib", False),
    (".", False),
    ("$ORIGINAL/lib", False),
]

with tempfile.TemporaryDirectory() as folder:
    source = pathlib.Path(folder) / "empty.cpp"
    source.write_text("int main() {}\n")
    for tags in ("--enable-new-dtags", "--disable-new-dtags"):
        for rpath, allowed in CASES:
            program = pathlib.Path(folder) / "program"
            flags = [f"-Wl,{tags}"] + ([f"-Wl,-rpath,{rpath}"] if rpath else [])
            subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
            done = subprocess.run([sys.executable, str(CHECK), str(program)], capture_output=True, text=True)
            if (done.returncode == 0) != allowed:
                sys.exit(f"rpath {rpath} {tags}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
            if not allowed and "RUNPATH holds" not in done.stdout:
                sys.exit(f"rpath {rpath}: it says {done.stdout!r}")
    broken = pathlib.Path(folder) / "text"
    broken.write_text("no program")
    if subprocess.run([sys.executable, str(CHECK), str(broken)], capture_output=True).returncode == 0:
        sys.exit("a text file was accepted")
