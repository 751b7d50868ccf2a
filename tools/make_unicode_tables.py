#!/usr/bin/env python3
"""Writes src/data/unicode_tables.cpp and html_entities_table.cpp.

What they hold comes from Python's own unicodedata and html modules, which are also what the
reference implementation of Wan's text cleaning uses. Run it from the root of the project.
"""

import unicodedata
from html import unescape
from html.entities import html5

LAST = 0x110000


def digits(n):
    """Of five bits, the lowest first; 32 is added to all but the last."""
    out = ""
    while n >= 32:
        out += chr(ord("0") + 32 + n % 32)
        n //= 32
    return out + chr(ord("0") + n)


def table(name, items):
    """Each number as its difference from the one above it, the sign in the lowest bit."""
    text, above = "", (0, 0, 0)
    for item in items:
        for n, before in zip(item, above):
            text += digits(2 * (n - before) if n >= before else 2 * (before - n) - 1)
        above = item
    rows = "\n".join(text[i:i + 98] for i in range(0, len(text), 98))
    return f'constexpr std::string_view k{name}Rows = R"(\n{rows}\n)";\n'


def ranges(value_of):
    found = []
    for c in range(LAST):
        value = value_of(c)
        if not value:
            continue
        if found and found[-1][1] == c - 1 and found[-1][2] == value:
            found[-1][1] = c
        else:
            found.append([c, c, value])
    return found


OTHER_EXTEND = set()
for text in ("9be 9d7 b3e b57 bbe bd7 cc2 cd5-cd6 d3e d57 dcf ddf 1b35 200c 302e-302f ff9e-ff9f "
             "1133e 11357 114b0 114bd 115af 11930 1d165 1d16e-1d172 e0020-e007f "
             "200d 1f3fb-1f3ff").split():  # Other_Grapheme_Extend, the joiner, emoji modifiers
    first, _, last = text.partition("-")
    OTHER_EXTEND |= set(range(int(first, 16), int(last or first, 16) + 1))
NOT_SPACING = set()
for text in ("102b-102c 1038 1062-1064 1067-106d 1083 1087-108c 108f 109a-109c 1a61 1a63-1a64 "
             "aa7b aa7d 11720-11721").split():
    first, _, last = text.partition("-")
    NOT_SPACING |= set(range(int(first, 16), int(last or first, 16) + 1))
PREPEND = set()
for text in ("600-605 6dd 70f 890-891 8e2 d4e 110bd 110cd 111c2-111c3 1193f 11941 11a3a "
             "11a84-11a89 11d46 11f02").split():
    first, _, last = text.partition("-")
    PREPEND |= set(range(int(first, 16), int(last or first, 16) + 1))


def cluster_class(c):
    """1 control, 2 extends what is before it, 3 spacing mark, 4 goes with what follows."""
    category = unicodedata.category(chr(c))
    if c in PREPEND:
        return 4
    if c in OTHER_EXTEND or category in ("Mn", "Me"):
        return 2
    if category in ("Cc", "Zl", "Zp", "Cf") and c not in (0x200c, 0x200d):
        return 1
    if (category == "Mc" and c not in NOT_SPACING) or c in (0xe33, 0xeb3):
        return 3
    return 0


def decompositions():
    for c in range(LAST):
        text = unicodedata.decomposition(chr(c))
        if text and not text.startswith("<"):
            parts = [int(p, 16) for p in text.split()] + [0]
            composes = unicodedata.normalize("NFC", chr(c)) == chr(c)
            yield (2 * c + composes, parts[0], parts[1])


def widths():
    for c in range(0xff01, 0xfff0):
        text = unicodedata.normalize("NFKC", chr(c))
        if text != chr(c):
            codes = [ord(t) for t in text] + [0]
            assert len(codes) <= 3
            yield (c, codes[0], codes[1])


HEAD = '''#include "data/unicode_tables.h"

#include <string_view>
#include <vector>

// Made by tools/make_unicode_tables.py from Unicode ''' + unicodedata.unidata_version + '''.

namespace ballast::data {
namespace {

// Each number is written as its difference from the one above it, the sign in the lowest bit, in
// digits of five bits, the lowest first. Bit 5 of a digit says that more follow.
std::vector<std::uint32_t> read_rows(std::string_view text) {
  std::vector<std::uint32_t> numbers(3);
  std::uint32_t value = 0, shift = 0;
  for (const char c : text) {
    if (c == '\\n') continue;
    const auto digit = static_cast<std::uint32_t>(c - '0');
    value |= (digit & 31) << shift;
    shift += 5;
    if (digit >= 32) continue;
    numbers.push_back(numbers[numbers.size() - 3] + ((value >> 1) ^ (0 - (value & 1))));
    value = shift = 0;
  }
  numbers.erase(numbers.begin(), numbers.begin() + 3);
  return numbers;
}

'''
TAIL = "\n}  // namespace\n\n"


def span_function(function, name):
    return (f"std::span<const std::uint32_t> {function}() {{\n"
            f"  static const std::vector<std::uint32_t> rows = read_rows(k{name}Rows);\n"
            "  return rows;\n}\n")


def entity_value(value):
    """Itself where it can be seen, escaped otherwise. What follows is never a hexadecimal digit."""
    return "".join(
        c if unicodedata.category(c)[0] in "LNPS" and c not in '"\\?' else
        "".join(f"\\x{b:02x}" for b in c.encode()) for c in value)


def entity_text(items):
    out, line = [], ""
    for item in items:
        item += " "
        if len(line) + len(item) > 96:
            out.append(line)
            line = ""
        line += item
    return "\n".join(f'"{line}"' for line in out + [line])


def main():
    tables = {
        "compositions": ("Composition", list(decompositions())),
        "combining_classes": ("CombiningClass", ranges(lambda c: unicodedata.combining(chr(c)))),
        "cluster_classes": ("ClusterClass", ranges(cluster_class)),
        "width_forms": ("Width", list(widths())),
    }
    with open("src/data/unicode_tables.cpp", "w") as f:
        f.write(HEAD + "\n".join(table(*of) for of in tables.values()) + TAIL)
        f.write("".join(span_function(function, of[0]) for function, of in tables.items()))
        f.write("\n}  // namespace ballast::data\n")
    named = sorted((n[:-1], v) for n, v in html5.items() if n.endswith(";"))
    bare = sorted(n for n in html5 if not n.endswith(";"))
    assert all(html5[n] == html5[n + ";"] for n in bare)
    upper = sorted((n, v.upper()) for n, v in named
                   if n == n.lower() and v.upper() != v and unescape(f"&{n.upper()};") == f"&{n.upper()};")
    with open("src/data/html_entities_table.cpp", "w") as f:
        f.write('#include "data/html_entities.h"\n\n'
                "// Made by tools/make_unicode_tables.py from the HTML5 names.\n\n"
                "namespace ballast::data {\n\n// clang-format off\n")
        f.write(f"const std::string_view kEntityNames =\n{entity_text(f'{n}={entity_value(v)}' for n, v in named)};\n\n")
        f.write(f"const std::string_view kBareEntityNames =\n{entity_text(bare)};\n\n")
        f.write(f"const std::string_view kUpperEntities =\n{entity_text(f'{n}={entity_value(v)}' for n, v in upper)};\n")
        f.write("// clang-format on\n\n}  // namespace ballast::data\n")


main()
