"""pip's installation report → the lines of a lock: name, version and hash of each package but our own.

python .ci/lock.py REPORT VERSION

pip evaluates the conditions of requirements, such as `python_version < "3.12"`, for the Python that runs it. So this
refuses a report that lacks a package which the Python of the lock needs.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def main() -> None:
    """Print the lock; exit with 1 where the report lacks a package."""
    report, version = Path(sys.argv[1]), sys.argv[2]
    installed = json.loads(report.read_text("utf-8"))["install"]
    if absent := sorted(set(missing(installed, version))):
        raise SystemExit(f"{report}: Python {version} also needs {', '.join(absent)}; run pip with that Python")
    print(*lock_lines(installed, version), sep="\n")


def lock_lines(installed: Sequence[Mapping[str, Any]], version: str) -> list[str]:
    """Return the lines of the lock: three comments, then one line for each package with an archive."""
    packages = [
        (one["metadata"]["name"].lower(), one["metadata"]["version"], one["download_info"]["archive_info"]["hashes"])
        for one in installed
        if "archive_info" in one["download_info"]
    ]
    torch = next(number for name, number, _ in packages if name == "torch")
    source = "with CUDA, from PyPI"
    if torch.endswith("+cpu"):
        source = "for processors: add --extra-index-url https://download.pytorch.org/whl/cpu"
    return [
        f"# bertwright's dependencies for Python {version} on Linux x86-64: pip install --require-hashes -r FILE",
        f"# PyTorch is the one {source}",
        "# Made by `make lock`.",
        *sorted(f"{name}=={number} --hash=sha256:{hashes['sha256']}" for name, number, hashes in packages),
    ]


def missing(installed: Sequence[Mapping[str, Any]], version: str) -> Iterator[str]:
    """Yield the names of packages that a package of the report needs on this Python and that are not in the report."""
    names = {canonicalize_name(one["metadata"]["name"]) for one in installed}
    python = {"python_version": version, "python_full_version": f"{version}.0"}
    for one in installed:
        for extra in ("", *one.get("requested_extras", ())):
            for needed in map(Requirement, one["metadata"].get("requires_dist", ())):
                applies = needed.marker is None or needed.marker.evaluate({**python, "extra": extra})
                if applies and canonicalize_name(needed.name) not in names:
                    yield needed.name


if __name__ == "__main__":
    main()
