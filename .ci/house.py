"""Counts that keep the source readable: circles, sizes, docstrings, vague names, names and fixtures defined twice.

python .ci/house.py            prints each count beside its limit; exits with 1 where a count is over it
python .ci/house.py --show     prints the places too
"""

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bertwright"
TESTS = ROOT / "tests"
BENCHMARKS = ROOT / "benchmarks"

FRAGMENTS = ("What", "Whether", "How", "Of", "It", "One", "Both", "Those")
"""First words of docstrings that are no sentences."""
VAGUE = ("found", "given", "told", "place", "own", "asked")
"""Local names that do not say what they hold."""
TWICE: frozenset[str] = frozenset()
"""Public names that may be defined in several files."""
LIMITS = {
    "circles of imports": 0,
    "docstrings that begin with a fragment": 0,
    "assignments to vague local names": 0,
    "files over 400 lines": 0,
    "functions over 60 lines, docstring left out": 0,
    "public names defined in several files": 0,
    "fixtures defined in several files": 0,
    "percent of the lines in the largest folder": 17,
}


def main() -> int:
    """Print the counts; return 1 where one is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", action="store_true", help="print the places too")
    show = parser.parse_args().show
    trees, tests, benchmarks = (
        {path.relative_to(ROOT): ast.parse(path.read_text("utf-8")) for path in sorted(folder.rglob("*.py"))}
        for folder in (SOURCE, TESTS, BENCHMARKS)
    )
    all_trees = trees | tests | benchmarks
    lines = {path: len((ROOT / path).read_text("utf-8").splitlines()) for path in trees}
    folder, percent = largest_folder(lines)
    places = dict(
        zip(
            LIMITS,
            (
                list(circles()),
                list(fragments(all_trees)),
                list(vague_names(all_trees)),
                [f"{path}: {count}" for path, count in lines.items() if count > 400],
                list(long_functions(trees)),
                list(names_twice(trees)),
                list(fixtures_twice(tests)),
                [folder] * percent,
            ),
            strict=True,
        )
    )
    for name, limit in LIMITS.items():
        print(f"{name:48}{len(places[name]):5}   at most {limit}")
        if show or len(places[name]) > limit:
            print(*(f"    {line}" for line in dict.fromkeys(places[name])), sep="\n")
    print(f"{'files, lines':48}{len(lines):5}, {sum(lines.values()):,}")
    return int(any(len(places[name]) > limit for name, limit in LIMITS.items()))


def circles() -> Iterator[str]:
    """Yield circles of imports between modules, those inside functions and of types included."""
    graph = grimp.build_graph("bertwright", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    while True:
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            circle = error.args[1]
            imports[circle[1]].discard(circle[0])
            yield " ← ".join(circle)
        else:
            return


def fragments(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield docstrings, those under attributes included, whose first word makes no sentence."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            for text in body if isinstance(body, list) else []:
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    words = str(text.value.value).split()
                    if words and words[0].rstrip(",:") in FRAGMENTS:
                        yield f"{path}:{text.lineno}: {' '.join(words[:8])}"


def vague_names(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield assignments to names that do not say what they hold."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
                yield f"{path}:{node.lineno}: {node.id}"


def long_functions(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield functions of over 60 lines, their docstring left out."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if ast.get_docstring(node):
                    length -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
                if length > 60:
                    yield f"{path}:{node.lineno}: {node.name} has {length}"


def names_twice(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield public functions, classes and constants that several files define."""
    homes = defaultdict(set)
    for path, tree in trees.items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names = [node.name]
            for name in names:
                if not name.startswith("_") and name not in TWICE:
                    homes[name].add(str(path))
    for name, paths in sorted(homes.items()):
        if len(paths) > 1:
            yield f"{name}: {', '.join(sorted(paths))}"


def fixtures_twice(tests: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield fixtures of the same name that several files of the tests define, a conftest.py included."""
    homes = defaultdict(set)
    for path, tree in tests.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                "pytest.fixture" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                homes[node.name].add(str(path))
    for name, paths in sorted(homes.items()):
        if len(paths) > 1:
            yield f"{name}: {', '.join(sorted(paths))}"


def largest_folder(lines: dict[Path, int]) -> tuple[str, int]:
    """Return the folder of the package with the most lines, and its whole percent of all lines."""
    sums = Counter[str]()
    for path, count in lines.items():
        below = path.relative_to("src/bertwright")
        if len(below.parts) > 1:
            sums[below.parts[0]] += count
    (folder, most), *_ = sums.most_common(1)
    return folder, 100 * most // sum(lines.values())


if __name__ == "__main__":
    sys.exit(main())
