"""Lock files, images and the conda recipe: they name the versions and packages that pyproject.toml names."""

import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from bertwright.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
REQUIREMENTS = [*map(Requirement, PROJECT["project"]["dependencies"])]
NEEDED = {each.name: str(each.specifier) for each in REQUIREMENTS}
ON_LINUX = {each.name for each in REQUIREMENTS if not each.marker or each.marker.evaluate({"sys_platform": "linux"})}
PINNED = dict(
    line.lower().split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in line
)
LOCKS = {path.stem.removeprefix("locked-"): path for path in sorted(ROOT.glob("locked-*.txt"))}
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    described = importlib.util.spec_from_file_location("lock", ROOT / ".ci" / "lock.py")
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def package(name: str, number: str, *requires: str, extras: tuple[str, ...] = ()) -> dict[str, Any]:
    """An entry of pip's report."""
    return {
        "metadata": {"name": name, "version": number, "requires_dist": list(requires)},
        "download_info": {"archive_info": {"hashes": {"sha256": f"digest of {name}"}}},
        "requested_extras": list(extras),
    }


def test_a_lock_has_a_line_for_each_package_but_our_own(lock: ModuleType) -> None:
    ours = package("bertwright", "1", "torch>=2.11") | {"download_info": {"dir_info": {}}}
    lines = lock.lock_lines([ours, package("Torch", "2.13.0+cpu"), package("Jinja2", "3.1.6")], "3.12")
    assert "for Python 3.12 on Linux x86-64" in lines[0]
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in lines[1]
    assert lines[3:] == [
        "jinja2==3.1.6 --hash=sha256:digest of Jinja2",
        "torch==2.13.0+cpu --hash=sha256:digest of Torch",
    ]
    assert "with CUDA" in lock.lock_lines([package("torch", "2.13.0")], "3.12")[1]


def test_a_report_that_lacks_a_package_of_the_other_python_is_refused(
    lock: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conditions = ('new-one; python_version >= "3.12"', 'Old_one; python_version < "3.12"', "of-extra; extra == 'fast'")
    report = [package("torch", "2.13.0", *conditions)]
    assert list(lock.missing(report, "3.12")) == ["new-one"]
    assert list(lock.missing([*report, package("old.one", "1")], "3.11")) == []
    report = [package("torch", "2.13.0", *conditions, extras=("fast",))]
    assert list(lock.missing([*report, package("new_one", "1")], "3.12")) == ["of-extra"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"install": report}))
    monkeypatch.setattr("sys.argv", ["lock.py", str(path), "3.12"])
    with pytest.raises(SystemExit, match=r"report\.json: Python 3\.12 also needs new-one, of-extra; run pip with"):
        lock.main()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("version", [*LOCKS])
def test_a_lock_file_has_the_pinned_version_of_each_dependency(version: str) -> None:
    comments, *packages = re.split(r"\n(?!#)", LOCKS[version].read_text("utf-8").strip())
    assert f"for Python {version} on" in comments
    lines = [re.fullmatch(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line) for line in packages]
    locked = {line[1]: line[2].removesuffix("+cpu") for line in lines if line}
    assert len(locked) == len(packages)
    assert {*locked} >= ON_LINUX
    assert {name: number for name, number in locked.items() if name in PINNED} == {
        name: PINNED[name] for name in locked if name in PINNED
    }
    assert {name for name in locked if name not in PINNED} <= {
        name for name in locked if name.startswith(("nvidia-", "cuda-", "triton"))
    }
    assert f" {version}" in re.findall(r"^LOCKED := .*$", (ROOT / "Makefile").read_text("utf-8"), flags=re.M)[0]


def instructions(path: Path) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", path.read_text("utf-8"))
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_keeps_the_rules_of_images(path: Path) -> None:
    lines = list(instructions(path))
    stages = [number for number, (name, _) in enumerate(lines) if name == "FROM"]
    assert len(stages) == 2
    assert all(re.match(r"python:3\.\d+-slim-\w+( AS build)?$", lines[number][1]) for number in stages)
    final = lines[stages[-1] :]
    last = dict(final)
    assert int(last["USER"]) > 0  # not root
    assert [name for name, _ in final].index("USER") > max(n for n, (name, _) in enumerate(final) if name == "RUN")
    assert json.loads(last["ENTRYPOINT"]) == ["bertwright"]
    command = json.loads(last["CMD"])
    assert command[0] == "serve"
    assert command[-2:] == ["--host", "0.0.0.0"]
    check = json.loads(last["HEALTHCHECK"].partition("CMD ")[2])
    assert "http://127.0.0.1:8000/health" in check[2]
    compile(check[2], "HEALTHCHECK", "exec")
    assert last["EXPOSE"] == "8000"
    assert last["WORKDIR"].startswith("/")
    assert "ADD" not in dict(lines)
    assert "latest" not in path.read_text("utf-8")
    for name, rest in lines:
        if name == "RUN":
            assert "sudo" not in rest
            assert "pip install" not in rest or "--no-cache-dir" in rest
            assert "apt-get install" not in rest or ("--no-install-recommends" in rest and "/var/lib/apt/lists" in rest)
    install = next(rest for name, rest in lines if name == "RUN" and "pip install" in rest)
    assert re.search(r" torch==([\d.]+)", install)[1] == PINNED["torch"]
    assert ("whl/cpu" in install) == ("+cpu" in install) == (path.name == "cpu.Dockerfile")


def test_the_images_differ_in_pytorch_alone() -> None:
    assert [path.name for path in DOCKERFILES] == ["cpu.Dockerfile", "cuda.Dockerfile"]
    cpu, cuda = (
        [re.sub(r" --extra-index-url \S+|\+cpu| NVIDIA_\w+=\S+", "", " ".join(line)) for line in instructions(path)]
        for path in DOCKERFILES
    )
    assert [re.sub(" +", " ", line) for line in cpu] == [re.sub(" +", " ", line) for line in cuda]


def test_the_conda_recipe_names_the_dependencies_of_the_project() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text("utf-8"))
    assert recipe["context"]["version"] == __version__
    assert recipe["source"]["path"] == "../dist/bertwright-${{ version }}.tar.gz"
    assert recipe["build"]["noarch"] == "python"
    project = PROJECT["project"]
    scripts = [f"{name} = {target}" for name, target in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    python = f"python {project['requires-python']}"
    expected = [f"{name.replace('torch', 'pytorch')} {least}" for name, least in NEEDED.items()]
    assert recipe["requirements"]["run"] == [python, *expected]
    (backend,) = map(Requirement, PROJECT["build-system"]["requires"])
    assert recipe["requirements"]["host"] == [python, "pip", f"{backend.name} {backend.specifier}"]
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["summary"] == project["description"]
    assert (ROOT / recipe["about"]["license_file"]).exists()
