"""Git repositories that `git http-backend` serves by HTTP on a free port of this machine."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from email.parser import BytesHeaderParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.helpers.kube import run
from tests.helpers.processes import serving


class Repository:
    """A clone with its served bare repository; the branch is `main`."""

    def __init__(self, folder: Path, name: str, port: int):
        self.url = f"http://127.0.0.1:{port}/{name}.git"
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
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
        git = ("git", "-C", str(self.work), *identity)
        run(*git, "add", "--all")
        run(*git, "commit", "--quiet", "--allow-empty", "--message", message)
        run(*git, "push", "--quiet", str(self.bare), "main")
        return run(*git, "rev-parse", "HEAD").strip()


def answer(root: Path, request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of git's CGI program for a request."""
    path, _, query = request.path.partition("?")
    environment = {
        **os.environ,
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "REQUEST_METHOD": request.command,
        "CONTENT_TYPE": request.headers.get("Content-Type", ""),
        "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
        "REMOTE_USER": "test",  # who has a name may push
        # The repositories may belong to another user than the one that runs the tests.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    sent = request.rfile.read(int(request.headers.get("Content-Length", 0)))
    command = ("git", "http-backend")
    done = subprocess.run(
        command, input=sent, stdout=subprocess.PIPE, env=environment, timeout=60, check=True
    )
    head, _, body = done.stdout.partition(b"\r\n\r\n")
    headers = dict(BytesHeaderParser().parsebytes(head).items())
    return int(headers.pop("Status", "200").split()[0]), headers, body


@contextlib.contextmanager
def served(
    folder: Path,
    *names: str,
    first: Callable[[BaseHTTPRequestHandler], tuple | None] = lambda _: None,
) -> Iterator[list[Repository]]:
    """`first` may answer a request in place of git."""
    root = folder / "served"
    root.mkdir(parents=True)

    class Request(BaseHTTPRequestHandler):
        def do_GET(self):
            status, headers, body = first(self) or answer(root, self)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_): ...

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Request)) as server:
        yield [Repository(folder, name, server.server_port) for name in names]
