"""The documentation on this machine → raw text, the quickstart's stand-in for the corpora of paper §A.2.

Nothing is downloaded and nothing is imported: source files of the standard library and of the packages that the
project itself needs are parsed with `ast`, their documentation strings are taken out, and `library_prose` makes
sentences of them. The same installed packages give the same text, in the same order.
"""

import ast
import gc
import multiprocessing
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bertwright.errors import InputError
from bertwright.files import atomic_file
from bertwright.quickstart.prose import prose

STANDARD_LIBRARY = "python"

# The packages that the project or its extras install, with what those need in turn; those absent are left out.
PACKAGES = (
    "torch numpy pyarrow numba pydantic pydantic_core tokenizers safetensors tyro rich sentencex sklearn scipy "
    "matplotlib mpl_toolkits sympy networkx mpmath jinja2 fsspec filelock llvmlite huggingface_hub joblib narwhals "
    "contourpy PIL dateutil pyparsing packaging pygments setuptools fontTools typing_extensions markdown_it tqdm"
).split()

_SKIPPED_FOLDERS = frozenset(
    "tests test _tests idlelib turtledemo lib2to3 ensurepip lib-dynload site-packages dist-packages __pycache__ "
    "_vendor _vendored vendored vendor externals third_party".split()
)
_CYTHON = (".pyx", ".pxi")
_SUFFIXES = (".py", ".pyi", *_CYTHON)
_CYTHON_STRING = re.compile(r'^[ \t]*[rR]?("""(?:\\.|[^\\])*?""")', re.DOTALL | re.MULTILINE)
# Of a file's bytes in triple-quoted strings: the files below take a third of the time and give 4 % of the text.
_LEAST_SHARE = 0.08
_LEAST_STRING = 80  # characters: a shorter string that is no docstring is a value, not documentation
_LEAST_WORDS = (
    120  # of a document: shorter ones are merged with the next of their module, so that pairs have neighbours
)
_FEW_FILES = 64  # below, starting processes costs more than it saves


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name and its documents, each a tuple of sentences in the order of the source."""

    name: str
    documents: tuple[tuple[str, ...], ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """All sentences, in order."""
        return tuple(sentence for document in self.documents for sentence in document)


@dataclass(frozen=True)
class Library:
    """One library: its modules with any prose, sorted by name; the files that could not be parsed, with the reason."""

    name: str
    modules: tuple[Module, ...]
    unreadable: tuple[str, ...]


@dataclass(frozen=True)
class Documentation:
    """All libraries, in the order in which they were asked for."""

    libraries: tuple[Library, ...]

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules of all libraries."""
        return tuple(module for library in self.libraries for module in library.modules)


def find_libraries() -> dict[str, Path]:
    """Where the standard library and each of `PACKAGES` lies on this machine, found without importing any of them."""
    found = {STANDARD_LIBRARY: Path(sysconfig.get_path("stdlib"))}
    sites = [Path(place) for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
    for name in PACKAGES:
        places = [place for site in sites for place in (site / name, site / f"{name}.py") if place.exists()]
        if places:
            found[name] = places[0]
    return found


def collect(paths: Mapping[str, Path] | None = None) -> Documentation:
    """Read the documentation of libraries given as {name: folder or file}; without `paths`, of `find_libraries()`.

    Raises InputError where a path does not exist or no prose is found at all.
    """
    paths = find_libraries() if paths is None else paths
    files = [(name, root, file) for name, root in paths.items() for file in _source_files(name, root)]
    modules: dict[str, list[Module]] = {name: [] for name in paths}
    unreadable: dict[str, list[str]] = {name: [] for name in paths}
    for (name, _, file), result in zip(files, _map(files), strict=True):
        if isinstance(result, str):
            unreadable[name].append(f"{file}: {result}")
        elif result.documents:
            modules[name].append(result)
    libraries = tuple(Library(name, tuple(modules[name]), tuple(unreadable[name])) for name in paths)
    if not any(library.modules for library in libraries):
        raise InputError(
            f"no documentation found under {', '.join(map(str, paths.values()))}: folders of Python source are expected"
        )
    return Documentation(libraries)


def corpus_text(documentation: Documentation, *, exclude_modules: Collection[str]) -> Iterator[str]:
    """The documents as text, one sentence per line; each sentence once, none that also stands in an excluded module."""
    excluded = set(exclude_modules)
    unknown = excluded - {module.name for module in documentation.modules}
    if unknown:
        raise InputError(f"modules {', '.join(sorted(unknown))} are not in the documentation")
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


def write_corpus(documentation: Documentation, path: Path, *, exclude_modules: Collection[str]) -> int:
    """Write `corpus_text` as a text file with documents parted by blank lines; returns its size in bytes."""
    with atomic_file(path) as stream:
        return sum(
            stream.write(f"{text}\n\n".encode()) for text in corpus_text(documentation, exclude_modules=exclude_modules)
        )


def key(sentence: str) -> str:
    """What two copies of a sentence share: its letters and digits, lower-cased."""
    return " ".join(re.findall(r"[a-z0-9]+", sentence.lower()))


def _source_files(name: str, root: Path) -> list[Path]:
    """The source files of a library, sorted; tests and bundled copies of other libraries left out."""
    if not root.exists():
        raise InputError(f"library {name}: {root} does not exist; a folder or a file of Python source is allowed")
    if root.is_file():
        return [root]
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if each not in _SKIPPED_FOLDERS]
        found += [Path(folder, file) for file in files if file.endswith(_SUFFIXES) and not file.startswith("test_")]
    return sorted(found)


