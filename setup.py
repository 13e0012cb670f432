"""Hooks of the build: they write the commit into the source archive and the wheel. All else is in pyproject.toml."""

import runpy
from collections.abc import Sequence
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

PACKAGE = Path("src", "bertwright")
VERSION = runpy.run_path(str(Path(__file__).with_name("src") / "bertwright" / "version.py"))


def write_commit(package: Path) -> None:
    """Write the commit of this source, if it is known, into a folder of the package that is being built."""
    if commit := VERSION["source_commit"](Path(__file__).parent / PACKAGE):
        (package / VERSION["COMMIT_FILE"]).write_text(f"{commit}\n", "utf-8")


class BuildWithCommit(build_py):
    """Build of the package, with commit.txt where it is no editable installation."""

    def run(self) -> None:
        """Build the package."""
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib) / PACKAGE.name)


class SourceWithCommit(sdist):
    """Source archive with commit.txt, from which the same wheel is built without git."""

    def make_release_tree(self, base_dir: str, files: Sequence[str]) -> None:
        """Write the files of the archive below `base_dir`."""
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir) / PACKAGE)


setup(cmdclass={"build_py": BuildWithCommit, "sdist": SourceWithCommit})
