#!/usr/bin/env python3
"""fuzz_table.py RESULT.json...: adds up results of scripts/fuzz.sh --json and puts the table into
docs/reliability.md, between its markers. A row whose finding was fixed since has "fixed_in": the commit."""
import json
import pathlib
import sys

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- fuzz table: tools/fuzz_table.py -->", "<!-- end of the fuzz table -->"


def table(results):
    targets = {}
    for result in results:
        for row in result["targets"]:
            sums = targets.setdefault(row["target"], {"executions": 0, "coverage": 0, "found": 0, "left": 0})
            sums["executions"] += row["executions"]
            sums["found"] += row["findings"]
            sums["left"] += 0 if "fixed_in" in row else row["findings"]
            sums["coverage"] = max(sums["coverage"], row["coverage"])
    dates = sorted({r["date"] for r in results})
    commits = list(dict.fromkeys(r["commit"] for r in results))
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    lines = [f"{when}, commit {', '.join(commits)}:", "", "| target | executions | coverage | found | left |", "|---|---:|---:|---:|---:|"]
    for name, row in sorted(targets.items()):
        lines.append(f"| `{name}` | {row['executions']:,} | {row['coverage']:,} | {row['found']} | {row['left']} |")
    executions = sum(row["executions"] for row in targets.values())
    found, left = (sum(row[key] for row in targets.values()) for key in ("found", "left"))
    lines.append(f"| all | {executions:,} | | {found} | {left} |")
    return "\n".join(lines)


def with_table(page, text):
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    results = [json.loads(pathlib.Path(path).read_text()) for path in sys.argv[1:]]
    PAGE.write_text(with_table(PAGE.read_text(), table(results)))


if __name__ == "__main__":
    main()
