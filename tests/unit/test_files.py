"""Files that are whole or absent, through links and into what is no file."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from bertwright.errors import DiskFull, InputError
from bertwright.files import atomic_file, atomic_folder, copy_folder, new_folder, refuse_occupied
from bertwright.leftovers import remove_leftovers
from bertwright.locks import lock_path
from bertwright.model.folder import write_folder
from bertwright.output_paths import refuse_unwritable
from bertwright.text.documents import find_inputs


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("before")
    (tmp_path / "link").symlink_to("target")
    with atomic_file(tmp_path / "link") as stream:
        stream.write(b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "after"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_to_a_folder_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "before").touch()
    (tmp_path / "link").symlink_to("target")
    with atomic_folder(tmp_path / "link") as folder:
        (folder / "after").touch()
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["after"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_replaced_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the two renames fails."""
    really = os.replace
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "before").touch()
    for failing in (1, 2):
        left = [failing]

        def replace(source: Path, target: Path, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise OSError("no")
            really(source, target)

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(OSError, match="no"), atomic_folder(tmp_path / "folder") as folder:
            (folder / "after").touch()
        assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["folder", "folder/before"]


def test_a_device_stays_a_device() -> None:
    with atomic_file(Path("/dev/null")) as stream:
        stream.write(b"gone")
    assert Path("/dev/null").is_char_device()


def test_an_open_file_is_gone_on_with_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab", buffering=0) as log:
        log.write(b"earlier\n")
        with atomic_file(Path(f"/dev/fd/{log.fileno()}")) as stream:
            stream.write(b"later\n")
        log.write(b"latest\n")
    assert (tmp_path / "log").read_bytes() == b"earlier\nlater\nlatest\n"
    read, write = os.pipe()
    with atomic_file(Path(f"/proc/self/fd/{write}")) as stream:
        stream.write(b"all")
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        assert stream.read() == b"all"


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")

    def fail() -> None:
        with atomic_file(tmp_path / "file") as stream:
            stream.write(b"after")
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        fail()
    assert (tmp_path / "file").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond 1 KB; the system's error for that names no file, as that of a full disk.

    It ends before pytest prints: that may go to a file too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_reported_with_the_path_and_leaves_nothing(tmp_path: Path) -> None:
    said = r"the disk is full \(File too large\); nothing was written there\. Make room, or name a path on another disk"
    with full_disk():
        with (
            pytest.raises(DiskFull, match=rf"/answers\.json: {said}"),
            atomic_file(tmp_path / "answers.json") as stream,
        ):
            stream.write(b"x" * 5000)
        with pytest.raises(DiskFull, match=rf"/answers: {said}"), atomic_folder(tmp_path / "answers") as folder:
            (folder / "file").write_bytes(b"x" * 5000)
        with pytest.raises(DiskFull, match=rf"/answers: {said}"), new_folder(tmp_path / "answers") as folder:
            (folder / "file").write_bytes(b"x" * 5000)
        with pytest.raises(DiskFull, match=rf"/model: {said}"):
            write_folder(tmp_path / "model", {"weight": torch.zeros(5000)}, described={}, beside=[], positions=8)
    assert not list(tmp_path.iterdir())


def test_folders_are_found_through_links_and_each_once(tmp_path: Path) -> None:
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "other" / "a.txt").write_text("x")
    (tmp_path / "other" / "deep" / "b.txt").write_text("x")
    (tmp_path / "other" / "deep" / "up").symlink_to("..")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to("../other")
    names = [str(path.relative_to(tmp_path)) for path in find_inputs([tmp_path / "in"])]  # type: ignore[union-attr]
    assert names == ["in/link/a.txt", "in/link/deep/b.txt"]


