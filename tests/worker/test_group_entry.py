"""The entry script without an agent, in every installed POSIX shell."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.group_agents import ENTRY, Group
from tests.helpers.processes import ran

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]


@pytest.fixture(params=SHELLS)
def run(request, group):
    """run(SCRIPT, …) returns exit code, output and folder of one rank without an agent."""

    def once(
        script: str,
        content: dict[str, bytes] | None = None,
        git: str = "",
        node_test: int = 0,
        **settings,
    ):
        rank = group.new_rank("a-0")
        (rank.root / "programs").mkdir()
        (rank.root / "programs/accept-node").write_text(NODE_TEST.replace("CODE", str(node_test)))
        (rank.root / "files").mkdir()
        for key, data in (content or {}).items():
            (rank.root / "files" / key).write_bytes(data)
        if git:
            (rank.root / "scripts/git").write_text(git)
            shutil.copy(ENTRY.with_name("askpass.sh"), rank.root / "scripts/askpass")
            (rank.root / "scripts/askpass").chmod(0o555)
        rank.start_task(script, shell=request.param, GPU_CHARTS_AGENT="", **settings)
        return rank.wait(), rank.output(), rank.root

    return once


QUEUE = {"GPU_CHARTS_QUEUE": "team-a"}
# Kueue admitted a Job that it did not hold alone, so the group would hold nodes in part.
NOT_HELD = "[FATAL] node=a-0 exit_code=2"


@pytest.mark.parametrize(
    ("script", "settings", "code", "shown"),
    [
        ("echo two", {"setup": "echo one"}, 0, "\none\ntwo\n"),
        ("echo two", {"setup": "exit 7"}, 7, "[FATAL] node=a-0 step=setup exit_code=7"),
        ("", {}, 0, ""),
        ("echo two", QUEUE | {"GPU_CHARTS_HELD": "true"}, 0, "\ntwo\n"),
        ("echo two", QUEUE | {"GPU_CHARTS_HELD": ""}, 2, NOT_HELD),
        ("echo two", QUEUE | {"GPU_CHARTS_HELD": "false", "setup": "echo two"}, 2, NOT_HELD),
        ("kill -s SEGV $$", {}, 139, "exit_code=139 signal=11"),
        ("exit 143", {}, 1, "exit_code=143"),  # 143 is kept for pods that are stopped from outside
        ("exit 2", {"GPU_CHARTS_RECOVER_CODES": "29 12"}, 2, "exit_code=2"),
    ],
)
def test_the_code_and_the_cause_of_a_task(run, script, settings, code, shown):
    found, output, _ = run(script, **settings)
    assert found == code and shown in output, output
    assert ("two" in output.splitlines()) == (script == "echo two" and code == 0)


@pytest.mark.parametrize("reason", ["71", "75", "143"])
def test_a_launcher_that_ended_for_another_pod_has_its_pod_replaced(run, reason):
    """Another pod of the task was lost or stopped. Without the launcher, the codes are those of the
    program.
    """
    assert run(f"exit {reason}", GPU_CHARTS_LAUNCHER="--grace-period=20")[0] == 143
    assert run(f"exit {reason}")[0] == (1 if reason == "143" else int(reason))


@pytest.mark.parametrize("shell", SHELLS)
def test_a_full_disk_of_the_node_is_named(tmp_path, shell):
    """The answer of the agent has no place. With 143 the pod would be replaced without end, and
    without a reason.
    """
    rank = Group(tmp_path).new_rank("a-0")
    (rank.root / "state/reply").mkdir()
    for pipe in ("start", "events"):
        os.mkfifo(rank.root / "state" / pipe)
    start, events = (
        os.open(rank.root / "state" / pipe, os.O_RDWR | os.O_NONBLOCK)
        for pipe in ("start", "events")
    )
    os.write(start, b"run\n")
    code = rank.start_task("echo ran", shell=shell).wait()
    os.close(start)
    os.close(events)
    assert code == 1 and "\nran" not in rank.output()
    assert "[FATAL] node=a-0 exit_code=1 " in rank.output() and "reply" in rank.output()


def test_listed_codes_restart_the_task_and_do_not_count(run):
    script = 'n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; echo "try $n"; [ "$n" -ge 2 ] || exit 29'
    code, output, _ = run(script, GPU_CHARTS_RECOVER_CODES="7 29")
    assert code == 0
    assert "try 0" in output and "try 2" in output
    assert output.count("exit_code=29 restarts_in_s") == 2
    assert "errors=0" in output


def test_other_codes_restart_the_task_up_to_the_limit(run):
    code, output, _ = run(
        "echo try; exit 5",
        setup="echo once",
        GPU_CHARTS_MAX_RESTARTS=2,
        GPU_CHARTS_RECOVER_CODES="29",
    )
    assert code == 5
    assert output.count("\ntry\n") == 3
    assert output.count("\nonce\n") == 1
    assert "exit_code=5 errors=2 of=2" in output


def test_a_file_that_cannot_be_written_is_named(run):
    code, output, _ = run(
        "echo ran", files="644 set.0\n/proc/nothing/file\n", content={"set.0": b""}
    )
    assert code == 1
    assert "file=/proc/nothing/file could not be written" in output
    assert "\nran" not in output


def test_a_repository_is_cloned_at_the_ref(run, tmp_path):
    origin = tmp_path / "origin"
    git("init", "-q", "-b", "main", str(origin), cwd=tmp_path)
    for number in ("one", "two"):
        (origin / "file").write_text(number)
        git("add", "file", cwd=origin)
        git("commit", "-q", "-m", number, cwd=origin)
    git("tag", "v1", "HEAD~1", cwd=origin)
    first = git("rev-parse", "HEAD~1", cwd=origin).strip()
    for ref, content in (("", "two"), ("main", "two"), ("v1", "one"), (first, "one")):
        code, output, _ = run("cat file", git=f"file://{origin}\n{ref}\n")
        assert code == 0, output
        assert content in output
    code, output, _ = run("cat file", git=f"file://{origin}\nnothing\n")
    assert code == 1
    assert f"git could not get nothing of file://{origin}" in output


@pytest.mark.parametrize("clones", [True, False])
def test_a_mounted_file_comes_after_the_workdir(run, tmp_path, clones):
    """As in SkyPilot: into the clone, and over a file of the same name."""
    origin = tmp_path / "origin"
    git("init", "-q", "-b", "main", str(origin), cwd=tmp_path)
    (origin / "config").write_text("of the workdir")
    git("add", "config", cwd=origin)
    git("commit", "-q", "-m", "one", cwd=origin)
    content = {"code.0": b"of the workdir", "set.0": b"mounted"}
    files = (
        "" if clones else "644 code.0\n~/sky_workdir/config\n"
    ) + "644 set.0\n~/sky_workdir/config\n"
    code, output, _ = run(
        "cat config", files=files, content=content, git=f"file://{origin}\n\n" if clones else ""
    )
    assert code == 0 and output.splitlines()[-1] == "mounted"


def git(*arguments: str, cwd) -> str:
    me = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    return ran("git", *me, *arguments, cwd=cwd, check=True).stdout


@contextlib.contextmanager
def git_server(folder: Path) -> Iterator[http.server.ThreadingHTTPServer]:
    """Repositories as files, for whoever logs in with any password. `logins` are those that clients
    sent.
    """

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            login = self.headers["Authorization"]
            if server.elsewhere:
                self.answer(302, "Location", server.elsewhere + self.path)
            elif not login:
                self.answer(401, "WWW-Authenticate", "Basic realm=git")
            else:
                server.logins.append(base64.b64decode(login.partition(" ")[2]).decode())
                super().do_GET()

        def answer(self, code, *header):
            self.send_response(code)
            self.send_header(*header)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.logins, server.elsewhere, server.url = (
            [],
            "",
            f"http://127.0.0.1:{server.server_port}",
        )
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A folder to serve, with the repository r.git. Git would store every password that it is
    given.
    """
    folder = tmp_path / "served"
    git("init", "-q", "-b", "main", str(folder / "r"), cwd=tmp_path)
    (folder / "r/file").write_text("content of main")
    git("add", "file", cwd=folder / "r")
    git("commit", "-q", "-m", "one", cwd=folder / "r")
    git("clone", "-q", "--bare", "r", "r.git", cwd=folder)
    git("update-server-info", cwd=folder / "r.git")
    (tmp_path / "config").write_text(f"[credential]\nhelper = store --file={tmp_path}/stored\n")
    for name, value in (
        ("GIT_CONFIG_GLOBAL", tmp_path / "config"),
        ("GIT_TERMINAL_PROMPT", 0),
        ("GIT_TOKEN", "t0ken"),
    ):
        monkeypatch.setenv(name, str(value))
    return folder


