"""software → findings: versions, extras, and whether compiled models can be made here."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from bertwright.recipes.doctor_findings import Finding

PACKAGES: Final = ("torch", "tokenizers", "safetensors", "pyarrow", "numba", "transformers")
_FOR_DEVELOPERS: Final = ("dev", "docs")
_COMPILE_SECONDS = 120
_COMPILED: Final = """
import time, torch
rows = torch.linspace(-1, 1, 128).view(8, 16)
plain = lambda rows: torch.nn.functional.gelu(rows @ rows.T).sum(1)
start = time.perf_counter()
found = torch.compile(plain)(rows)
seconds = time.perf_counter() - start
torch.testing.assert_close(found, plain(rows))
print(seconds)
"""
"""What the check of the compiler runs, in a process of its own: one small function, compiled and compared."""
_finding = partial(Finding, "software")


def software_findings(*, quick: bool) -> Iterator[Finding]:
    """What is installed; `quick` leaves out the compiling."""
    yield versions({name: _version(name) for name in PACKAGES})
    yield extras(_requirements())
    yield compiler(compiler_name())
    if not quick:
        yield compiling()


def versions(found: Mapping[str, str | None]) -> Finding:
    """Python and the packages that decide results or are oracles."""
    value = {"python": platform.python_version(), **found}
    text = ", ".join(f"{name} {number}" for name, number in value.items() if number)
    absent = ", ".join(name for name, number in value.items() if not number)
    return _finding("versions", "ok", value, f"{text}; not installed: {absent}" if absent else text)


def extras(requirements: Sequence[str] | None) -> Finding:
    """Which optional parts can be used; `requirements` as the package's metadata list them, None where there are none.

    A line is "NAME…; extra == 'EXTRA'".
    """
    if requirements is None:
        advice = "pip install -e FOLDER, or 'make setup', where an extra's command says that something is missing"
        return _finding("extras", "note", None, "run from a folder: nothing says which extras there are", advice)
    parts: dict[str, list[str]] = {}
    for line in requirements:
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name and extra and extra[1] not in _FOR_DEVELOPERS:
            parts.setdefault(extra[1], []).append(name[0])
    missing = {extra: [name for name in names if not _version(name)] for extra, names in parts.items()}
    have = [extra for extra, names in missing.items() if not names]
    lack = [extra for extra, names in missing.items() if names]
    value = {"installed": have, "missing": lack}
    text = f"installed: {', '.join(have) or 'none'}"
    if not lack:
        return _finding("extras", "ok", value, text)
    advice = f"pip install 'bertwright[{','.join(lack)}]', or those of them that you need"
    return _finding("extras", "note", value, f"{text}; missing: {', '.join(lack)}", advice)


def compiler_name() -> str:
    """What torch.compile calls: $CXX, or the system's usual one."""
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def compiler(name: str) -> Finding:
    """Whether the C++ compiler is there."""
    found = shutil.which(name)
    if found:
        return _finding("compiler", "ok", found, f"{found}")
    return _finding(
        "compiler",
        "warning",
        None,
        f"there is no {name}: nothing can be compiled; everything else can be done, only slower",
        "install one (Debian: apt-get install g++), or name it in CXX",
    )


def compiling() -> Finding:
    """Whether torch.compile makes a function that gives the right numbers, and how long that takes."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, "-c", _COMPILED]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return _not_compiled(f"no end after {_COMPILE_SECONDS} s")
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        wrong = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Invalid\w*)\b", line)]
        return _not_compiled((wrong or lines or [f"exit code {done.returncode}"])[-1][:200])
    seconds = float(done.stdout.split()[-1])
    return _finding("compiling", "ok", seconds, f"torch.compile works: {seconds:.1f} s for the first small function")


def _not_compiled(why: str) -> Finding:
    return _finding(
        "compiling",
        "warning",
        None,
        f"torch.compile fails: {why}",
        "nothing: runs go on uncompiled, the same model, only slower; or install a C++ compiler with its headers",
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _requirements() -> list[str] | None:
    try:
        return requires("bertwright") or []
    except PackageNotFoundError:
        return None
