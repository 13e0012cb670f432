"""Machine code that is kept on disk: never that of an earlier source, never needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertwright.jit import compiler_words

MODULES = {
    "inner.py": """
from bertwright.jit import compiled

SHIFT = 1

@compiled
def inner(number):
    return number + 10
""",
    "middle.py": """
from bertwright.jit import compiled
from inner import SHIFT, inner

@compiled
def middle(number):
    return inner(number) + SHIFT
""",
    "outer.py": """
from bertwright.jit import compiled
from middle import middle

@compiled
def outer(number):
    return middle(number)

print(outer(0), sum(outer.stats.cache_hits.values()))
""",
}


def run_outer(folder: Path, **environment: str) -> tuple[int, int]:
    """Return the outermost function's result in a process of its own, and how often its cached code was used."""
    command = [sys.executable, "outer.py"]
    whole = {**os.environ, "NUMBA_CACHE_DIR": "", **environment}
    completed = subprocess.run(command, cwd=folder, env=whole, capture_output=True, text=True, check=True)
    answer, hits = completed.stdout.split()
    return int(answer), int(hits)


@pytest.fixture
def modules_folder(tmp_path: Path) -> Path:
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "before", "after", "answer"),
    [
        ("inner.py", "+ 10", "+ 20", 21),
        ("inner.py", "SHIFT = 1", "SHIFT = 5", 15),
        ("middle.py", "+ SHIFT", "- SHIFT", 9),
        ("outer.py", "middle(number)", "middle(number) + 100", 111),
    ],
)
@pytest.mark.slow
def test_a_changed_source_is_compiled_into_its_callers(
    modules_folder: Path, name: str, before: str, after: str, answer: int
) -> None:
    assert run_outer(modules_folder) == (11, 0)
    assert run_outer(modules_folder) == (11, 1)
    changed = MODULES[name].replace(before, after)
    assert changed != MODULES[name]
    (modules_folder / name).write_text(changed)
    assert run_outer(modules_folder) == (answer, 0)
    assert run_outer(modules_folder) == (answer, 1)


def test_a_user_names_the_cache_folder(modules_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("own")
    assert run_outer(modules_folder, NUMBA_CACHE_DIR=str(cache)) == (11, 0)
    assert run_outer(modules_folder, NUMBA_CACHE_DIR=str(cache)) == (11, 1)
    assert list(cache.rglob("*.nbi"))
    assert not list(modules_folder.rglob("*.nbi"))
    (cache / "file").touch()
    assert run_outer(modules_folder, NUMBA_CACHE_DIR=str(cache / "file" / "inside")) == (11, 0)
    assert list(modules_folder.rglob("*.nbi"))


def test_where_nothing_can_be_written_beside_it_the_cache_folder_is_taken(modules_folder: Path, tmp_path: Path) -> None:
    (modules_folder / "__pycache__").write_text("no folder")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert run_outer(modules_folder, **environment) == (11, 0)
    assert run_outer(modules_folder, **environment) == (11, 1)


def test_functions_are_compiled_where_no_cache_can_be_written(modules_folder: Path) -> None:
    (modules_folder / "__pycache__").write_text("no folder")
    (modules_folder / "cache").write_text("no folder either")
    environment = {"XDG_CACHE_HOME": str(modules_folder / "cache")}
    assert run_outer(modules_folder, **environment) == (11, 0)
    assert run_outer(modules_folder, **environment) == (11, 0)


def test_the_path_of_a_compiler_is_one_word(tmp_path: Path) -> None:
    compiler = tmp_path / "Program Files" / "bin\\c++"
    compiler.parent.mkdir()
    compiler.touch(0o755)
    assert compiler_words(str(compiler)) == [str(compiler)]
    assert compiler_words("ccache c++ -m64") == ["ccache", "c++", "-m64"]
