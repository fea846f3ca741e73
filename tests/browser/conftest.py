"""The pages of a fleet in Debian's Chromium, driven by Playwright. The collector's handler is real."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from gpuworker.fleet.collector import CollectorHandler
from gpuworker.fleet.http_handler import ReportServer
from gpuworker.judgement.fleet_report import Fleet
from tests.helpers.example_fleets import small
from tests.helpers.processes import serving

PHONE = {"width": 390, "height": 844}


def is_problem(message: ConsoleMessage) -> bool:
    """A refused script or style, but no status such as 503, which a test may want."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


class Store:
    """What the collector's handler asks for a result, which a test may replace."""

    def __init__(self, fleet: Fleet, folder: Path):
        self.folder = folder
        self.result, self.reports = fleet, {}

    def fleet(self) -> Fleet:
        return self.result

    def waiting(self) -> bool:
        return False

    def path(self, node: str) -> Path:
        path = self.folder / "report.json"
        path.unlink(missing_ok=True)
        if node in self.reports:
            path.write_text(json.dumps(self.reports[node]))
        return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Without a sandbox, since CI may run as root; the pages are our own.
        yield playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(small(), tmp_path)


@pytest.fixture
def url(store) -> Iterator[str]:
    handler = type("Handler", (CollectorHandler,), {"store": store, "accept_posts": False})
    with serving(ReportServer(0, handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/"


@pytest.fixture
def open_page(browser, url) -> Iterator[Callable[..., Page]]:
    """open_page(PATH, **OPTIONS of a browser context). A request to elsewhere or an error of a
    script is a failure.
    """
    contexts, problems = [], []

    def show(path="", **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: is_problem(message) and problems.append(message.text))
        page.on(
            "request",
            lambda request: request.url.startswith((url, "file:")) or problems.append(request.url),
        )
        page.goto(url + path)
        return page

    yield show
    for context in contexts:
        context.close()
    assert problems == []
