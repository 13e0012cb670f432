"""The version of the program, the commit that it was built from, and the versions of what it computes with."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

__version__ = "1.0.0"

COMMIT_FILE: Final = "commit.txt"
"""File of an installed package with the commit that it was built from; `setup.py` writes it."""
_PACKAGE: Final = Path(__file__).parent


def source_commit(package: Path = _PACKAGE) -> str | None:
    """Return the commit that the program was built from, as `git describe` writes it; None where it is unknown.

    package: folder of the package. Its commit.txt has the commit; only in a checkout, which has no such file, git is
    asked. "-dirty" behind the commit means that files were changed after it.
    """
    with suppress(FileNotFoundError):
        return (package / COMMIT_FILE).read_text("utf-8").strip()
    checkout = package.parents[1]
    if not ((checkout / ".git").exists() and (checkout / "pyproject.toml").exists()):
        return None
    import subprocess  # here, since `import bertwright` needs none

    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    # Hooks of git set variables that name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        described = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", timeout=30, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):  # there is no git
        return None
    return described.stdout.strip() if described.returncode == 0 else None


def package_version(name: str) -> str | None:
    """Return the version of an installed distribution, which is not imported; None where there is none."""
    from importlib.metadata import PackageNotFoundError, version  # here, since it takes 20 ms

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def version_lines() -> list[str]:
    """Return the lines of `bertwright --version`: the program, its commit, Python and three packages."""
    import platform

    packages = [f"{name} {package_version(name) or 'is not installed'}" for name in ("torch", "numpy", "tokenizers")]
    return [
        f"bertwright {__version__}",
        f"commit {source_commit() or 'unknown'}",
        f"Python {platform.python_version()}",
        *packages,
    ]
