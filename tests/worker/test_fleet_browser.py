"""The page in a browser: filter, sort, live update, node. BROWSER=chromium pytest tests/worker/test_fleet_browser.py"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuworker.fleet.collector import CollectorHandler
from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.http_handler import ReportServer
from hack.gen.fleet_picture import example
from tests.helpers.fleet_reports import merged, node_report

BROWSER = os.environ.get("BROWSER", "")
pytestmark = pytest.mark.skipif(not BROWSER, reason="set BROWSER to a Chromium")


class Store:
    """A result, and a later one that is served from the `after`-th request on."""

    def __init__(self, fleet: Fleet, later: Fleet | None = None, after: int = 3) -> None:
        self.results, self.requests, self.after = (fleet, later or fleet), 0, after

    def fleet(self) -> Fleet:
        self.requests += 1
        return self.results[self.requests >= self.after]


@pytest.fixture
def dom(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """dom(STORE, PATH): what the browser shows after some seconds, as HTML."""
    servers = []

    def show(store: Store, path: str = "", width: int = 1280) -> str:
        handler = type("Handler", (CollectorHandler,), {"store": store, "accept_posts": False})
        server = ReportServer(0, handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        flags = ["--headless", "--no-sandbox", f"--user-data-dir={tmp_path}/profile", f"--window-size={width},900"]
        command = [BROWSER, *flags, "--virtual-time-budget=10000", "--dump-dom"]
        done = subprocess.run(
            [*command, f"http://127.0.0.1:{server.server_port}/{path}"], stdout=subprocess.PIPE, timeout=180
        )
        return done.stdout.decode(errors="replace")

    yield show
    for server in servers:
        server.shutdown()
        server.server_close()


def shown_rows(html: str) -> list[str]:
    rows = re.findall(r"<tr([^>]*)>(.*?)</tr>", html.partition('<h2 id="nodes"')[2].partition("<h2")[0], re.S)
    return [re.sub("<[^>]+>", "", text) for attributes, text in rows if "hidden" not in attributes and "<td" in text]


def test_a_link_with_a_search_shows_the_rows_that_match(dom) -> None:
    html = dom(Store(example()), "#q=node-07&v=FAIL")
    (row,) = shown_rows(html)
    assert "node-07" in row and "FAIL" in row and "2 of " in html
    assert len(shown_rows(dom(Store(example())))) == 17


def test_a_link_with_an_order_sorts_as_people_count(dom) -> None:
    for order, first in (("1.1.0", "node-00"), ("1.1.1", "node-16")):
        assert first in shown_rows(dom(Store(example()), f"#sort={order}"))[0]


def test_the_page_follows_new_reports_without_a_reload(dom) -> None:
    earlier = merged(node_report("n1"))
    later = merged(node_report("n1"), node_report("<b>n2</b>"))
    html = dom(Store(earlier, later), "#q=n2")
    assert "Updated " in html and len(shown_rows(html)) == 1 and "&lt;b&gt;n2" in html
    assert "<title>PASS: 2 of 2" in html


def test_a_node_page_is_where_its_link_leads(dom) -> None:
    html = dom(Store(example()), "node?name=node-05")
    assert "cuda:2↔cuda:6" in html and 'href="./"' in html
