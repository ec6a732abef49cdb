"""Where the files of the embedded PostgreSQL are, and which system user it runs as.

PostgreSQL refuses to run as root. So where the service is root, PostgreSQL runs as a system user of its own,
who must be able to reach the files. No permission of a folder that was there before is ever changed:

- the data directory can be reached by that user: the cluster is `<data-dir>/postgresql`;
- it cannot (root's home is private): the cluster is a new folder in `/var/lib/gateway-ledger/clusters`, and
  the data directory's file `postgresql.location` says which. Whoever removes the data directory starts anew;
  the old cluster stays until it is removed by hand.

Where the service is an ordinary user, PostgreSQL runs as the same user, in `<data-dir>/postgresql`.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SYSTEM_DIR: Final = Path("/var/lib/gateway-ledger")
"""Root's default data directory, and where root keeps what the system user cannot reach elsewhere."""

USER_NAME: Final = "gateway-ledger"
SOCKET_NAME: Final = ".s.PGSQL.5432"
SOCKET_PATH_BYTES_MAX: Final = 107


class EmbeddedPostgresError(Exception):
    """The embedded PostgreSQL cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class ServerUser:
    """The system user that PostgreSQL runs as."""

    name: str
    uid: int
    gid: int
    switched: bool
    """Whether that is another user than the service's own."""

    @property
    def process_options(self) -> dict[str, Any]:
        """The arguments with which `subprocess` starts a program as this user."""
        if not self.switched:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def owns(self, path: Path) -> None:
        """Gives a new, empty folder to this user, for nobody else to enter."""
        path.chmod(0o700)
        if self.switched:
            os.chown(path, self.uid, self.gid)

    def can_reach(self, path: Path) -> bool:
        """Whether this user may enter the folder and every folder above it."""
        return all(self._may_enter(folder) for folder in (path, *path.parents))

    def _may_enter(self, folder: Path) -> bool:
        status = folder.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


@dataclass(frozen=True)
class Place:
    """Where one cluster's files are."""

    data_dir: Path
    cluster: Path
    socket_dir: Path
    user: ServerUser

    @property
    def data(self) -> Path:
        """PostgreSQL's own data folder."""
        return self.cluster / "data"

    @property
    def log(self) -> Path:
        """What PostgreSQL had to say since it was last started."""
        return self.cluster / "postgres.log"


def default_data_dir() -> Path:
    """Returns `/var/lib/gateway-ledger` for root, and a folder of the user's own for anybody else."""
    if os.geteuid() == 0:
        return SYSTEM_DIR
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "gateway-ledger"


def prepare_data_dir(data_dir: Path) -> Path:
    """Makes a data directory, unless it is there, and returns its real path.

    Raises:
        EmbeddedPostgresError: it cannot be made.
    """
    try:
        return make_folder(data_dir.expanduser().absolute()).resolve()
    except OSError as error:
        raise EmbeddedPostgresError(f"cannot make the data directory {data_dir}: {error.strerror}") from error


def prepare_place(data_dir: Path, system_dir: Path = SYSTEM_DIR) -> Place:
    """Makes the folders of the cluster that belongs to a data directory, unless they are there.

    Raises:
        EmbeddedPostgresError: a folder cannot be made, or the system user cannot reach any.
    """
    data_dir = prepare_data_dir(data_dir)
    try:
        if os.geteuid() == 0:
            return _place_of_root(data_dir, system_dir)
        user = _user(os.geteuid(), switched=False)
        return _place(data_dir, data_dir / "postgresql", Path(tempfile.gettempdir()), user)
    except OSError as error:
        raise EmbeddedPostgresError(f"cannot use the data directory {data_dir}: {error}") from error


