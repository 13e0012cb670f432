"""All benchmarks one after another, each in a process of its own, and one table at the end.

python -m benchmarks [--long] [--json]
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.side_by_side import processor, show

SHORT = (("pretraining",), ("finetuning",), ("inference",), ("data",), ("startup", "--no-compile"))
LONG = (("memory",), ("scaling",), ("startup",), ("busy",))


def run(name: str, *options: str) -> dict[str, Any]:
    """Run a benchmark; return the object in its last line. Its other messages go to standard error."""
    print(f"python -m benchmarks.{' '.join((name, *options))}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", *options, "--json"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def main(arguments: Sequence[str] | None = None) -> None:
    """Run them and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true", help="those that take longer, instead")
    parser.add_argument("--json", action="store_true", help="print everything as the last line of standard output")
    options = parser.parse_args(arguments)
    results = {" ".join(call): run(*call) for call in (LONG if options.long else SHORT)}
    rows = [row for part in results.values() for row in part["rows"]]
    print(f"\n{processor()}", file=sys.stderr)
    for name, version in {key: value for part in results.values() for key, value in part["versions"].items()}.items():
        print(f"{name} {version}", file=sys.stderr)
    show([row for row in rows if "ratio" in row])
    if options.json:
        print(json.dumps({"rows": rows, "parts": results, "processor": processor()}))


if __name__ == "__main__":
    main()
