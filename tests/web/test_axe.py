"""Accessibility by axe: no serious finding on any view, dark and light, wide and on a phone.

Mutations seen red: soft text a few steps lighter; tokens in a list instead of a list box.
"""

import pytest
from axe_playwright_python.sync_playwright import Axe

pytestmark = pytest.mark.web

VIEWS = {
    "runs": "#/runs",
    "groups": "#/groups?run=1&step=2",
    "episodes": "#/episodes",
    "group": "#/group/1/2/1",
    "advantage": "#/episode/1/2/0/4",
    "kind": "#/episode/1/2/0/4?colour=kind",
    "ratio": "#/episode/0/2/0/4?colour=ratio",
    "entropy": "#/episode/0/2/0/4?colour=entropy",
    "error": "#/episode/1/0/0/7",
    "nothing": "#/episode/9/9/9/9",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(view, width, scheme, runs_page, look):
    seen = look(runs_page, VIEWS[view], width=width, scheme=scheme)
    if "episode/" in VIEWS[view] and view != "nothing":
        seen.tab.locator("[role=option]").first.hover()
    found = Axe().run(seen.tab).response["violations"]
    serious = [
        (one["id"], node["target"], node.get("failureSummary"))
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:2]
    ]
    assert serious == []


def test_the_keys_are_a_dialog_that_axe_likes(runs_page, look):
    seen = look(runs_page, "#/runs")
    seen.press("?")
    seen.tab.get_by_role("dialog").wait_for()
    found = Axe().run(seen.tab).response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_wider_than_the_window(view, width, runs_page, look):
    seen = look(runs_page, VIEWS[view], width=width)
    assert seen.tab.evaluate("document.documentElement.scrollWidth") <= width
