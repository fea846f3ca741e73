"""The page of a fleet as a person uses it: search, links, keyboard, updates, phone, print, from a
file.
"""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from gpuworker.fleet.formats.page import page as page_of
from gpuworker.judgement.fleet_report import json_text
from gpuworker.judgement.sources import Expected
from tests.browser.conftest import PHONE
from tests.helpers.example_fleets import large
from tests.helpers.fleet_reports import check, failing, merged, node_report
from tests.helpers.processes import until

OpenPage = Callable[..., Page]
SUMMARY = ".cause > summary"
PATHS = ["", "#node=node-05", "#measure=compute/gemm_bf16", "#measure=all", "#certificate=1"]


def causes(page: Page) -> list[str]:
    expect(page.locator("main h1, main .big").first).to_be_visible()
    return page.locator(SUMMARY).all_inner_texts()


def open_all(page: Page):
    causes(page)
    for summary in page.locator(SUMMARY).all():
        summary.click()


def width(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth")


def squares(page: Page) -> list[str]:
    """Nodes of the map that are not dimmed."""
    return [
        each.get_attribute("title").partition(":")[0]
        for each in page.locator(".map a:not(.off)").all()
    ]


def test_a_search_and_a_verdict_apply_to_causes_map_and_counts(open_page):
    page = open_page()
    assert len(causes(page)) == 6 and len(squares(page)) == 17
    page.fill("#q", "node-07 FAIL")
    expect(page.locator("#causes")).to_have_text("1 of 6 causes, 1 of 6 parts, 1 of 17 nodes")
    (row,) = causes(page)
    assert "node-07" in row and "60 %" in row and page.url.endswith("#q=node-07+FAIL")
    assert squares(page) == ["node-07"]
    assert causes(open_page("#" + page.url.partition("#")[2])) == [
        row
    ]  # the address is a link to this view
    page.fill("#q", "")
    expect(page.locator(SUMMARY)).to_have_count(6)
    assert len(squares(page)) == 17
    page.locator("section.nodes p a", has_text="FAIL").click()
    assert (
        causes(page) and all("FAIL" in row for row in causes(page)) and page.url.endswith("#q=FAIL")
    )


def test_a_cause_has_identity_commands_and_a_ticket(open_page, store):
    page = open_page()
    worst = store.result.suspects[0]
    assert worst.uuid and worst.pod
    row = page.locator(".cause").first
    row.locator("summary").first.click()
    expect(row).to_contain_text(worst.uuid)
    texts = row.locator("pre").all_text_contents()
    assert texts[:2] == [
        f"kubectl cordon {worst.node}",
        f"kubectl delete pod -n gpu-system {worst.pod}",
    ]
    identity = (
        worst.node,
        worst.device,
        worst.model,
        worst.uuid,
        worst.serial,
        worst.pci,
        worst.act,
        worst.advice,
    )
    assert all(text in texts[-1] for text in (*identity, *worst.reasons))


def test_a_node_shows_each_number_beside_the_median(open_page):
    page = open_page("#node=node-05")
    expect(page.locator("h1").nth(1)).to_contain_text("node-05")
    slow = page.locator("td.n.FAIL").all_inner_texts()
    assert "114" in slow and len(slow) == 5, (
        "the slow link in the matrix, both ways, and what waits for it"
    )
    expect(open_page("#node=node-16").locator("main")).to_contain_text("No report of this node.")
    expect(open_page("#node=absent").locator("main")).to_contain_text("has no node of this name")


def test_a_measurement_shows_the_worst_first(open_page):
    page = open_page("#measure=compute/gemm_bf16")
    expect(page.locator("tbody tr").first).to_contain_text("node-07")
    page.locator(".card > a").first.click()
    expect(page.locator("main h1")).to_contain_text("node-07")


TEXTS = """\
<script>X</script>
</script><script>X</script>
<img src=x onerror=X>
<svg onload=X>
<b>X</b>
<!--
-->
<iframe src=javascript:X>
<a href=javascript:X>X</a>
<style>*{display:none}</style>
<base href=//x>
<template>
<meta http-equiv=refresh content=0>
<form action=//x>
<object data=x>
<math><mi//xlink:href=X>
"
'
`
" onmouseover=X 
${X}
{{X}}
&lt;X&gt;
&amp;
&#60;X&#62;
\\u003cX\\u003e
javascript:X
data:text/html,X
__proto__
constructor
toString
null
NaN
%3Cscript%3E
"""
SIGNS = ("\u2028", "\u202eX", "\u200b", "\U0001f600", "e\u0301", "#node=X&q=FAIL", "X" * 200)
HOSTILE = [*TEXTS.splitlines(), *SIGNS]


def hostile_report(number: int, text: str) -> dict:
    """A failed node with the text in every field that a report has for text."""
    report = failing(f"{number} {text}", f"cuda:1: {text}")
    report["checks"][1]["name"] = text
    for found in report["checks"][1]["measurements"]:
        found |= {
            "name": text,
            "unit": text,
            "device": f"{text}{found['device']}",
            "limit_source": text,
        }
    report |= dict.fromkeys(("pod", "run_id", "injected"), text)
    report["facts"] |= {"gpu_models": [text] * 2, "driver": text, "kernel": text}
    gpus = [
        {"device": f"cuda:{i}"} | dict.fromkeys(("uuid", "serial", "bus_id", "vbios"), text)
        for i in range(2)
    ]
    report["checks"].append(check("environment", facts={"gpus": gpus}))
    return report


@pytest.mark.parametrize("saved", [False, True], ids=["served", "saved"])
def test_hostile_text_is_only_text(saved, open_page, store, tmp_path):
    """In every view: no element that the page did not make, no dialog, no request, and the text is
    there.
    """
    assert len(set(HOSTILE)) > 40
    reports = [hostile_report(number, text) for number, text in enumerate(HOSTILE)]
    store.result = merged(*reports)
    store.result.name = HOSTILE[0]
    store.reports = {report["node"]: report for report in reports}
    page = open_page()
    if saved:
        (tmp_path / "page.html").write_text(page_of(store.result))
        page.goto((tmp_path / "page.html").as_uri())
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.locator(SUMMARY).first.wait_for()
    for each in page.locator(SUMMARY).all():
        each.click()
    base = page.url.partition("#")[0]
    foreign = "main :is(img, script, iframe, style, base, meta, object, template, math, b b), main form, main [onload]"
    for number, text in enumerate(HOSTILE):
        node = f"{number} {text}"
        for view in ({"q": node}, {"node": node}, {"measure": f"{text}/{text}"}):
            page.goto(f"{base}#{urlencode(view)}")
            shown = page.locator("body").text_content()
            assert (
                page.locator(foreign).count() == 0
                and page.locator("head base, body base").count() == 0
            )
            assert view.get("node", text) in shown, view


def test_the_page_follows_new_reports_without_a_reload(open_page, store):
    store.result = merged(node_report("n1"))
    page = open_page("#q=n2")
    until_polled(page)
    page.focus("#q")
    store.result = merged(node_report("n1"), node_report("<b>n2</b>"))
    expect(page.locator("main")).to_contain_text("2 of 2 nodes", timeout=30_000)
    assert (
        squares(page) == ["<b>n2</b>"] and page.locator("#q").input_value() == "n2"
    )  # the search still holds
    assert page.evaluate("document.activeElement.id") == "q"
    expect(page.locator("#status")).to_contain_text("Updated")


def until_polled(page: Page):
    """Not by wait_for_function: its second try evaluates text within the page, whose policy forbids
    that.
    """
    until(lambda: page.evaluate("version") is not None, "the page has asked the collector for news")


def test_an_open_detail_stays_open_when_reports_arrive(open_page, store):
    page = open_page()
    until_polled(page)
    page.locator(SUMMARY).nth(1).click()
    store.result.notes.append("something new")
    store.result = replace(store.result)  # a new result, as after a merge
    expect(page.locator("main")).to_contain_text("something new", timeout=30_000)
    assert [each.get_attribute("open") for each in page.locator(".cause").all()][:3] == [
        None,
        "",
        None,
    ]


def test_a_collector_that_is_gone_is_said_on_the_page(open_page):
    page = open_page()
    page.route("**/*", lambda route: route.fulfill(status=503))
    expect(page.locator("#status.FAIL")).to_contain_text("out of date", timeout=30_000)
    page.unroute("**/*")
    expect(page.locator("#status.FAIL")).to_have_count(0, timeout=30_000)


def test_downloads_are_what_they_say(open_page, url, tmp_path):
    page = open_page()
    expect(page.locator("#files a")).to_have_count(3)
    with page.expect_download() as saved:
        page.click("text=This page")
    saved_page = open_page()
    saved_page.goto(Path(shutil.copy(saved.value.path(), tmp_path / "page.html")).as_uri())
    assert causes(saved_page) == causes(page)
    expect(saved_page.locator("#files")).to_be_hidden()
    policy = saved_page.evaluate("document.querySelector('meta[http-equiv]').content")
    assert policy and "unsafe" not in policy, "it has its data, and nothing else may run"
    found = {a.inner_text(): a.get_attribute("href") for a in page.locator("#files a").all()}
    assert set(found) == {"This page", "JSON", "Reports"}
    assert page.request.get(url + found["JSON"]).json()["verdict"] == "FAIL"


def test_a_certificate_names_every_gpu_and_accepts_only_what_passed(open_page, store):
    page = open_page("#certificate=1")
    expect(page.locator("main h1")).to_have_text("GPU acceptance: Not accepted")
    expect(page.locator("main")).to_contain_text(
        hashlib.sha256(json_text(store.result).encode()).hexdigest()
    )
    assert (
        page.locator("tbody tr").count() == 17
        and "no report" in page.locator("tbody tr").last.inner_text()
    )
    assert all(
        gpu.serial in page.locator("main").inner_text()
        for node in store.result.nodes
        for gpu in node.gpus
    )
    for reports, words in (
        ([node_report("n1")], "Accepted"),
        ([node_report("n1", device="cpu")], "Not accepted"),
    ):
        store.result = merged(*reports)
        expect(open_page("#certificate=1").locator("main h1")).to_have_text(
            f"GPU acceptance: {words}"
        )


def test_several_nodes_are_one_ticket_and_one_command(open_page, store):
    store.result = merged(*(failing(f"n{number}") for number in range(5)), node_report("good"))
    page = open_page()
    (row,) = causes(page)
    assert "5 nodes: n0, n1, n2 …" in row
    page.locator(SUMMARY).click()
    assert page.locator(".cause tbody tr").count() == 5
    assert page.locator(".body pre").first.text_content() == "kubectl cordon n0 n1 n2 n3 n4"
    page.click("#ticket")
    page.click(".tickets pre")
    lines = page.evaluate("getSelection().toString()").splitlines()
    assert len([line for line in lines if line.startswith("n")]) == 5


def test_a_node_leads_to_its_report(open_page, store):
    name = "node-05/../x?&#"
    store.result, store.reports = merged(node_report(name)), {name: node_report(name)}
    page = open_page("#" + urlencode({"node": name}))
    href = page.locator("text=The report of this node").get_attribute("href")
    assert parse_qs(urlsplit(href).query) == {"node": [name]}


def test_a_fleet_of_240_nodes_shows_all_its_causes_within_one_scroll(open_page, store):
    store.result = large()
    page = open_page(viewport={"width": 1280, "height": 800})
    assert len(causes(page)) == len(store.result.causes) == 18
    tops = [each.bounding_box() for each in page.locator(SUMMARY).all()]
    assert sum(box["y"] + box["height"] <= 800 for box in tops) >= 10 and tops[-1]["y"] < 2 * 800
    squares_seen = [each.bounding_box() for each in page.locator(".map a").all()]
    assert len(squares_seen) == 240 and all(box["y"] + box["height"] <= 800 for box in squares_seen)
    page.locator(".rack .name", has_text="gpu-r13").click()
    assert len(causes(page)) == 1 and len(squares(page)) == 16
    expect(page.locator(".cause .dim").first).to_contain_text("16 nodes")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
def test_axe_finds_no_barrier(path, scheme, phone, open_page):
    page = open_page(path, color_scheme=scheme, **({"viewport": PHONE} if phone else {}))
    open_all(page)
    found = Axe().run(page).response["violations"]
    assert [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in found] == []
    assert width(page) <= page.viewport_size["width"]


LONG = "n" * 200


@pytest.mark.parametrize("path", ["", f"#node={LONG}", f"#measure={LONG}/gemm", "#certificate=1"])
def test_long_names_fit_on_a_phone_and_on_paper(path, open_page, store):
    report = failing(LONG, f"cuda:1: {LONG} is wrong")
    report["checks"][1]["name"] = LONG
    report |= dict.fromkeys(("pod", "run_id", "level", "injected"), LONG)
    report["facts"]["gpu_models"] = [LONG] * 2
    other = node_report("b")
    other["checks"][1]["name"] = LONG
    store.result = merged(report, other, expected=Expected(3, names=[LONG, "b", "c" * 200]))
    page = open_page(path, viewport=PHONE)
    open_all(page)
    assert width(page) <= PHONE["width"]
    page.set_viewport_size({"width": 700, "height": 990})  # A4 without its margins
    page.emulate_media(media="print")
    assert width(page) <= 700
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every((each) => each.scrollWidth <= 700)"
    )


def test_everything_is_reached_by_keyboard(open_page):
    page = open_page()
    assert causes(page)
    wanted = page.locator("main a:visible, main summary:visible")
    count, reached = wanted.count(), set()
    for _ in range(count + 20):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "[...document.querySelectorAll('main *')].indexOf(document.activeElement)"
            )
        )
    assert len(reached - {-1}) >= count
