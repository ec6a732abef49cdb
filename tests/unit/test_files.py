from __future__ import annotations

from pathlib import Path

import pytest

from ledger.files import replacing


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert _names(tmp_path) == ["table.csv"]


def _fail(path: Path, error: type[BaseException]) -> None:
    with replacing(path) as file:
        file.write(b"half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_what_fails_leaves_nothing_behind(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "table.csv"
    with pytest.raises(error):
        _fail(path, error)
    assert _names(tmp_path) == []


def test_a_name_of_any_length_and_any_folder(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    with replacing(path) as file:
        file.write(b"1")
    assert path.read_bytes() == b"1"
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "none" / "table.csv"):
        pass
    with pytest.raises(IsADirectoryError), replacing(tmp_path):
        pass
    assert [name for name in _names(tmp_path.parent) if name.endswith(".part")] == []