def test_the_token_is_for_the_host_of_the_clone_alone(run, repository, tmp_path):
    ask = "git ls-remote $OTHER/r.git; echo askpass=$GIT_ASKPASS; git fetch -q origin; cat file"
    with git_server(repository) as own, git_server(repository) as other:
        code, output, _ = run(ask, git=f"{own.url}/r.git\nmain\n", OTHER=other.url)
    assert code == 0 and "content of main" in output, output
    assert set(own.logins) == {"x-access-token:t0ken"}
    assert other.logins == [] and "\naskpass=\n" in output
    assert not (tmp_path / "stored").exists()


def test_the_token_does_not_follow_a_redirect(run, repository):
    with git_server(repository) as own, git_server(repository) as other:
        own.elsewhere = other.url
        code, output, _ = run("true", git=f"{own.url}/r.git\nmain\n")
    assert code == 1 and "git could not get main" in output, output
    assert other.logins == []


# -- the test of the node

NODE_TEST = "import sys; print('tested', *sys.argv[1:], flush=True); sys.exit(CODE)"


@pytest.mark.parametrize(
    ("mode", "code", "attempt", "ends"),
    [
        ("gate", 0, 0, 0), ("gate", 72, 0, 72), ("gate", 72, 2, 72), ("gate", 72, 3, 1), ("gate", 2, 0, 2),
        ("report", 72, 0, 0), ("report", 2, 0, 0), ("", 72, 0, 0),
    ],
)  # fmt: skip
def test_an_unfit_node_starts_nothing(run, tmp_path, mode, code, attempt, ends):
    test = {"GPU_CHARTS_NODE_TEST": mode, "ATTEMPT": attempt, "TMPDIR": tmp_path}
    ended, output, _ = run("echo ran", node_test=code, **test)
    assert ended == ends, output
    assert ("\nran\n" in output) == (ends == 0)
    assert ("tested --level=prolog" in output) == bool(mode)


def test_72_is_kept_for_unfit_nodes(run):
    """The JobSet would start the group again, and again."""
    assert run("exit 72")[0] == 72
    assert run("exit 72", node_test=0, GPU_CHARTS_NODE_TEST="gate")[0] == 1
