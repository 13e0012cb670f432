"""name → object: objects that the modules of a package define, and those of entry points of other distributions.

A module-level object of the wanted type is registered by its definition; there is no list to edit. This module imports
no torch.
"""

import difflib
import importlib
import pkgutil
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, TypeVar, cast

from bertwright.errors import InputError

Registered = TypeVar("Registered")


def find(package: str, kind: type[Registered]) -> dict[str, Registered]:
    """Return every module-level instance of `kind` in a package, sorted by `name`.

    The package and the modules below it are searched. Where it has folders, only modules called `spec` are searched.

    Other distributions add objects by entry points in the group with the name of the package ("bertwright.tasks"). Each
    names an object or a module of objects. Raises InputError where two different objects have one name, or an entry
    point is broken.
    """
    registered: dict[str, Registered] = _find(package, cast(Any, kind))
    return dict(registered)


def get(package: str, name: str, kind: type[Registered]) -> Registered:
    """Return the object called `name`. Raises InputError with all names and the nearest one."""
    registered = find(package, kind)
    if name in registered:
        return registered[name]
    near = difflib.get_close_matches(name.lower(), registered, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    noun = package.rpartition(".")[2].removesuffix("s")
    raise InputError(f"there is no {noun} '{name}'; there are: {', '.join(registered) or 'none'}.{hint}")


@cache
def _find(package: str, kind: Any) -> dict[str, Any]:
    """Return what `find` returns, kept for the next call."""
    registered: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, spec in [*_walk(package, kind), *_plugins(package, kind)]:
        name = spec.name
        if name in registered and registered[name] is not spec:
            raise InputError(f"'{name}' is defined twice: in {origins[name]} and in {origin}; names must differ")
        if name not in registered:
            registered[name], origins[name] = spec, origin
    return dict(sorted(registered.items()))


def _walk(package: str, kind: type[Any]) -> list[tuple[str, Any]]:
    """Return (module name, object) of a package."""
    root = importlib.import_module(package)
    below = list(pkgutil.walk_packages(root.__path__, f"{package}."))
    has_folders = any(info.ispkg for info in below)
    names = [info.name for info in below if not info.ispkg and (info.name.endswith(".spec") or not has_folders)]
    return [(name, spec) for name in [package, *names] for spec in _specs(importlib.import_module(name), kind)]


def _plugins(group: str, kind: type[Any]) -> list[tuple[str, Any]]:
    """Return (entry point, object) of other distributions."""
    return [(f"entry point {entry.value}", spec) for entry in entry_points(group=group) for spec in _load(entry, kind)]


def _load(entry: EntryPoint, kind: type[Any]) -> list[Any]:
    """Return the objects of an entry point, which names one object or a module of them."""
    source = f"the entry point {entry.group}: {entry.name} = {entry.value}"
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"{source} cannot be loaded: {error}") from error
    if isinstance(loaded, ModuleType):
        return _specs(loaded, kind)
    if isinstance(loaded, kind):
        return [loaded]
    raise InputError(f"{source}: expected a {kind.__name__} or a module, got a {type(loaded).__name__}")


def _specs(module: ModuleType, kind: type[Any]) -> list[Any]:
    """Return the module-level objects of that type."""
    return [value for value in vars(module).values() if isinstance(value, kind)]
