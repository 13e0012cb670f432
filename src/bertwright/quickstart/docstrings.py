"""Python source on this machine → raw text, which the quickstart uses in place of the corpora of paper §A.2.

Nothing is downloaded, and nothing is imported. The source files of the standard library and of the project's own
dependencies are parsed with `ast`. `prose` turns their documentation strings into sentences. The same installed
packages give the same text, in the same order.
"""

import ast
import gc
import multiprocessing
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import atomic_file
from bertwright.portable import num_cores
from bertwright.quickstart.prose import prose

STANDARD_LIBRARY = "python"

SOURCE_PACKAGES = (
    "torch numpy pyarrow numba pydantic pydantic_core tokenizers safetensors tyro rich sentencex sklearn scipy "
    "matplotlib mpl_toolkits sympy networkx mpmath jinja2 fsspec filelock llvmlite huggingface_hub joblib narwhals "
    "contourpy PIL dateutil pyparsing packaging pygments setuptools fontTools typing_extensions markdown_it tqdm"
).split()
"""Packages that the project and its extras install, with their dependencies. Absent ones are left out."""

_SKIPPED_FOLDERS = frozenset(
    "tests test _tests idlelib turtledemo lib2to3 ensurepip lib-dynload site-packages dist-packages __pycache__ "
    "_vendor _vendored vendored vendor externals third_party".split()
)
_CYTHON = (".pyx", ".pxi")
_SUFFIXES = (".py", ".pyi", *_CYTHON)
_CYTHON_STRING = re.compile(r'^[ \t]*[rR]?("""(?:\\.|[^\\])*?""")', re.DOTALL | re.MULTILINE)
_LEAST_FRACTION = 0.08
"""Least fraction of a file's bytes in triple-quoted strings. Other files take a third of the time for 4 % of text."""
_LEAST_STRING = 80
"""Least number of characters of a string that is no docstring; shorter ones are values."""
_LEAST_WORDS = 120
"""Least number of words in a document. Shorter ones are merged with the next, so that pairs have neighbours."""
_FEW_FILES = 64
"""Number of files below which one process is faster than several."""


