"""tools/check_elf.py finds what is missing in programs that this test links."""
import os
import pathlib
import subprocess
import sys
import tempfile

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_elf.py"
compiler = os.environ.get("CXX", "c++")
HARDENED = ["-fPIE", "-pie", "-fstack-protector-strong", "-Wl,-z,relro,-z,now,-z,noexecstack"]
SOURCE = "int main(int n, char** a) { char text[64]; for (int i = 0; i < n; ++i) text[i] = a[i][0]; return text[0]; }\n"

# What -rpath holds, and whether it may.
FOLDERS = [
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
# Flags behind the good ones, and what is said of the program.
FLAGS = [
    ([], None),
    (["-no-pie", "-fno-PIE"], "fixed address"),
    (["-Wl,-z,norelro"], "-z relro"),
    (["-Wl,-z,lazy"], "-z now"),
    (["-Wl,-z,execstack"], "executable"),
    (["-fno-stack-protector"], "-fstack-protector-strong"),
]

with tempfile.TemporaryDirectory() as folder:
    source, program = pathlib.Path(folder) / "source.cpp", pathlib.Path(folder) / "program"
    source.write_text(SOURCE)

    def check(flags):
        subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
        return subprocess.run([sys.executable, str(CHECK), str(program)], capture_output=True, text=True)

    for tags in ("--enable-new-dtags", "--disable-new-dtags"):
        for rpath, allowed in FOLDERS:
            done = check(HARDENED + [f"-Wl,{tags}"] + ([f"-Wl,-rpath,{rpath}"] if rpath else []))
            if (done.returncode == 0) != allowed:
                sys.exit(f"rpath {rpath} {tags}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
            if not allowed and "RUNPATH holds" not in done.stdout:
                sys.exit(f"rpath {rpath}: it says {done.stdout!r}")
    for flags, fault in FLAGS:
        done = check(HARDENED + flags)
        if (done.returncode == 0) != (fault is None) or (fault or "") not in done.stdout:
            sys.exit(f"{flags}: exit code {done.returncode}, {done.stdout!r}{done.stderr}")
    broken = pathlib.Path(folder) / "text"
    broken.write_text("no program")
    if subprocess.run([sys.executable, str(CHECK), str(broken)], capture_output=True).returncode == 0:
        sys.exit("a text file was accepted")
