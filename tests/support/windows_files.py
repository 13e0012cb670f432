"""Writing, locking and removing of files in one process that plays Windows: `python windows_files.py FOLDER`."""

import os
import signal
import sys
from pathlib import Path

import numpy as np

from bertwright import portable
from bertwright.errors import InputError, RunFailed
from bertwright.files import atomic_file, atomic_folder, new_folder, write_json
from bertwright.leftovers import remove_leftovers
from bertwright.locks import is_held, locked_file

folder = Path(sys.argv[1])


def names() -> list[str]:
    """Return the sorted names in the folder."""
    return sorted(path.name for path in folder.iterdir())


def write() -> None:
    """Write a file, a folder and an existing empty folder, each twice where that is allowed."""
    for content in (b"1", b"2"):
        with atomic_file(folder / "file") as stream:
            stream.write(content)
        with atomic_folder(folder / "folder") as unfinished:
            (unfinished / "file").write_bytes(content)
            assert f"{unfinished.name}.lock" in names()
            remove_leftovers(folder)  # as another process would
            assert unfinished.is_dir()
    assert (folder / "file").read_bytes() == (folder / "folder" / "file").read_bytes() == b"2"
    (folder / "empty").mkdir()
    with new_folder(folder / "empty") as unfinished:
        write_json(unfinished / "a.json", {})
    assert (folder / "empty" / "a.json").is_file()
    assert names() == ["empty", "file", "folder"]


def replace_open() -> None:
    """A file that is mapped is not replaced, and the error says so; it stays when it is no longer needed."""
    with atomic_file(folder / "vectors.npy") as stream:
        np.save(stream, np.arange(3))
    mapped, message = np.load(folder / "vectors.npy", mmap_mode="r"), ""
    try:
        with atomic_file(folder / "vectors.npy") as stream:
            stream.write(b"other")
    except RunFailed as error:
        message = str(error)
    assert "a program has this file or folder open" in message
    portable.remove_unused(folder / "vectors.npy")
    assert mapped.tolist() == [0, 1, 2]
    assert "vectors.npy" in names()
    del mapped
    portable.remove_unused(folder / "vectors.npy")
    assert names() == ["empty", "file", "folder"]


def lock() -> None:
    """The holder of a lock is named, and the lock ends with its block."""
    with locked_file(folder / "lock", "run: another process works here") as is_locked_here:
        assert is_locked_here
        assert is_held(folder / "lock")
        message = ""
        try:
            with locked_file(folder / "lock", "run: another process works here"):
                pass
        except InputError as error:
            message = str(error)
        assert f"works here (process {os.getpid()} on " in message
    assert not is_held(folder / "lock")
    assert (folder / "lock").read_bytes() == b""


def clean_up() -> None:
    """Temporary files of a killed process are removed, with their lock files."""
    for name in (".file.bw-0000dead.tmp", ".file.bw-0000dead.tmp.lock", ".file.bw-1111dead.tmp.lock"):
        (folder / name).touch()
    (folder / ".gone.bw-0000dead.old").mkdir()
    remove_leftovers(folder)
    assert names() == ["empty", "file", "folder", "gone", "lock"]


def ask_the_system() -> None:
    """Signals, processors and blocked interrupts do without what Windows lacks."""
    assert not portable.IS_POSIX
    assert portable.END_SIGNALS == (signal.SIGTERM,)
    assert portable.num_cores() == os.cpu_count()
    with portable.interrupts_blocked():
        pass


portable._PAUSES = (0.0,)
for step in (write, replace_open, lock, clean_up, ask_the_system):
    step()
