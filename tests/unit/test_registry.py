"""The registry: specs found by walking a package, entry points, duplicates and unknown names."""

import itertools
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from bertwright import registry
from bertwright.errors import InputError

NUMBERS = itertools.count()


@dataclass(frozen=True)
class Spec:
    name: str


@pytest.fixture
def make_package(tmp_path, monkeypatch):
    """Writes an importable package of a fresh name; each file may use `Spec`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "spec_for_tests", sys.modules[__name__])

    def make(files):
        name = f"package_for_tests_{next(NUMBERS)}"
        for path, text in {"__init__.py": "", **files}.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("from spec_for_tests import Spec\n" + text.replace("PACKAGE", name))
        return name

    return make


@pytest.fixture
def plug_in(monkeypatch):
    def plug(value, group):
        monkeypatch.setattr(registry, "entry_points", lambda group: (EntryPoint("plugin", value, group),))

    return plug


def test_finds_specs_of_all_modules_sorted_by_name(make_package):
    package = make_package({"a.py": "X = Spec('zebra')\nother = 3", "b.py": "Y = Spec('ant'); Z = Spec('bee')"})
    assert list(registry.find(package, Spec)) == ["ant", "bee", "zebra"]
    assert registry.find(package, Spec)["zebra"] == Spec("zebra")


def test_of_a_package_with_folders_only_the_modules_called_spec_are_read(make_package):
    """The others may import torch."""
    spec = "X = Spec('ant')"
    package = make_package(
        {"sub/__init__.py": "", "sub/spec.py": spec, "sub/task.py": "raise ImportError", "b.py": "1/0"}
    )
    assert list(registry.find(package, Spec)) == ["ant"]


def test_one_object_imported_elsewhere_is_no_duplicate(make_package):
    package = make_package({"a.py": "X = Spec('one')", "b.py": "from PACKAGE.a import X"})
    assert list(registry.find(package, Spec)) == ["one"]


def test_two_objects_of_one_name_are_refused_with_both_places(make_package):
    package = make_package({"a.py": "X = Spec('one')", "b.py": "X = Spec('one')"})
    with pytest.raises(InputError, match=rf"'one' is defined twice: in {package}\.a and in {package}\.b"):
        registry.find(package, Spec)


def test_the_answer_is_the_callers_own(make_package):
    package = make_package({"a.py": "X = Spec('one')"})
    registry.find(package, Spec).clear()
    assert list(registry.find(package, Spec)) == ["one"]


def test_get_lists_what_there_is_and_the_nearest_name(make_package):
    package = make_package({"a.py": "X = Spec('sst2'); Y = Spec('cola')"})
    assert registry.get(package, "cola", Spec).name == "cola"
    with pytest.raises(InputError, match=r"there are: cola, sst2\. Did you mean 'sst2'\?"):
        registry.get(package, "SST-2", Spec)
    with pytest.raises(InputError) as caught:
        registry.get(package, "translation", Spec)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("value", ["PLUGIN.a:X", "PLUGIN.a"])
def test_entry_points_add_a_spec_or_a_module_of_them(make_package, plug_in, value):
    package, plugin = make_package({"a.py": "X = Spec('own')"}), make_package({"a.py": "X = Spec('added')"})
    plug_in(value.replace("PLUGIN", plugin), package)
    assert list(registry.find(package, Spec)) == ["added", "own"]


def test_an_entry_point_may_not_take_a_name_that_is_taken(make_package, plug_in):
    package, plugin = make_package({"a.py": "X = Spec('own')"}), make_package({"a.py": "X = Spec('own')"})
    plug_in(f"{plugin}.a:X", package)
    with pytest.raises(InputError, match=rf"in {package}\.a and in entry point {plugin}\.a:X"):
        registry.find(package, Spec)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module_anywhere:X", "cannot be loaded"),
        ("math:nothing", "cannot be loaded"),
        ("math:pi", "got a float"),
    ],
)
def test_a_broken_entry_point_is_named(make_package, plug_in, value, message):
    package = make_package({})
    plug_in(value, package)
    with pytest.raises(InputError, match=f"plugin = {value}.* {message}"):
        registry.find(package, Spec)
