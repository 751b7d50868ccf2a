#!/usr/bin/env python3
"""Checks where programs and libraries look for shared libraries.

usage: check_elf.py FILE...

RPATH and RUNPATH may hold absolute folders and $ORIGIN only. An empty element, as in "/usr/lib:", means
the current folder: a library planted in a folder of downloads would be loaded and run.
"""
import struct
import sys

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_STRTAB, DT_RPATH, DT_RUNPATH = 0, 5, 15, 29


def library_folders(data):
    """The elements of RPATH and RUNPATH of a 64-bit little-endian ELF file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", data, 0x20)
    size, count = struct.unpack_from("<HH", data, 0x36)
    segments = []
    for i in range(count):
        kind, _, at, address, _, length = struct.unpack_from("<IIQQQQ", data, offset + i * size)
        segments.append((kind, at, address, length))
    entries = []
    for kind, at, _, length in segments:
        if kind == PT_DYNAMIC:
            entries = list(struct.iter_unpack("<QQ", data[at : at + length // 16 * 16]))
    strings = next((value for tag, value in entries if tag == DT_STRTAB), None)
    folders = []
    for tag, value in entries:
        if tag == DT_NULL:
            break
        if tag in (DT_RPATH, DT_RUNPATH):
            place = next(at + strings - address for kind, at, address, length in segments
                         if kind == PT_LOAD and address <= strings < address + length)
            text = data[place + value : data.index(b"\0", place + value)].decode()
            folders += text.split(":")
    return folders


def faults(folders):
    return [f for f in folders if not (f.startswith("/") or f == "$ORIGIN" or f.startswith("$ORIGIN/"))]


def main(paths):
    failed = False
    for path in paths:
        with open(path, "rb") as file:
            bad = faults(library_folders(file.read()))
        for folder in bad:
            failed = True
            print(f'{path}: RUNPATH holds "{folder}", which is relative to the current folder')
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
