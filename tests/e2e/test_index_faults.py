"""An index whose building or changing is killed, or finds the disk full, is the old one, the new one or none."""

from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.search.index import SearchIndex
from tests.support import faults
from tests.support.encoders import write_encoder

CHANGES = {
    "build": (["more.txt", "--model", "model", "--out", "index"], None, 2),
    "add": (["more.txt", "--out", "index", "--add"], 3, 5),
    "remove": (["--out", "index", "--remove", "2"], 3, 2),
    "join": (["--out", "index", "--join"], 5, 5),
}
"""Name → options of `index`, number of rows before and after."""
FP32 = ("--precision", "fp32")


@pytest.fixture
def folder(tmp_path: Path, own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and texts, in which the commands run."""
    monkeypatch.chdir(tmp_path)
    write_encoder(Path("model"), own_tokenizer)
    Path("first.txt").write_text("A ship sails.\nRain falls.\nThe teacher reads.\n", "utf-8")
    Path("more.txt").write_text("The house is old.\nA book.\n", "utf-8")
    return tmp_path


def arguments(name: str, folder: Path) -> list[str]:
    known = {"more.txt", "model", "index"}
    computing = FP32 if "more.txt" in CHANGES[name][0] else ()
    return ["index", *(str(folder / word) if word in known else word for word in CHANGES[name][0]), *computing]


def prepare(name: str) -> None:
    if CHANGES[name][1] is not None:
        assert main(["index", "first.txt", "--model", "model", "--out", "index", *FP32]) == 0
    if name == "join":
        assert main(["index", "more.txt", "--out", "index", "--add", *FP32]) == 0


State = list[list[tuple[str, str, bytes]]] | None
"""Id, text and vector of each row of an index, segment by segment; None where there is no index."""


def state_of(folder: Path) -> State:
    """Return the state of the index, all of whose files are checked."""
    if not (folder / "index").exists():
        return None
    segments = SearchIndex.open(folder / "index").segments
    return [
        [(id, segment.row(number).text, segment.vectors[number].tobytes()) for id, number in segment.ids.items()]
        for segment in segments
    ]


def undisturbed(name: str, folder: Path) -> tuple[State, State]:
    """Return the states before and after the change; the index is then again as before."""
    prepare(name)
    before = state_of(folder)
    assert main(arguments(name, folder)) == 0
    after = state_of(folder)
    assert [state and sum(map(len, state)) for state in (before, after)] == [*CHANGES[name][1:]]
    _remove_index(folder)
    prepare(name)
    return before, after


def check_killed(name: str, folder: Path, states: tuple[State, State], **limits: Any) -> None:
    ended = faults.run(arguments(name, folder), folder, **limits)
    assert ended.code != 0, ended.said
    assert state_of(folder) in states
    if state_of(folder) != states[1]:  # the same command again
        assert main(arguments(name, folder)) == 0
    assert state_of(folder) == states[1]
    assert [path.name for path in folder.rglob("*.tmp")] == []


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("moment", [2, 5])
def test_a_killed_change_leaves_the_old_index_or_the_new_one(name: str, moment: int, folder: Path) -> None:
    check_killed(name, folder, undisturbed(name, folder), die_before=moment)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_killed_before_each_change_of_a_file(name: str, folder: Path) -> None:
    states = undisturbed(name, folder)
    total = faults.run(arguments(name, folder), folder).changes
    assert total >= 3
    for moment in range(1, total + 1):
        _remove_index(folder)
        prepare(name)
        check_killed(name, folder, states, die_before=moment)


@pytest.mark.parametrize("name", ["build", "add"])
def test_on_a_full_disk_nothing_changes(name: str, folder: Path) -> None:
    prepare(name)
    before = state_of(folder)
    ended = faults.run(arguments(name, folder), folder, largest_file=300)
    assert ended.code == 1
    assert "disk is full" in ended.said
    assert state_of(folder) == before


def _remove_index(folder: Path) -> None:
    for path in sorted((folder / "index").rglob("*"), reverse=True):
        path.unlink()
    (folder / "index").rmdir()
