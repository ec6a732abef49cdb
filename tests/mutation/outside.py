"""Changes what stands outside functions, and properties, which mutmut leaves out; see README.md.

Each mutant is a file of its own in a copy of the tree, and the tests are run anew for it. The ways to change a line
are mutmut's.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import multiprocessing
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import libcst as cst
import pytest
from mutmut.mutation.file_mutation import deep_replace
from mutmut.mutation.mutators import mutation_operators
from rich.console import Console

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("pricing", "ledger", "tests/support", "tests/unit")
SETTINGS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
ARGUMENTS: Final = ["-x", "-q", "--noconftest", "-p", "no:schemathesis", *SETTINGS["pytest_add_cli_args"]]
"""These tests ask for no fixtures, and what `conftest.py` imports takes longer than they do."""
TESTS: Final[Sequence[str]] = SETTINGS["pytest_add_cli_args_test_selection"]
SECONDS: Final = 120
"""A mutant whose tests last longer is one that is found: it does not end."""
TYPING: Final = frozenset({"Literal", "TypeVar", "tuple"})
STRUCT_OPTIONS: Final = frozenset({"frozen", "kw_only", "eq"})

console = Console(soft_wrap=True, highlight=False, markup=False)


class Mutant(NamedTuple):
    """A file with one change in it."""

    path: Path
    code: str

    def __str__(self) -> str:
        """Show the lines that differ."""
        before = (ROOT / self.path).read_text().splitlines()
        changes = [
            line
            for line in difflib.unified_diff(before, self.code.splitlines(), n=0, lineterm="")
            if line[:1] in "+-" and not line.startswith(("+++", "---"))
        ]
        return "\n".join([str(self.path), *(f"    {line}" for line in changes)])


class Changes(cst.CSTVisitor):
    """Collects the changes to a module, other than those that mutmut itself makes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[cst.CSTNode, cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Note the ways to change a node; go on to what is in it unless it is not ours."""
        if _is_left_alone(node):
            return False
        for kind, changed in mutation_operators:
            if isinstance(node, kind):
                self.found += [(node, other) for other in changed(node)]
        return True


def _is_left_alone(node: cst.CSTNode) -> bool:
    """Whether mutmut changes it, or only people and the type checker read it."""
    match node:
        case cst.Annotation() | cst.Import() | cst.ImportFrom() | cst.Decorator() | cst.Expr(cst.SimpleString()):
            return True
        case cst.FunctionDef():
            return not any(cst.ensure_type(one.decorator, cst.Name).value == "property" for one in node.decorators)
        case cst.Arg(keyword=cst.Name(name)) if name in STRUCT_OPTIONS:
            return True
        case cst.Assign(value=cst.Subscript(cst.Name(name)) | cst.Call(cst.Name(name))):
            return name in TYPING
        case cst.Assign(value=cst.BinaryOperation(operator=cst.BitOr())):
            return True
    return False


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Make every mutant of a file, each once."""
    module = cst.parse_module((ROOT / path).read_text())
    changes = Changes()
    module.visit(changes)
    seen = {module.code}
    for old, new in changes.found:
        changed = deep_replace(module, old, new)
        assert isinstance(changed, cst.Module)
        if changed.code not in seen:
            seen.add(changed.code)
            yield Mutant(path, changed.code)


def preload(folder: Path) -> None:
    """Load pytest and its plugins, which every trial then finds loaded; there is nothing to test in the folder."""
    with hidden():
        pytest.main([*ARGUMENTS, "--rootdir", str(folder), str(folder)])


def passes(tree: Path, tests: Sequence[str] = TESTS) -> bool:
    """Whether tests pass in a tree; they run in a process of their own."""
    trial = multiprocessing.get_context("fork").Process(target=_test, args=(tree, tests))
    trial.start()
    trial.join(SECONDS)
    if trial.is_alive():
        trial.kill()
        trial.join()
    return trial.exitcode == 0


def _test(tree: Path, tests: Sequence[str]) -> None:
    """Run tests of a tree on the modules of the tree, and end with what pytest ends with."""
    os.chdir(tree)
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    with hidden():
        code = pytest.main([*ARGUMENTS, *tests])
    os._exit(code)


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Let nothing be seen of what is written meanwhile."""
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def survives(mutant: Mutant, tree: Path) -> bool:
    """Whether the tests pass with a mutant in the tree: first those of its file, which often suffice, and then all."""
    place = tree / mutant.path
    own = Path("tests/unit", mutant.path.parent.name, f"test_{mutant.path.name}")
    original = place.read_text()
    place.write_text(mutant.code)
    try:
        return (not (tree / own).exists() or passes(tree, [str(own)])) and passes(tree)
    finally:
        place.write_text(original)


def main() -> None:
    """Try every mutant of the files named, or of all, and print those that survive."""
    options = argparse.ArgumentParser(prog="python -m tests.mutation.outside", description=__doc__)
    options.add_argument("files", nargs="*", type=Path)
    paths = options.parse_args().files or [
        path.relative_to(ROOT) for folder in ("pricing", "ledger/core") for path in sorted((ROOT / folder).glob("*.py"))
    ]
    with tempfile.TemporaryDirectory() as name:
        tree, nothing = Path(name, "tree"), Path(name, "nothing")
        nothing.mkdir()
        for folder in COPIED:
            shutil.copytree(ROOT / folder, tree / folder)
        shutil.copy2(ROOT / "pyproject.toml", tree)
        preload(nothing)
        if not passes(tree):
            sys.exit("the tests fail as it is")
        if survives(Mutant(Path("ledger/core/books.py"), "raise SystemError"), tree):
            sys.exit("the tests do not run on the copy of the tree")
        for path in paths:
            mutants = list(mutants_of(path))
            survivors = [mutant for mutant in mutants if survives(mutant, tree)]
            for mutant in survivors:
                console.print(str(mutant))
            console.print(f"{path}: {len(mutants)} mutants, {len(survivors)} survived")


if __name__ == "__main__":
    main()