@dataclass(frozen=True)
class Module:
    """A source file: dotted name and documents, each a tuple of sentences in the order of the source."""

    name: str
    documents: tuple[tuple[str, ...], ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences of all documents, in order."""
        return tuple(sentence for document in self.documents for sentence in document)


@dataclass(frozen=True)
class Library:
    """A library: its modules with prose, sorted by file."""

    name: str
    modules: tuple[Module, ...]


@dataclass(frozen=True)
class Documentation:
    """Libraries in the order of the request."""

    libraries: tuple[Library, ...]

    @property
    def modules(self) -> tuple[Module, ...]:
        """Modules of all libraries."""
        return tuple(module for library in self.libraries for module in library.modules)


def find_libraries() -> dict[str, Path]:
    """Return the paths of the standard library and of the `SOURCE_PACKAGES` on this machine, without importing them."""
    libraries = {STANDARD_LIBRARY: Path(sysconfig.get_path("stdlib"))}
    sites = [Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    for name in SOURCE_PACKAGES:
        paths = [path for site in sites for path in (site / name, site / f"{name}.py") if path.exists()]
        if paths:
            libraries[name] = paths[0]
    return libraries


def collect(paths: Mapping[str, Path] | None = None) -> Documentation:
    """Return the documentation of libraries, {name: folder or file}; without `paths`, of `find_libraries()`.

    A message counts the files that cannot be parsed. Raises InputError where a path does not exist, and where there is
    no prose at all.
    """
    paths = find_libraries() if paths is None else paths
    files = [(name, root, file) for name, root in paths.items() for file in _source_files(name, root)]
    modules: dict[str, list[Module]] = {name: [] for name in paths}
    unreadable: list[str] = []
    for (name, _, file), result in zip(files, _map(files), strict=True):
        if isinstance(result, str):
            unreadable.append(f"{file}: {result}")
        elif result.documents:
            modules[name].append(result)
    if unreadable:
        say(f"{len(unreadable)} source files are left out, because they cannot be parsed: {unreadable[0]}, …")
    libraries = tuple(Library(name, tuple(modules[name])) for name in paths)
    if not any(library.modules for library in libraries):
        raise InputError(
            f"{', '.join(map(str, paths.values()))}: expected folders of Python source with documentation, found none"
        )
    return Documentation(libraries)


def corpus_text(documentation: Documentation, *, exclude_modules: Collection[str]) -> Iterator[str]:
    """Yield the documents as text, one sentence per line.

    Each sentence occurs once. Sentences that also stand in an excluded module are left out.
    """
    excluded = set(exclude_modules)
    unknown = excluded - {module.name for module in documentation.modules}
    if unknown:
        raise InputError(f"expected modules of the documentation, got {', '.join(sorted(unknown))}")
    seen = {key(text) for module in documentation.modules if module.name in excluded for text in module.sentences}
    for module in documentation.modules:
        if module.name in excluded:
            continue
        for document in module.documents:
            fresh = []
            for sentence in document:
                if key(sentence) not in seen:
                    seen.add(key(sentence))
                    fresh.append(sentence)
            if fresh:
                yield "\n".join(fresh)


def write_documents(texts: Iterable[str], path: Path) -> None:
    """Write the texts to a file, with blank lines between them."""
    with atomic_file(path) as stream:
        for text in texts:
            stream.write(f"{text}\n\n".encode())


def key(sentence: str) -> str:
    """Return the letters and digits of a sentence, lower-cased; copies of a sentence have the same key."""
    return " ".join(re.findall(r"[a-z0-9]+", sentence.lower()))


def _source_files(name: str, root: Path) -> list[Path]:
    """Return the source files of a library, sorted, without tests and bundled copies of other libraries."""
    if not root.exists():
        raise InputError(f"library {name}: expected a folder or a file of Python source, and {root} does not exist")
    if root.is_file():
        return [root]
    paths = []
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if each not in _SKIPPED_FOLDERS]
        paths += [Path(folder, file) for file in files if file.endswith(_SUFFIXES) and not file.startswith("test_")]
    return sorted(paths)


def _map(files: list[tuple[str, Path, Path]]) -> Iterator[Module | str]:
    """Yield the results of `_read` for all files, in their order; many files are read by several processes."""
    workers = num_cores()
    if len(files) < _FEW_FILES or workers == 1:
        yield from map(_read, files)
        return
    # "spawn", because threads of the caller (torch) do not survive a fork.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=gc.disable) as pool:
        yield from pool.map(_read, files, chunksize=16)


def _read(file: tuple[str, Path, Path]) -> Module | str:
    """Return the documentation of a source file, or the reason why it cannot be parsed."""
    name, root, path = file
    module = _module_name(name, root, path)
    is_topics = path.name == "topics.py" and path.parent.name == "pydoc_data"
    try:
        source = path.read_bytes()
        quoted = sum(len(part) for quotes in (b'"""', b"'''") for part in source.split(quotes)[1::2])
        if quoted < _LEAST_FRACTION * len(source) and not is_topics:
            return Module(module, ())
        if path.suffix in _CYTHON:
            docstrings = _cython_strings(source.decode("utf-8"))
        else:
            tree = _parse(source)
            docstrings = _all_strings(tree) if is_topics else list(_body_strings(tree.body))
        return Module(module, _documents([prose(each) for each in docstrings]))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"


def _module_name(name: str, root: Path, path: Path) -> str:
    """Return a module's name, such as `torch.nn.modules.linear`; a stub (.pyi) and its source have different names."""
    if path == root:
        return name
    parts = [*path.relative_to(root).parts[:-1], path.name if path.suffix != ".py" else path.stem]
    return ".".join([name, *(part for part in parts if part != "__init__")])


def _parse(source: bytes) -> ast.Module:
    """Parse source without printing its warnings; garbage collection pauses, because syntax trees have no cycles."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    finally:
        if collecting:
            gc.enable()


def _all_strings(tree: ast.Module) -> list[str]:
    return [each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _body_strings(body: list[ast.stmt]) -> Iterator[str]:
    """Yield docstrings, other strings that stand alone, and long ones that are assigned or passed on (`add_docstr`)."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(statement, clean=False)
            if docstring:
                yield docstring
        elif isinstance(statement, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from _body_strings(statement.body)
            yield from _body_strings(getattr(statement, "orelse", []))
        elif isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign) and statement.value is not None:
            yield from _value_strings(statement.value)


def _value_strings(value: ast.expr) -> Iterator[str]:
    """Yield a string that is the whole expression, or the strings in it that are long enough for documentation."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif value.end_lineno != value.lineno:
        for each in ast.walk(value):
            text = each.value if isinstance(each, ast.Constant) else None
            if isinstance(text, str) and "\n" in text and len(text) >= _LEAST_STRING:
                yield text


def _cython_strings(source: str) -> list[str]:
    """Return the triple-quoted strings at the beginnings of lines of Cython source, which `ast` cannot parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [str(ast.literal_eval(match[1])) for match in _CYTHON_STRING.finditer(source)]


def _documents(docstrings: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Merge neighbouring docstrings of a module until each document is long enough for sentence pairs."""
    documents: list[list[str]] = []
    words = _LEAST_WORDS
    for sentences in filter(None, docstrings):
        if words >= _LEAST_WORDS:
            documents.append([])
            words = 0
        documents[-1] += sentences
        words += sum(sentence.count(" ") + 1 for sentence in sentences)
    if len(documents) > 1 and words < _LEAST_WORDS:
        last = documents.pop()
        documents[-1] += last
    return tuple(map(tuple, documents))