def _map(files: list[tuple[str, Path, Path]]) -> Iterator[Module | str]:
    """`_read` over all files, in their order, on all processors where that is worth it."""
    workers = _processors()
    if len(files) < _FEW_FILES or workers == 1:
        yield from map(_read, files)
        return
    # "spawn", because the caller may hold threads (torch) that do not survive a fork.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=gc.disable) as pool:
        yield from pool.map(_read, files, chunksize=16)


def _processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read(file: tuple[str, Path, Path]) -> Module | str:
    """The documentation of one source file, or the reason why it cannot be parsed."""
    name, root, path = file
    module = _module_name(name, root, path)
    topics = path.name == "topics.py" and path.parent.name == "pydoc_data"
    try:
        source = path.read_bytes()
        quoted = sum(len(part) for quotes in (b'"""', b"'''") for part in source.split(quotes)[1::2])
        if quoted < _LEAST_SHARE * len(source) and not topics:
            return Module(module, ())
        if path.suffix in _CYTHON:
            docstrings = _cython_strings(source.decode("utf-8"))
        else:
            docstrings = _docstrings(_parse(source), everything=topics)
        return Module(module, _documents([prose(each) for each in docstrings]))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"


def _module_name(name: str, root: Path, path: Path) -> str:
    """`torch.nn.modules.linear` for a file of the library `torch`; a stub (.pyi) is another module than its source."""
    if path == root:
        return name
    parts = [*path.relative_to(root).parts[:-1], path.name if path.suffix != ".py" else path.stem]
    return ".".join([name, *(part for part in parts if part != "__init__")])


def _parse(source: bytes) -> ast.Module:
    """Parse without the warnings that other people's source gives rise to; trees have no cycles to collect."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    finally:
        if collecting:
            gc.enable()


def _docstrings(tree: ast.Module, *, everything: bool) -> list[str]:
    """The documentation strings of a module in the order of the source; every string of a file of texts."""
    if everything:
        return [each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return list(_body_strings(tree.body))


def _body_strings(body: list[ast.stmt]) -> Iterator[str]:
    """Strings that stand alone, docstrings above all, and long ones that are assigned or passed on (`add_docstr`)."""
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
    """A string that is the whole expression; of a larger one, the strings long enough to be documentation."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif value.end_lineno != value.lineno:
        for each in ast.walk(value):
            text = each.value if isinstance(each, ast.Constant) else None
            if isinstance(text, str) and "\n" in text and len(text) >= _LEAST_STRING:
                yield text


def _cython_strings(source: str) -> list[str]:
    """The triple-quoted strings that begin a line of Cython source, which `ast` cannot parse as a whole."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [str(ast.literal_eval(match[1])) for match in _CYTHON_STRING.finditer(source)]


def _documents(docstrings: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Put neighbouring docstrings of a module together until each document is long enough to pair its sentences."""
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
