#!/usr/bin/env python3
"""Checks that links between the repository's documents lead somewhere.

    tools/check_links.py [repository]

Looks at every *.md file of the repository's folders: a relative link must name a file or folder of
the repository, and its #anchor a heading or an <a id> of that page. Addresses on the web are not
visited.
Prints one line per broken link, "file:line: what is wrong", and exits 1 if there are any.
"""

import os
import pathlib
import re
import sys
import urllib.parse

FOLDERS = {"bench", "cmake", "docs", "examples", "scripts", "src", "tests", "tools"}

FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
CODE = re.compile(r"(`+)(.+?)\1")
LINK = re.compile(r"\]\(\s*<?([^()\s<>]*(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?(?:\s+\".*\")?\s*$")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
ID = re.compile(r"<[a-z]+\s[^>]*\b(?:id|name)=[\"']([^\"']+)[\"']")
SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:")


def documents(root):
    """The *.md files of the repository; other folders of a checkout (build, .venv) are left out."""
    for folder, folders, files in os.walk(root):
        at_root = pathlib.Path(folder) == root
        folders[:] = sorted(f for f in folders if (f in FOLDERS if at_root else f[0] != "."))
        yield from (pathlib.Path(folder) / f for f in sorted(files) if f.endswith(".md"))


def text_lines(text):
    """(number, line) of what is not inside a fenced block."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        found = FENCE.match(line)
        if fence is None and found:
            fence = found.group(1)
        elif fence is not None:
            if found and found.group(1).startswith(fence) and line.strip() == found.group(1):
                fence = None
        else:
            yield number, line


def anchor_of(heading):
    """The anchor that GitHub makes of a heading's text."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    text = re.sub(r"[^\w\- ]", "", text.lower())
    return text.replace(" ", "-")


def anchors(text):
    found, seen = set(), {}
    for _, line in text_lines(text):
        found.update(ID.findall(line))
        heading = HEADING.match(line)
        if heading:
            anchor = anchor_of(heading.group(1))
            again = seen.get(anchor, 0)
            seen[anchor] = again + 1
            found.add(f"{anchor}-{again}" if again else anchor)
    return found


def links(text):
    """(line, target) of every link."""
    for number, line in text_lines(text):
        definition = DEFINITION.match(line)
        if definition:
            yield number, definition.group(1)
        for target in LINK.findall(CODE.sub("", line)):
            yield number, target


class Checker:
    def __init__(self, root):
        self.root = root.resolve()
        self.known = {}  # anchors of the pages that were asked about

    def anchors_of(self, page):
        if page not in self.known:
            self.known[page] = anchors(page.read_text(errors="replace"))
        return self.known[page]

    def problem(self, page, target):
        """What is wrong with a link, or None."""
        if SCHEME.match(target) or target.startswith("//"):
            return None
        path, _, anchor = urllib.parse.unquote(target).partition("#")
        if path.startswith("/"):
            return f"{target} is an absolute path"
        goal = (page.parent / path).resolve() if path else page
        if goal != self.root and self.root not in goal.parents:
            return f"{target} leaves the repository"
        if not goal.exists():
            return f"{target} does not exist"
        if not anchor:
            return None
        if goal.suffix != ".md" or not goal.is_file():
            return f"{target} has an anchor, but is no document"
        if anchor not in self.anchors_of(goal):
            return f"{target}: that page has no heading or id #{anchor}"
        return None

    def broken(self):
        lines = []
        for page in documents(self.root):
            for number, target in links(page.read_text(errors="replace")):
                what = self.problem(page, target)
                if what:
                    lines.append(f"{page.relative_to(self.root).as_posix()}:{number}: {what}")
        return lines


def main(arguments):
    root = pathlib.Path(arguments[1]) if len(arguments) > 1 else pathlib.Path(__file__).parents[1]
    if not root.is_dir():
        print(f"{root} is no folder", file=sys.stderr)
        return 2
    broken = Checker(root).broken()
    for line in broken:
        print(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
