#!/usr/bin/env python3
"""Makes the manual pages: ballast(1) and ballast-COMMAND(1).

    tools/make_man_pages.py --program PROGRAM --docs FOLDER --output FOLDER

The program's own help pages are the text; FILES, ENVIRONMENT and EXIT STATUS come from the tables of
docs/man/files.md, docs/environment-variables.md and docs/exit-codes.md. Nothing is written twice.
"""

import argparse
import pathlib
import re
import subprocess
import time
import os

# Whose whole list of options stands on a page of its own; the others point to it.
ALL_OPTIONS = {"train": "--help-all"}


def help_of(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True)
    return done.stdout


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def bold_names(text):
    """`name` of Markdown in bold, links as their text."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    parts = text.split("`")
    return "".join(f"\\fB{escaped(p)}\\fR" if i % 2 else escaped(p) for i, p in enumerate(parts))


def table_rows(path, heading=None):
    """Cells of a page's first table, or of the first one below a heading."""
    rows, begun = [], heading is None
    for line in path.read_text().splitlines():
        if line.startswith("#") and heading:
            begun = line.strip("# ") == heading
        if begun and line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            break
    if len(rows) < 3:
        raise SystemExit(f"{path}: expected a table{' below ' + heading if heading else ''}")
    return rows[2:]


def listed(title, rows):
    text = f".SH {title}\n"
    for name, meaning, *more in rows:
        meaning += "; " + more[0] if more and more[0] else ""
        text += f".TP\n{bold_names(name)}\n{bold_names(meaning)}\n"
    return text


def entry(line):
    """Name and explanation of an option's line; None: it is no such line."""
    found = re.match(r"  (\S.*?)(?:\s{2,}(\S.*))?$", line)
    return (found[1], found[2] or "") if found else None


class Page:
    """Help pages as sections of a manual page."""

    def __init__(self):
        self.text = ""
        self.open = None  # of an entry: name and explanation
        self.plain = []

    def close(self):
        if self.open:
            name, help_text = self.open
            self.text += f".TP\n\\fB{escaped(name)}\\fR\n{escaped(help_text) or '.br'}\n"
            self.open = None
        while self.plain and not self.plain[-1]:
            self.plain.pop()
        if self.plain:
            self.text += ".PP\n.nf\n" + "\n".join(escaped(p) for p in self.plain) + "\n.fi\n"
        self.plain = []

    def add(self, lines):
        for line in lines:
            indent = len(line) - len(line.lstrip())
            if self.open and indent >= 20:
                self.open = self.open[0], (self.open[1] + " " + line.strip()).strip()
            elif re.fullmatch(r"[A-Z][^.]*:", line):
                self.close()
                self.text += f".SH {escaped(line[:-1].upper())}\n"
            elif entry(line) and indent == 2:
                self.close()
                self.open = entry(line)
            elif line or self.plain:
                if self.open:
                    self.close()
                self.plain.append(line)
        self.close()


def heading(name, summary, version, date):
    return (f'.TH {name.upper()} 1 "{date}" "ballast {version}" "User Commands"\n'
            f".SH NAME\n{escaped(name)} \\- {escaped(summary)}\n")


def closing(docs, others):
    rows = table_rows(docs / "environment-variables.md", "Running")
    text = listed("FILES", table_rows(docs / "man" / "files.md"))
    text += listed("ENVIRONMENT", rows)
    text += listed("EXIT STATUS", table_rows(docs / "exit-codes.md"))
    named = [f"\\fB{escaped(o)}\\fR(1)" for o in others]
    return text + ".SH SEE ALSO\n" + ",\n".join(named) + "\n"


def command_page(program, command, summary, version, date):
    lines = help_of(program, command, ALL_OPTIONS.get(command, "--help")).splitlines()
    if lines and lines[0].strip() == summary:
        lines = lines[1:]
    page = Page()
    usage = [line for line in lines if line.startswith("Usage: ")]
    page.text = heading(f"ballast-{command}", summary, version, date) + ".SH SYNOPSIS\n"
    page.text += "\n.br\n".join(f"\\fB{escaped(u[7:])}\\fR" for u in usage) or f"\\fBballast {command}\\fR"
    page.text += f"\n.SH DESCRIPTION\n{escaped(summary[:1].upper() + summary[1:])}.\n"
    page.add(line for line in lines if not line.startswith("Usage: "))
    for part in parts_of(lines):
        page.text += f".SH BALLAST {command.upper()} {part.upper()}\n"
        own = [line.replace("Options:", "options") for line in help_of(program, command, part, "--help").splitlines()]
        page.add(line for line in own if line != "options")
    return page.text


def parts_of(lines):
    """Names under "Subcommands:"."""
    if "Subcommands:" not in lines:
        return []
    below = lines[lines.index("Subcommands:") + 1 :]
    return [entry(line)[0].split()[0] for line in below if entry(line) and not line.startswith("   ")]


def commands_of(text):
    """Names and summaries in the program's own help."""
    found = re.search(r"^commands:\n((?:  .*\n)+)", text, re.M)
    joined = re.sub(r"\n {4,}", " ", found[1])
    return [entry(line) for line in joined.splitlines()]


def main():
    parser = argparse.ArgumentParser(description="Makes the manual pages of the program.")
    parser.add_argument("--program", required=True)
    parser.add_argument("--docs", required=True, type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    given = parser.parse_args()
    version = help_of(given.program, "--version").split()[1]
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    whole = help_of(given.program, "--help")
    commands = commands_of(whole)
    given.output.mkdir(parents=True, exist_ok=True)

    lines = whole.splitlines()
    page = Page()
    page.text = heading("ballast", "train and run large transformers inside the memory you have", version, date)
    page.text += ".SH SYNOPSIS\n\\fBballast\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n"
    page.text += escaped(lines[0]) + "\n.SH COMMANDS\n"
    for name, summary in commands:
        page.text += f".TP\n\\fBballast\\-{escaped(name)}\\fR(1)\n{escaped(summary)}\n"
    page.text += closing(given.docs, [f"ballast-{name}" for name, _ in commands])
    (given.output / "ballast.1").write_text(page.text)

    for name, summary in commands:
        text = command_page(given.program, name, summary, version, date)
        others = ["ballast"] + (["ballast-train"] if name in ("plan", "cache", "distill") else [])
        (given.output / f"ballast-{name}.1").write_text(text + closing(given.docs, others))


if __name__ == "__main__":
    main()
