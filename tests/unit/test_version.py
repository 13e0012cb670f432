"""The version is the same in every file that names it, and the commit comes from git or from the build."""

import platform
import re
import subprocess
import tomllib
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from bertwright.cli import main
from bertwright.version import COMMIT_FILE, __version__, package_version, source_commit

ROOT = Path(__file__).resolve().parents[2]
RELEASE = re.compile(r"^## (\d+\.\d+\.\d+), (\d{4}-\d\d-\d\d)\n\nSigned off: (.+)\.$", flags=re.M)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_checkout_names_its_commit_and_a_built_package_the_one_of_its_build(tmp_path: Path) -> None:
    package = tmp_path / "src" / "bertwright"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("one\n")
    assert source_commit(package) is None  # there is neither git nor a file
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=One")
    git(tmp_path, "tag", "v9.9.9")  # a tag does not take the place of the commit
    head = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert source_commit(package) == head
    (tmp_path / "pyproject.toml").write_text("two\n")
    assert source_commit(package) == f"{head}-dirty"
    (package / COMMIT_FILE).write_text("0123456789ab\n")
    assert source_commit(package) == "0123456789ab"
    (tmp_path / "pyproject.toml").unlink()
    (package / COMMIT_FILE).unlink()
    assert source_commit(package) is None  # another project's repository around an installed package


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["--version"]) == 0
    assert "\ncommit unknown\n" in capsys.readouterr().out


def test_the_command_prints_the_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"bertwright {__version__}",
        f"commit {source_commit() or 'unknown'}",
        f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in ("torch", "numpy", "tokenizers")),
    ]
    assert package_version("no-such-distribution") is None


def test_all_files_name_the_newest_release_and_its_date() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    releases = RELEASE.findall(text)
    titles = re.findall(r"^## (.*)$", text, flags=re.M)
    assert titles == ["Unreleased", *(f"{number}, {day}" for number, day, _ in releases)]
    assert releases[0][0] == __version__
    days = [date.fromisoformat(day) for _, day, _ in releases]
    assert days == sorted(days, reverse=True)
    (author,) = PROJECT["authors"]
    assert {signer for _, _, signer in releases} == {author["name"]}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["version"], str(citation["date-released"])) == releases[0][:2]
    assert citation["authors"] == [author]
    assert citation["keywords"] == PROJECT["keywords"]
    assert f"| {__version__.partition('.')[0]}.x | yes |" in (ROOT / "SECURITY.md").read_text("utf-8")
    assert PROJECT["dynamic"] == ["version"]


def test_the_page_on_security_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(?:tests/)?((?:\w+/)*test_\w+)(?:\.py)?`", (ROOT / "SECURITY.md").read_text("utf-8")))
    assert len(named) >= 10
    for name in named:
        assert list((ROOT / "tests").glob(f"**/{name}.py")), name
