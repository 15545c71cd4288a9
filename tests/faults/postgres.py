"""A PostgreSQL of one's own: a new cluster in a folder, on the loopback address, gone at the end."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PLACES = "/usr/lib/postgresql"
_LIMIT = 120


def programs() -> Path | None:
    """The folder with initdb and pg_ctl; None if PostgreSQL is not installed."""
    found = sorted(Path(_PLACES).glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    other = shutil.which("initdb")
    return found[-1].parent if found else Path(other).resolve().parent if other else None


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run a server while inside; yields the URL of a new database, for psycopg."""
    place = programs()
    assert place is not None
    folder = Path(tempfile.mkdtemp(prefix="pare-postgres-"))
    as_user = _other_user(folder)
    data, port = folder / "data", _free_port()

    def run(*words: str) -> None:
        subprocess.run([*as_user, *words], check=True, capture_output=True, timeout=_LIMIT, cwd=folder)

    try:
        run(str(place / "initdb"), "-D", str(data), "-U", "pare", "-A", "trust", "--no-sync")
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c max_connections=200"
        )
        run(str(place / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql+psycopg://pare@127.0.0.1:{port}/postgres"
        finally:
            run(str(place / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _other_user(folder: Path) -> list[str]:
    """PostgreSQL refuses to run as root: then the user that its package brings runs it."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
