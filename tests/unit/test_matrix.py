"""`.ci/matrix`, with programs in place of Pythons, which install nothing and run no tests."""

import os
import subprocess
from pathlib import Path

MATRIX = Path(__file__).parents[2] / ".ci" / "matrix"

PYTHON = """#!/bin/sh
case "$*" in
    *"sys.exit"*) exit 0 ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip"*) {install} ;;
    *"import platform"*) echo "Python {version}.1 torch 2" ;;
    "-m pytest"*) echo "FAILED test_a"; echo "{result}"; exit {status} ;;
esac
"""


def matrix(folder: Path, versions: str, **pythons: str) -> subprocess.CompletedProcess[str]:
    """Run `.ci/matrix` for versions; pythons: what stands on the PATH, by name."""
    for name, text in pythons.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    variables = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "MATRIX": str(folder / "environments")}
    variables |= {"VERSIONS": versions, "PYTHON": "", "LC_ALL": os.environ.get("LC_ALL", "C.UTF-8")}
    return subprocess.run([str(MATRIX)], env=variables, capture_output=True, text=True, check=False)


def fake(version: str, result: str = "5 passed in 1s", status: int = 0, install: str = "exit 0") -> str:
    return PYTHON.format(version=version, result=result, status=status, install=install)


def test_the_table_has_a_line_for_each_version(tmp_path: Path) -> None:
    pythons = {"python3.12": fake("3.12"), "python3.13": fake("3.13", "==== 1 failed, 4 passed in 2s ====", 1)}
    done = matrix(tmp_path, "3.12 3.13 3.99", **pythons)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "| Python | installed | result |",
        "|---|---|---|",
        "| 3.12 | Python 3.12.1 torch 2 | 5 passed in 1s |",
        "| 3.13 | Python 3.13.1 torch 2 | 1 failed, 4 passed in 2s |",
        "| 3.99 | nothing | not run: no Python 3.99 on the PATH, in ~/.pyenv/versions, or known to uv |",
    ]


def test_a_python_that_is_absent_is_no_failure_and_one_that_installs_nothing_is(tmp_path: Path) -> None:
    assert matrix(tmp_path, "3.99").returncode == 0
    broken = fake("3.12", install="echo 'ERROR: no torch for it' >&2; exit 1")
    done = matrix(tmp_path, "3.12", **{"python3.12": broken})
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "| 3.12 | nothing | no environment: ERROR: no torch for it |"
