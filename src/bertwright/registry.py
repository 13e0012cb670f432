"""Name → object: the specs that the modules of a package define, and what other distributions add by entry points.

There is no list to edit: a module-level object of the wanted type is registered by being there. No torch in here.
"""

import difflib
import importlib
import pkgutil
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, TypeVar, cast

from bertwright.errors import InputError

Spec = TypeVar("Spec")


def find(package: str, kind: type[Spec]) -> dict[str, Spec]:
    """Return every module-level instance of `kind` in a package by its `name`, sorted.

    Read are the package, and the modules below it; where it has folders, those called `spec` alone.

    Distributions add to it by entry points in the group called like the package ("bertwright.tasks"), each naming a
    spec or a module of specs. Raises InputError where two different objects bear one name, or an entry point is broken.
    """
    registered: dict[str, Spec] = _find(package, cast(Any, kind))
    return dict(registered)


def get(package: str, name: str, kind: type[Spec]) -> Spec:
    """The object called `name`; InputError lists what there is and the nearest name."""
    found = find(package, kind)
    if name in found:
        return found[name]
    near = difflib.get_close_matches(name.lower(), found, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise InputError(f"there is no '{name}' in {package}; there are: {', '.join(found) or 'none'}.{hint}")


@cache
def _find(package: str, kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    homes: dict[str, str] = {}
    for home, spec in [*_walk(package, kind), *_plugins(package, kind)]:
        name = spec.name
        if name in found and found[name] is not spec:
            raise InputError(f"'{name}' is defined twice: in {homes[name]} and in {home}; names must differ")
        if name not in found:
            found[name], homes[name] = spec, home
    return dict(sorted(found.items()))


def _walk(package: str, kind: type[Any]) -> list[tuple[str, Any]]:
    root = importlib.import_module(package)
    below = list(pkgutil.walk_packages(root.__path__, f"{package}."))
    has_folders = any(info.ispkg for info in below)
    names = [info.name for info in below if not info.ispkg and (info.name.endswith(".spec") or not has_folders)]
    return [(name, spec) for name in [package, *names] for spec in _specs(importlib.import_module(name), kind)]


def _plugins(group: str, kind: type[Any]) -> list[tuple[str, Any]]:
    return [(f"entry point {entry.value}", spec) for entry in entry_points(group=group) for spec in _load(entry, kind)]


def _load(entry: EntryPoint, kind: type[Any]) -> list[Any]:
    what = f"the entry point {entry.group}: {entry.name} = {entry.value}"
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise InputError(f"{what} cannot be loaded: {error}") from error
    if isinstance(loaded, ModuleType):
        return _specs(loaded, kind)
    if isinstance(loaded, kind):
        return [loaded]
    raise InputError(f"{what} is a {type(loaded).__name__}; allowed: a {kind.__name__} or a module")


def _specs(module: ModuleType, kind: type[Any]) -> list[Any]:
    return [value for value in vars(module).values() if isinstance(value, kind)]
