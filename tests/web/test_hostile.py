"""What environments, policies, tasks, errors and names inject is text on every view.

Mutations seen red: the policy of the page taken out (what slips through runs); hidden characters passed on; figures looked up in an
object that knows `constructor`.
"""

import pytest

from agentic_trl.page.build import build_page
from tests.web.hostile import HOSTILE, hostile_run

pytestmark = pytest.mark.web

VIEWS = ("#/runs", "#/groups", "#/episodes", "#/group/0/4/2", "#/group/1/0/2")
VIEWS += tuple(f"#/episode/0/4/0/{at}" for at in range(len(HOSTILE)))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    built = folder / "page.html"
    build_page(hostile_run(folder), built)
    return built


STATE = "[Object.keys(window).sort().join(), Object.keys(Object.prototype).join(), typeof window.injected]"


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_that_is_injected_runs(view, page, look):
    seen = look(page)
    before = seen.tab.evaluate(STATE)
    seen.go(view)
    for summary in seen.tab.locator("summary").all():
        if summary.is_visible():
            summary.click()
    for at in range(min(6, seen.tab.locator("[role=option]").count())):
        seen.tab.locator("[role=option]").nth(at).hover()
    assert seen.tab.evaluate(STATE) == before
    assert (
        seen.tab.evaluate(
            "document.querySelectorAll('main :is(img, iframe, script, style, base, object, form[action])').length"
        )
        == 0
    )
    hrefs = seen.tab.evaluate(
        "[...document.querySelectorAll('a')].map((one) => one.getAttribute('href'))"
    )
    assert all(one.startswith("#") for one in hrefs)


def test_the_words_are_all_there_and_hidden_characters_are_shown(page, look):
    seen = look(page, "#/episode/0/4/0/15")
    words = seen.tab.locator("main").inner_text()
    for word in HOSTILE[:-1]:
        assert " ".join(word.split()) in " ".join(words.split())
    for shown in ("‹U+202E›gnp.exe‹U+2066›", "␛[31mred␇", "␀", "‹U+200B›"):
        assert shown in words
    assert "\u202e" not in words
    assert "\u202e" not in seen.tab.title()


def test_a_name_of_a_run_is_searched_and_chosen_as_text(page, look):
    seen = look(page, "#/episodes")
    seen.tab.get_by_role("combobox", name="Run").select_option("1")
    seen.tab.fill("#query", HOSTILE[1])
    seen.tab.locator(".searching", has_text="32 episodes").wait_for()
    assert seen.texts(".page > .hint") == ["16 episodes of 32"]
    assert seen.tab.evaluate("typeof window.injected") == "undefined"


def test_what_slips_through_does_not_run_either(page, look):
    seen = look(page)
    seen.tab.evaluate(
        """() => {
            document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.injected = 1"><a id=slip href="javascript:window.injected = 2">x</a>');
            const made = document.createElement('script');
            made.textContent = 'window.injected = 3';
            document.body.append(made);
        }"""
    )
    seen.tab.evaluate("document.getElementById('slip').click()")
    seen.tab.evaluate("() => new Promise((go) => setTimeout(go, 200))")
    assert seen.tab.evaluate("typeof window.injected") == "undefined"
    assert seen.faults  # the browser says what it has refused
    seen.faults.clear()
    seen.asked.clear()
