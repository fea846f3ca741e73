"""The page of a fleet as a person uses it: search, sort, links, keyboard, updates, phone, print."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from gpuworker.fleet.expected import Expected
from gpuworker.fleet.formats import html
from tests.browser.conftest import PHONE, Store
from tests.helpers.fleet_reports import failing, merged, node_report
from tests.helpers.processes import until

OpenPage = Callable[..., Page]
TABLE = "h2#nodes ~ div.scroll:has(table.rows) >> nth=0 >> table.rows"
PATHS = ["", "node?name=node-05", "check?name=compute", "certificate"]


def nodes(page: Page) -> list[str]:
    return page.locator(f"{TABLE} tbody tr:visible").all_inner_texts()


def test_a_search_and_a_verdict_show_the_rows_that_match(open_page: OpenPage) -> None:
    page = open_page()
    assert len(nodes(page)) == 17
    page.keyboard.press("/")  # focuses the search
    page.keyboard.type("node-07")
    page.select_option("#v", "FAIL")
    (row,) = nodes(page)
    assert "node-07" in row and page.url.endswith("#q=node-07&v=FAIL")
    expect(page.locator("#shown")).to_have_text(re.compile(r"^\d+ of \d+ rows$"))
    assert nodes(open_page("#" + page.url.partition("#")[2])) == [row]  # the address is a link to this view
    page.fill("#q", "")
    page.select_option("#v", "")
    assert len(nodes(page)) == 17


def test_another_address_is_followed_while_the_search_has_the_focus(open_page: OpenPage) -> None:
    page = open_page()
    page.focus("#q")
    page.evaluate("location.hash = '#q=node-07'")
    expect(page.locator("#q")).to_have_value("node-07")
    assert [("node-07" in row) for row in nodes(page)] == [True]


def test_a_column_sorts_in_both_directions_as_people_count(open_page: OpenPage) -> None:
    page = open_page()
    button = page.locator(f"{TABLE} th button", has_text="Node").first
    for order, first in (("ascending", "node-00"), ("descending", "node-16")):
        button.click()
        assert first in nodes(page)[0]
        assert page.locator(f"{TABLE} th[aria-sort={order}]").count() == 1
    assert first in nodes(open_page("#" + page.url.partition("#")[2]))[0]


def order(page: Page) -> list[list[str]]:
    """The names of the nodes, and the first words of the suspects, from top to bottom."""
    suspects = page.locator("h2#suspects + div tbody tr").all_inner_texts()
    return [[" ".join(row.split()[:4]) for row in rows] for rows in (nodes(page), suspects)]


def test_the_order_worst_first_comes_back(open_page: OpenPage) -> None:
    page = open_page()
    worst_first = order(page)
    button = page.locator("h2#suspects + div th button", has_text="Do")
    button.click()
    assert order(page) != worst_first
    page.go_back()
    until(lambda: not page.evaluate("location.hash"), "the address has no order")
    assert order(page) == worst_first and page.locator("th[aria-sort=ascending]").count() == 0
    for _ in range(3):  # up, down, as it came
        button.click()
    assert order(page) == worst_first and "sort" not in page.url


def test_the_address_keeps_the_order_of_every_table(open_page: OpenPage) -> None:
    page = open_page()
    page.locator(f"{TABLE} th button", has_text="Node").first.click()
    page.locator("h2#suspects + div th button", has_text="Do").click()
    assert page.locator("th[aria-sort=ascending]").count() == 2
    both = order(page)
    assert order(open_page("#" + page.url.partition("#")[2])) == both
    page.go_back()
    expect(page.locator("th[aria-sort=ascending]")).to_have_count(1)
    assert order(page)[0] == both[0] and order(page)[1] != both[1]


@pytest.mark.parametrize("path", ["", "certificate"])
def test_long_names_fit_on_paper(path: str, open_page: OpenPage, store: Store) -> None:
    names = [f"{letter * 200}.example.com" for letter in "ab"]
    store.result = merged(*map(node_report, names), expected=Expected(3, names=[*names, "c" * 200]))
    page = open_page(path, viewport={"width": 700, "height": 990})  # A4 without its margins
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every((each) => each.scrollWidth <= 700)")


def test_the_page_follows_new_reports_without_a_reload(open_page: OpenPage, store: Store) -> None:
    store.result = merged(node_report("n1"))
    page = open_page("#q=n2")
    until_polled(page)
    page.focus("#q")
    store.result = merged(node_report("n1"), node_report("<b>n2</b>"))
    expect(page).to_have_title(re.compile("^PASS: 2 of 2"), timeout=30_000)
    assert [("<b>n2</b>" in row) for row in nodes(page)] == [True]  # escaped, and the search still holds
    assert page.evaluate("document.activeElement.id") == "q"
    expect(page.locator("#status")).to_contain_text("Updated")


def until_polled(page: Page) -> None:
    """Not by wait_for_function: its second try evaluates text within the page, whose policy forbids that."""
    until(lambda: page.evaluate("known") != "", "the page has asked the collector for news")


def test_an_open_detail_stays_open_when_reports_arrive(open_page: OpenPage, store: Store) -> None:
    page = open_page()
    until_polled(page)
    details = page.locator("tr[id] details").first
    details.locator("summary").click()
    text = details.locator("pre").inner_text()
    store.result.notes.append("something new")
    store.result = replace(store.result)  # a new result, as after a merge
    expect(page.locator("body")).to_contain_text("something new", timeout=30_000)
    assert page.locator("tr[id] details[open] pre").first.inner_text() == text


def test_a_collector_that_is_gone_is_said_on_the_page(open_page: OpenPage) -> None:
    page = open_page()
    page.route("**/*", lambda route: route.fulfill(status=503))
    expect(page.locator("#status.FAIL")).to_contain_text("out of date", timeout=30_000)
    page.unroute("**/*")
    expect(page.locator("#status.FAIL")).to_have_count(0, timeout=30_000)


def test_a_suspect_leads_to_its_node_and_back(open_page: OpenPage) -> None:
    page = open_page()
    page.locator("h2#suspects + div tbody a").first.click()
    name = page.locator("h1").inner_text()
    assert page.url.endswith(f"/node?name={name}") and page.locator("table").count()
    page.locator("nav a").first.click()
    expect(page.locator("h1")).to_have_text("GPU acceptance")


def test_downloads_are_what_they_say(open_page: OpenPage, url: str) -> None:
    page = open_page()
    found = {a.inner_text(): a.get_attribute("href") for a in page.locator("nav.downloads a").all()}
    assert set(found) == {"JSON", "CSV", "JUnit", "Certificate"}
    answers = {name: page.request.get(url + path).text() for name, path in found.items()}
    assert json.loads(answers["JSON"])["verdict"] == "FAIL"
    assert answers["CSV"].startswith("verdict,") and answers["JUnit"].startswith("<?xml")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
def test_axe_finds_no_barrier(path: str, scheme: str, phone: bool, open_page: OpenPage) -> None:
    page = open_page(path, color_scheme=scheme, **({"viewport": PHONE} if phone else {}))
    found = Axe().run(page).response["violations"]
    assert [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in found] == []


@pytest.mark.parametrize("path", PATHS)
def test_a_phone_scrolls_in_one_direction(path: str, open_page: OpenPage) -> None:
    page = open_page(path, viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


LONG = "n" * 200


@pytest.mark.parametrize("path", ["", f"node?name={LONG}", f"check?name={LONG}", "certificate", "as a file"])
def test_a_phone_scrolls_in_one_direction_whatever_the_names(path: str, open_page: OpenPage, store: Store) -> None:
    report = failing(LONG, f"cuda:1: {LONG} is wrong")
    report["checks"][1]["name"] = LONG
    report |= dict.fromkeys(("pod", "run_id", "level", "injected"), LONG)
    report["facts"]["gpu_models"] = [LONG] * 2
    other = node_report("b")
    other["checks"][1]["name"] = LONG
    store.result = merged(report, other, expected=Expected(3, names=[LONG, "b", "c" * 200]))
    page = open_page(path.replace("as a file", "healthz"), viewport=PHONE)
    if path == "as a file":
        page.set_content(html.page(store.result))
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_everything_is_reached_by_keyboard(open_page: OpenPage) -> None:
    page = open_page()
    wanted = page.locator("main a:visible, main button:visible, main input:visible, main select:visible, main summary")
    count, reached = wanted.count(), set()
    for _ in range(count + 20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("[...document.querySelectorAll('main *')].indexOf(document.activeElement)"))
    assert len(reached - {-1}) >= count
