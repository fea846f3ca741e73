"""A git repository that is served with the git protocol on a free port of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.kube import run


class Repository:
    """A clone with its served bare repository; the branch is `main`."""

    def __init__(self, folder: Path, name: str, port: int):
        self.url = f"git://127.0.0.1:{port}/{name}.git"
        self.bare, self.work = folder / "served" / f"{name}.git", folder / name
        run("git", "init", "--quiet", "--bare", "--initial-branch=main", str(self.bare))
        run("git", "init", "--quiet", "--initial-branch=main", str(self.work))

    def commit(self, files: dict[str, str | Path | None], message: str = "a change") -> str:
        """Write texts, copy folders or remove what is None; return the commit."""
        for name, content in files.items():
            target = self.work / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copytree(content, target, dirs_exist_ok=True)
            elif content is None:
                target.unlink()
            else:
                target.write_text(content)
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
        git = ("git", "-C", str(self.work), *identity)
        run(*git, "add", "--all")
        run(*git, "commit", "--quiet", "--allow-empty", "--message", message)
        run(*git, "push", "--quiet", str(self.bare), "main")
        return run(*git, "rev-parse", "HEAD").strip()


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextlib.contextmanager
def served(folder: Path, *names: str) -> Iterator[list[Repository]]:
    base = folder / "served"
    base.mkdir(parents=True)

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            served = ("--export-all", "--enable=receive-pack", f"--base-path={base}", str(base))
            command = ("git", "daemon", "--inetd", *served)
            # The repositories may belong to another user than the one that runs the tests.
            settings = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
            stream = self.request.fileno()
            subprocess.run(command, stdin=stream, stdout=stream, env={**os.environ, **settings}, timeout=60)

    with Server(("127.0.0.1", 0), Connection) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield [Repository(folder, name, server.server_address[1]) for name in names]
        finally:
            server.shutdown()
            thread.join()
