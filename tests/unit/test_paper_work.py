"""Parts of an experiment that several processes want, and parts that fail: which is noted as what."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.recipes.paper.run import Work
from bertwright.training.sessions import LOCK, locked


@pytest.fixture
def part(tmp_path: Path) -> Any:
    (tmp_path / LOCK).touch()
    return SimpleNamespace(folder=tmp_path, is_finished=False)


@pytest.fixture
def work() -> Work:
    plan: Any = None
    return Work(plan, command="", device="cpu", allow_other_numerics=False)


def test_what_another_process_is_at_is_not_begun(work: Work, part: Any) -> None:
    begun: list[str] = []
    with locked(part.folder):
        work.attempt(part, lambda: begun.append("it"))
    assert (begun, work.elsewhere, work.failed) == ([], {part.folder}, {})


def test_what_another_process_began_a_moment_earlier_did_not_fail(work: Work, part: Any) -> None:
    def refused() -> None:
        with pytest.raises(InputError, match="another process works") as caught, locked(part.folder):
            pass
        raise caught.value

    others = locked(part.folder)

    def both_begin() -> None:
        others.__enter__()
        refused()

    try:
        work.attempt(part, both_begin)
    finally:
        others.__exit__(None, None, None)
    assert (work.elsewhere, work.failed) == ({part.folder}, {})


def test_a_part_that_fails_is_named_with_its_reason(work: Work, part: Any) -> None:
    def fail() -> None:
        raise InputError("no rows")

    work.attempt(part, fail)
    assert (work.elsewhere, work.failed) == (set(), {part.folder: "no rows"})
    work.attempt(part, lambda: None)
    assert work.failed == {part.folder: "no rows"}
