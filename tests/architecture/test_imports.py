from __future__ import annotations

import re
import tomllib
from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]


def _layers() -> str:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return " ".join(next(contract["layers"] for contract in contracts if contract["id"] == "layers"))


def test_imports_point_downward_and_the_core_is_pure() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == EXIT_STATUS_SUCCESS


def test_every_module_has_its_layer() -> None:
    named = set(re.findall(r"ledger\.(\w+)", _layers()))
    modules = {path.stem for path in (ROOT / "ledger").glob("*.py") if path.stem != "__init__"}
    packages = {path.parent.name for path in (ROOT / "ledger").glob("*/__init__.py")}
    assert modules | packages <= named