def test_a_name_that_is_not_utf8_is_refused_before_the_work(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.txt")).write_text("x")
    with pytest.raises(InputError, match="is not UTF-8; rename it"):
        find_inputs([tmp_path])


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_folder_is_whole_or_as_it_was(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "new"
    if exists:
        folder.mkdir()

    def fill(*, fails: bool) -> None:
        with new_folder(folder) as new:
            (new / "part").mkdir()
            (new / "part" / "a").write_text("a")
            if fails:
                raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        fill(fails=True)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["new"] * exists
    fill(fails=False)
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "new",
        "new/part",
        "new/part/a",
    ]


def test_a_folder_that_somebody_else_made_meanwhile_stays(tmp_path: Path) -> None:
    def late() -> None:
        with new_folder(tmp_path / "new") as new:
            (new / "ours").write_text("ours")
            (tmp_path / "new").mkdir()
            (tmp_path / "new" / "theirs").write_text("theirs")

    with pytest.raises(InputError, match="new: was made or changed by another process"):
        late()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["theirs"]


def test_the_working_folder_is_filled_and_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with new_folder(Path()) as new:
        (new / "ours").write_text("ours")
    assert paths_under(Path.cwd()) == ["ours"]
    with (
        pytest.raises(InputError, match=r"^\.: is the working folder, which cannot be replaced"),
        atomic_folder(Path()),
    ):
        pass
    assert paths_under(Path.cwd()) == ["ours"]


def paths_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_folder_made_meanwhile_is_never_replaced(tmp_path: Path) -> None:
    """100 times: a person makes the folder with a file in it while it is written, or a second process is the first."""
    for number in range(100):
        out = tmp_path / str(number)

        def late(out: Path = out, number: int = number) -> None:
            with atomic_folder(out) as folder:
                (folder / "ours").write_text("ours")
                if number % 2:
                    out.mkdir()
                    (out / "precious").write_text("mine")
                else:
                    with atomic_folder(out) as other:
                        (other / "precious").write_text("mine")

        with pytest.raises(InputError, match=rf"{number}: was made or changed by another process"):
            late()
        assert paths_under(tmp_path / str(number)) == ["precious"]
        assert (out / "precious").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 100


def test_a_file_made_meanwhile_is_never_replaced_by_a_folder(tmp_path: Path) -> None:
    def late() -> None:
        with atomic_folder(tmp_path / "out") as folder:
            (folder / "ours").touch()
            (tmp_path / "out").write_text("mine")

    with pytest.raises(InputError, match="out: was made or changed by another process"):
        late()
    assert (tmp_path / "out").read_text() == "mine"
    with (
        pytest.raises(InputError, match="out: expected a folder or a free name, got a file"),
        atomic_folder(tmp_path / "out"),
    ):
        pass
    assert paths_under(tmp_path) == ["out"]


@pytest.mark.parametrize("change", ["add", "edit", "add below"])
def test_a_folder_changed_meanwhile_is_not_replaced(tmp_path: Path, change: str) -> None:
    out = tmp_path / "out"
    (out / "inner").mkdir(parents=True)
    (out / "before").write_text("before")

    def late() -> None:
        with atomic_folder(out) as folder:
            (folder / "after").touch()
            name = {"add": "mine", "edit": "before", "add below": "inner/mine"}[change]
            (out / name).write_text("mine alone")

    with pytest.raises(InputError, match="out: was made or changed by another process"):
        late()
    assert "mine alone" in {path.read_text() for path in out.rglob("*") if path.is_file()}
    assert not (out / "after").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_person_puts_into_a_new_folder_stays(tmp_path: Path) -> None:
    def fill(*, fails: bool) -> None:
        with new_folder(tmp_path) as folder:
            (folder / "ours").touch()
            (tmp_path / "mine.txt").write_text("mine")
            if fails:
                raise OSError("no")

    with pytest.raises(OSError, match="no"):
        fill(fails=True)
    assert paths_under(tmp_path) == ["mine.txt"]
    (tmp_path / "mine.txt").unlink()
    with pytest.raises(InputError, match="was made or changed by another process"):
        fill(fails=False)
    assert paths_under(tmp_path) == ["mine.txt"]


def test_what_a_kill_left_goes_with_the_next_write_and_what_lives_stays(tmp_path: Path) -> None:
    for name in (".out.bw-0000dead.tmp", ".other.bw-0000dead.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    (tmp_path / ".out.bw-1111dead.tmp").touch()
    (tmp_path / ".out.mine.tmp").touch()
    (tmp_path / ".out.bw-00alive0.tmp").mkdir()
    held = lock_path(tmp_path / ".out.bw-00alive0.tmp")
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "file").touch()
    os.close(held)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"out", ".other.bw-0000dead.tmp", ".out.mine.tmp", ".out.bw-00alive0.tmp"}
    with atomic_file(tmp_path / "other") as stream:
        stream.write(b"x")
    assert ".other.bw-0000dead.tmp" not in {path.name for path in tmp_path.iterdir()}


def test_an_old_version_gets_its_name_back_and_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / ".out.bw-0000dead.old").mkdir()
    (tmp_path / ".out.bw-0000dead.old" / "file").write_text("before")
    remove_leftovers(tmp_path)
    assert paths_under(tmp_path) == ["out", "out/file"]
    (tmp_path / ".out.bw-0000dead.old").mkdir()
    remove_leftovers(tmp_path)
    assert paths_under(tmp_path) == [".out.bw-0000dead.old", "out", "out/file"]


def test_what_cannot_be_written_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--out .*: expected a folder, but .*/file is a file"):
        refuse_unwritable(tmp_path / "file" / "a" / "b", "--out", is_folder=True)
    with pytest.raises(InputError, match=r"--output .*: there is no folder .*/a; make it first"):
        refuse_unwritable(tmp_path / "a" / "b", "--output", is_folder=False)
    with pytest.raises(InputError, match=r"--out /proc/x/y: no file can be written in /proc \("):
        refuse_unwritable(Path("/proc/x/y"), "--out", is_folder=True)
    refuse_unwritable(tmp_path / "a" / "b", "--out", is_folder=True)
    refuse_unwritable(Path("/dev/null"), "--output", is_folder=False)
    assert paths_under(tmp_path) == ["file"]


