"""A store in memory whose calls are counted and can fail: `faulty://` beside fsspec's own `memory://`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from fsspec.implementations.memory import MemoryFileSystem


class FaultyStore(MemoryFileSystem):
    """Calls by name that went through; `fault` is called before each with its name and path, and may raise."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    calls: ClassVar[list[tuple[str, str]]] = []
    fault: ClassVar[Callable[[str, str], None] | None] = None

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return MemoryFileSystem._strip_protocol(str(path).removeprefix("faulty:"))

    @classmethod
    def reset(cls) -> None:
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.calls.clear()
        cls.fault = None

    def _count(self, name: str, path: str) -> None:
        if FaultyStore.fault is not None:
            FaultyStore.fault(name, path)
        self.calls.append((name, path))

    def info(self, path: str, **options: Any) -> Any:
        self._count("info", path)
        return super().info(path, **options)

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._count("find", path)
        return super().find(path, *arguments, **options)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self._count("write" if "w" in mode else "read", path)
        return super()._open(path, mode, **options)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> Any:
        self._count("write", path)
        return super().pipe_file(path, value, **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> Any:
        self._count("write", rpath)
        return super().put_file(lpath, rpath, **options)

    def rm_file(self, path: str) -> Any:
        self._count("remove", path)
        return super()._rm(path)


class Lost(OSError):
    """The fault of a store that cannot be reached."""


def always_lost(name: str, path: str) -> None:
    raise Lost("connection lost")


def lost_from(number: int) -> Callable[[str, str], None]:
    """A fault that raises from the n-th call on, counted from 1."""
    counted = []

    def fault(name: str, path: str) -> None:
        counted.append(name)
        if len(counted) >= number:
            raise Lost("connection lost")

    return fault


def put_folder(folder: Path, key: str) -> None:
    """Put all files of a folder into the store."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            put(f"{key}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def put(key: str, content: bytes) -> None:
    """Put a file into the store, uncounted."""
    MemoryFileSystem.pipe_file(FaultyStore(), f"/{key}", content)


def keys(prefix: str = "") -> list[str]:
    """The keys of the store."""
    return sorted(key.lstrip("/") for key in FaultyStore.store if key.lstrip("/").startswith(prefix))