def make_folder(path: Path) -> Path:
    """Makes a folder and those above it; root's can be entered by everybody, a user's by the user alone.

    Folders that are there already are left as they are.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        path.chmod(0o755 if os.geteuid() == 0 else 0o700)
    return path


def _place_of_root(data_dir: Path, system_dir: Path) -> Place:
    cluster = _chosen_cluster(data_dir)
    if cluster and cluster.stat().st_uid != 0:
        raise EmbeddedPostgresError(f"{cluster} belongs to a user: start the service as that user, not as root")
    user = _owner(cluster / "data") if cluster and (cluster / "data").exists() else _system_user()
    if cluster is None and user.can_reach(data_dir):
        cluster = data_dir / "postgresql"
    if cluster is None:
        cluster = _cluster_elsewhere(data_dir, make_folder(system_dir / "clusters"), user)
    return _place(data_dir, cluster, system_dir / "run", user)


def _chosen_cluster(data_dir: Path) -> Path | None:
    """Returns the cluster that an earlier start chose for the data directory."""
    pointer = data_dir / "postgresql.location"
    if pointer.exists():
        cluster = Path(pointer.read_text().strip())
        if not cluster.is_dir():
            raise EmbeddedPostgresError(
                f"{pointer} says that the data is in {cluster}, which is not there: "
                "put it back, or remove the file to start anew"
            )
        return cluster
    beside = data_dir / "postgresql"
    return beside if beside.is_dir() else None


def _cluster_elsewhere(data_dir: Path, clusters: Path, user: ServerUser) -> Path:
    if not user.can_reach(clusters):
        raise EmbeddedPostgresError(
            f"the system user {user.name} can reach neither {data_dir} nor {clusters}; "
            "choose a --data-dir whose folders can be entered by everybody"
        )
    cluster = Path(tempfile.mkdtemp(prefix=f"{data_dir.name}-", dir=clusters))
    cluster.chmod(0o755)
    (data_dir / "postgresql.location").write_text(f"{cluster}\n")
    return cluster


def _place(data_dir: Path, cluster: Path, short_dir: Path, user: ServerUser) -> Place:
    make_folder(cluster)
    socket_dir = cluster / "run"
    if len(os.fsencode(socket_dir / SOCKET_NAME)) > SOCKET_PATH_BYTES_MAX:
        digest = hashlib.sha256(os.fsencode(cluster)).hexdigest()[:16]
        socket_dir = make_folder(short_dir) / f"gateway-ledger-{user.uid}-{digest}"
    socket_dir.mkdir(mode=0o700, exist_ok=True)
    if user.switched:  # The folder above is root's, so nobody else can have made this one.
        user.owns(socket_dir)
    _check_private(socket_dir, user)
    return Place(data_dir, cluster, socket_dir, user)


def _check_private(folder: Path, user: ServerUser) -> None:
    """Refuses a socket folder that somebody else made or may enter: connections there need no password."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user.uid or status.st_mode & 0o077:
        raise EmbeddedPostgresError(f"{folder} must be a folder of {user.name} with mode 0700; remove it")


def _owner(path: Path) -> ServerUser:
    uid = path.stat().st_uid
    if uid == 0:
        raise EmbeddedPostgresError(f"{path} belongs to root, as whom PostgreSQL does not run")
    return _user(uid, switched=True)


def _user(uid: int, *, switched: bool) -> ServerUser:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # A user with no name, as containers have them.
        return ServerUser(str(uid), uid, os.getegid() if not switched else uid, switched)
    return ServerUser(entry.pw_name, uid, entry.pw_gid, switched)


def _system_user() -> ServerUser:
    """Returns the system user `gateway-ledger`, made if it is not there; `nobody` where none can be made."""
    useradd = shutil.which("useradd")
    if not _exists(USER_NAME) and useradd:
        options = ("--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent")
        command = [useradd, *options, "--shell", "/usr/sbin/nologin", USER_NAME]
        subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - our own constants
    name = USER_NAME if _exists(USER_NAME) else "nobody"
    return _user(pwd.getpwnam(name).pw_uid, switched=True)


def _exists(name: str) -> bool:
    return any(entry.pw_name == name for entry in pwd.getpwall())
