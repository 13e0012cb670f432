"""All benchmarks one after another, each in a process of its own, and one table at the end.

python -m benchmarks [--long] [--json]

After a benchmark that fails the next one runs, and Ctrl-C ends the measuring; the table has what was measured until
then, and the exit code is not 0.
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


def run(name: str, *options: str) -> dict[str, Any] | None:
    """Run a benchmark; return the object in its last line, or None where it fails. Messages go to standard error."""
    print(f"python -m benchmarks.{' '.join((name, *options))}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", *options, "--json"]
    finished = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if finished.returncode:
        print(f"benchmarks.{name}: failed with exit code {finished.returncode}", file=sys.stderr)
        return None
    report: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them and print the table. Return the exit code: 1 where one failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true", help="those that take longer, instead")
    parser.add_argument("--json", action="store_true", help="print everything as the last line of standard output")
    options = parser.parse_args(arguments)
    results, code = {}, 0
    try:
        for call in LONG if options.long else SHORT:
            if (report := run(*call)) is None:
                code = 1
            else:
                results[" ".join(call)] = report
    except KeyboardInterrupt:
        code = 130
    rows = [row for part in results.values() for row in part["rows"]]
    print(f"\n{processor()}", file=sys.stderr)
    for name, version in {key: value for part in results.values() for key, value in part["versions"].items()}.items():
        print(f"{name} {version}", file=sys.stderr)
    show([row for row in rows if "ratio" in row])
    if options.json:
        print(json.dumps({"rows": rows, "parts": results, "processor": processor()}))
    return code


if __name__ == "__main__":
    sys.exit(main())
