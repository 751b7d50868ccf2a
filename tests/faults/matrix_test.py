"""tests/faults/matrix.py reports programs that misbehave: a matrix that cannot fail checks nothing.

usage: matrix_test.py PROGRAM LIBRARIES
"""
import pathlib
import subprocess
import sys
import tempfile

MATRIX = pathlib.Path(__file__).with_name("matrix.py")
program, libraries = sys.argv[1:]

# What a shell does around the program where a fault is injected, and what must be said of it.
CASES = [
    ('"$program" "$@"', None),
    ('"$program" "$@"; exit 1', "ended with 1"),
    ('"$program" "$@"; exit 3', "without a message"),
    ('"$program" "$@"; kill -SEGV $$', "ended with -11"),
    ('"$program" "$@"; echo x >merged.safetensors; exit 0', "differs from the undisturbed run"),
    ("exit 0", "merged.safetensors is missing"),
    ("sleep 60", "no end within 5 s"),
    ("echo ballast: no; rm -r lora; exit 6", "the second run ended with 6"),
]

with tempfile.TemporaryDirectory() as folder:
    runs = []
    for i, (body, wanted) in enumerate(CASES):
        wrapper = pathlib.Path(folder) / f"program{i}"
        wrapper.write_text(f'#!/bin/sh\nprogram={program}\n'
                           f'[ -n "$BALLAST_FAULT" ] || exec "$program" "$@"\nunset LD_PRELOAD\n{body}\n')
        wrapper.chmod(0o755)
        runs.append(subprocess.Popen(
            [sys.executable, str(MATRIX), "--program", str(wrapper), "--libraries", libraries, "--only", "io",
             "--job", "convert merge", "--count", "1", "--seconds", "5"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for (body, wanted), run in zip(CASES, runs):
        text = run.communicate()[0]
        if run.returncode == 77:
            sys.exit(77)
        as_wanted = run.returncode == 1 and "VIOLATION" in text and wanted in text if wanted else run.returncode == 0
        if not as_wanted:
            sys.exit(f"{body}: exit code {run.returncode}, wanted {wanted!r}\n{text}")
