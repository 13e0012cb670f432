"""What people install: the source archive, and the wheel that is built from it, with the source out of sight."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = tuple(
    f"tests/unit/{name}.py"
    for name in ("serving/test_app", "model/cpu/test_encoder", "reports/test_report", "test_files", "test_shipped")
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dist/, made from what git would hand over."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place / "dist"), str(source)]
    found = subprocess.run(build, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    return place / "dist"


@pytest.mark.slow
def test_the_wheel_holds_everything_and_nothing_else(built: Path) -> None:
    (wheel,), (archive,) = built.glob("*.whl"), built.glob("*.tar.gz")
    ours = ROOT / "src"
    expected = {
        str(path.relative_to(ours))
        for path in (ours / "bertwright").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as stored:
        held = {name for name in stored.namelist() if ".dist-info/" not in name}
    assert held == expected
    with tarfile.open(archive) as stored:
        names = {name.partition("/")[2] for name in stored.getnames()}
    assert {f"src/{name}" for name in expected} <= names
    assert not [name for name in names if name.startswith("tests")]
    print(f"\nwheel {wheel.stat().st_size / 1e3:.0f} kB, {len(held)} files")


@pytest.mark.slow
def test_quick_tests_pass_on_the_installed_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    installed, place = tmp_path / "installed", tmp_path / "elsewhere"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(installed)]
    subprocess.run([*pip, str(wheel)], check=True)
    shutil.copytree(ROOT / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    where = [sys.executable, "-c", "import bertwright; print(bertwright.__file__)"]
    told = subprocess.run(where, capture_output=True, text=True, check=True, env=environment, cwd=place).stdout
    assert told.startswith(str(installed)), told
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
    assert " passed" in found.stdout