def test_an_output_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    def late(*, is_folder: bool) -> None:
        with atomic_file(tmp_path / "answers.tsv", keep_new=True) as stream:
            stream.write(b"ours")
            (tmp_path / "answers.tsv").mkdir() if is_folder else (tmp_path / "answers.tsv").write_text("mine")

    with pytest.raises(InputError, match=r"answers\.tsv: was made or changed by another process"):
        late(is_folder=False)
    assert (tmp_path / "answers.tsv").read_text() == "mine"
    with atomic_file(tmp_path / "answers.tsv", keep_new=True) as stream:  # it was there: it is replaced, as asked for
        stream.write(b"ours")
    assert (tmp_path / "answers.tsv").read_text() == "ours"
    (tmp_path / "answers.tsv").unlink()
    with pytest.raises(InputError, match=r"answers\.tsv: was made or changed by another process"):
        late(is_folder=True)
    assert paths_under(tmp_path) == ["answers.tsv"]


def test_names_that_cannot_be_written_are_refused_first(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InputError, match="is a link that leads to itself"):
        refuse_unwritable(tmp_path / "a", "--out", is_folder=True)
    with pytest.raises(InputError, match="the name has 250 bytes; expected at most 238"):
        refuse_unwritable(tmp_path / ("n" * 250), "--out", is_folder=True)
    with pytest.raises(InputError, match=r"cannot be opened \(File name too long\)"):
        refuse_unwritable(tmp_path / ("n/" * 3000), "--out", is_folder=True)
    longest = tmp_path / ("n" * 238)
    refuse_unwritable(longest, "--out", is_folder=True)
    with atomic_folder(longest) as folder:
        (folder / "file").touch()
    assert longest.is_dir()


def test_an_empty_folder_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill at any moment leaves it empty or whole: its files are not moved one by one."""
    renamed = []
    really = os.replace
    monkeypatch.setattr(os, "replace", lambda source, target: (renamed.append(target), really(source, target)))
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out") as folder:
        for name in ("a", "b"):
            (folder / name).touch()
    assert renamed == [tmp_path / "out"]
    assert paths_under(tmp_path) == ["out", "out/a", "out/b"]


def test_a_model_replaces_nothing_but_a_model(tmp_path: Path) -> None:
    """As where a person puts a file into the model's folder of a run that goes on."""
    weights = {"weight": torch.zeros(5)}
    for _ in range(2):
        write_folder(tmp_path / "model", weights, described={}, beside=[], positions=8)
    (tmp_path / "model" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"model: holds mine\.txt, which is no part of a model and is not deleted"):
        write_folder(tmp_path / "model", weights, described={}, beside=[], positions=8)
    assert (tmp_path / "model" / "mine.txt").read_text() == "mine"


def test_a_readme_alone_is_no_earlier_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "README.md").write_text("mine")
    with pytest.raises(InputError, match=r"model: holds README\.md, which is no part of a model and is not deleted"):
        write_folder(tmp_path / "model", {"weight": torch.zeros(5)}, described={}, beside=[], positions=8)
    assert (tmp_path / "model" / "README.md").read_text() == "mine"


def test_what_replaces_a_private_file_or_folder_is_private(tmp_path: Path) -> None:
    private, folder = tmp_path / "answers.tsv", tmp_path / "model"
    private.touch(0o600)
    folder.mkdir(0o700)
    for _ in range(2):
        with atomic_file(private) as stream:
            stream.write(b"new")
        with atomic_folder(folder) as temporary:
            (temporary / "file").write_text("new")
    assert (private.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert (private.read_bytes(), (folder / "file").read_text()) == (b"new", "new")


def test_the_copy_of_a_folder_has_its_files_and_raises_the_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model" / "0_Part").mkdir(parents=True)
    (tmp_path / "model" / "0_Part" / "a").write_text("a")
    (tmp_path / "copy").mkdir()
    copy_folder(tmp_path / "model", tmp_path / "copy")
    assert paths_under(tmp_path / "copy") == ["0_Part", "0_Part/a"]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(DiskFull), atomic_folder(tmp_path / "other") as temporary:
        copy_folder(tmp_path / "model", temporary)
    assert not (tmp_path / "other").exists()


def test_only_a_free_path_or_an_empty_folder_is_not_occupied(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    refuse_occupied(tmp_path / "absent")
    refuse_occupied(tmp_path / "empty")
    for path in (tmp_path, tmp_path / "file", tmp_path / "dangling"):
        with pytest.raises(InputError, match=f"{path}: exists already and is not an empty folder; name another one"):
            refuse_occupied(path)
