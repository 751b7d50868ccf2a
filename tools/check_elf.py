#!/usr/bin/env python3
"""Checks how programs are linked: what a defect, or a planted library, could do with them.

usage: check_elf.py FILE...

- RPATH and RUNPATH hold absolute folders and $ORIGIN only. An empty element, as in "/usr/lib:", means the
  current folder: a library planted in a folder of downloads would be loaded and run.
- The program can be placed anywhere (PIE).
- Tables of functions are read-only once it runs (full RELRO: bound at start).
- No stack is executable.
- Functions check their stack (__stack_chk_fail is called).
"""
import struct
import sys

ET_DYN = 3
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 1, 2, 0x6474E551, 0x6474E552
PF_X = 1
DT_NULL, DT_STRTAB, DT_RPATH, DT_BIND_NOW, DT_RUNPATH, DT_FLAGS, DT_FLAGS_1 = 0, 5, 15, 24, 29, 30, 0x6FFFFFFB
DF_BIND_NOW, DF_1_NOW, DF_1_PIE = 8, 1, 0x08000000


class Elf:
    """A 64-bit little-endian ELF file."""

    def __init__(self, data):
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        self.data = data
        (self.kind,) = struct.unpack_from("<H", data, 0x10)
        (offset,) = struct.unpack_from("<Q", data, 0x20)
        size, count = struct.unpack_from("<HH", data, 0x36)
        self.segments = []  # kind, flags, offset, address, bytes
        for i in range(count):
            kind, flags, at, address, _, length = struct.unpack_from("<IIQQQQ", data, offset + i * size)
            self.segments.append((kind, flags, at, address, length))
        self.entries = []
        for kind, _, at, _, length in self.segments:
            if kind == PT_DYNAMIC:
                self.entries = list(struct.iter_unpack("<QQ", data[at : at + length // 16 * 16]))
        ends = [i for i, (tag, _) in enumerate(self.entries) if tag == DT_NULL]
        self.entries = self.entries[: ends[0]] if ends else self.entries

    def value(self, wanted):
        return next((value for tag, value in self.entries if tag == wanted), 0)

    def strings(self):
        """Where the names of the dynamic section begin."""
        address = self.value(DT_STRTAB)
        return next(at + address - begin for kind, _, at, begin, length in self.segments
                    if kind == PT_LOAD and begin <= address < begin + length)

    def library_folders(self):
        folders = []
        for tag, value in self.entries:
            if tag in (DT_RPATH, DT_RUNPATH):
                begin = self.strings() + value
                folders += self.data[begin : self.data.index(b"\0", begin)].decode().split(":")
        return folders


def folder_faults(elf):
    for f in elf.library_folders():
        if not (f.startswith("/") or f == "$ORIGIN" or f.startswith("$ORIGIN/")):
            yield f'RUNPATH holds "{f}", which is relative to the current folder'


def linking_faults(elf):
    stacks = [flags for kind, flags, _, _, _ in elf.segments if kind == PT_GNU_STACK]
    if elf.kind != ET_DYN or not elf.value(DT_FLAGS_1) & DF_1_PIE:
        yield "it has a fixed address: link with -pie"
    if not any(kind == PT_GNU_RELRO for kind, _, _, _, _ in elf.segments):
        yield "its tables of functions stay writable: link with -z relro"
    bound = any(tag == DT_BIND_NOW for tag, _ in elf.entries)
    if not (bound or elf.value(DT_FLAGS) & DF_BIND_NOW or elf.value(DT_FLAGS_1) & DF_1_NOW):
        yield "functions are bound while it runs: link with -z now"
    if not stacks or any(flags & PF_X for flags in stacks):
        yield "its stack is executable: link with -z noexecstack"
    if b"\0__stack_chk_fail\0" not in elf.data:
        yield "no function checks its stack: compile with -fstack-protector-strong"


def main(paths):
    failed = False
    for path in paths:
        with open(path, "rb") as file:
            elf = Elf(file.read())
        for fault in [*folder_faults(elf), *linking_faults(elf)]:
            failed = True
            print(f"{path}: {fault}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
