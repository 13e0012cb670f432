"""The installed packages: the source archive, and the wheel that is built from it, with the source out of sight."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from bertwright.version import COMMIT_FILE, source_commit

ROOT = Path(__file__).resolve().parents[2]
TESTS = tuple(
    f"tests/unit/{name}.py"
    for name in ("serving/test_app", "model/cpu/test_encoder", "reports/test_report", "test_files", "test_shipped")
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dist/, made from what git would hand over."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=Source"]):
        subprocess.run(["git", "-C", str(source), *identity, *arguments], check=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    completed = subprocess.run(build, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    (folder / "dist" / "commit").write_text(source_commit(source / "src" / "bertwright") or "")
    return folder / "dist"


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
        commit = stored.read(f"bertwright/{COMMIT_FILE}").decode().strip()
    assert held == expected | {f"bertwright/{COMMIT_FILE}"}
    assert re.fullmatch(r"[0-9a-f]{12}", commit)
    assert commit == (built / "commit").read_text()
    with tarfile.open(archive) as stored:
        names = {name.partition("/")[2] for name in stored.getnames()}
    assert {f"src/{name}" for name in expected} <= names
    assert not [name for name in names if name.startswith("tests")]
    print(f"\nwheel {wheel.stat().st_size / 1e3:.0f} kB, {len(held)} files")


@pytest.mark.slow
def test_quick_tests_pass_on_the_installed_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(installed)]
    subprocess.run([*pip, str(wheel)], check=True)
    shutil.copytree(ROOT / "tests", elsewhere / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", elsewhere)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    where = [sys.executable, "-c", "import bertwright; print(bertwright.__file__)"]
    completed = subprocess.run(where, capture_output=True, text=True, check=True, env=environment, cwd=elsewhere).stdout
    assert completed.startswith(str(installed)), completed
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    tested = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=elsewhere)
    assert tested.returncode == 0, tested.stdout[-3000:] + tested.stderr[-1000:]
    assert " passed" in tested.stdout
