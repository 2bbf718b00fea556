"""What the views show, find and do, against runs whose figures are known by construction.

Mutations seen red: the flags of a filter joined by or; counts that pass over the other filters; search that looks at one chunk; groups
in the order played; the ratio shown as its logarithm; a figure of the token beside; j that passes over the filters, or goes on from
what is still shown; an episode looked up by its place on the page; no message shown
where none is known to be a response; the last point of a part drawn alone.
"""

import math
import re

import pytest

from agentic_trl.page.build import build_page
from tests.page.lines import line, turn, write_run
from tests.web.synthetic import flags_of

pytestmark = pytest.mark.web

EPISODES = 6 * 8 * 4
"""Of each run of ``runs_page``: steps, groups, members."""


def known(wanted):
    """Episodes of one run that have these flags."""
    return [at for at in range(EPISODES) if set(wanted) <= flags_of(at, at // 4 % 8)]


FLAGS = ("failed", "cut", "invalid", "rewritten", "left out", "flat group")


def counted(seen):
    return {
        flag: int(seen.tab.locator(f"[data-flag='{flag}'] .count").inner_text()) for flag in FLAGS
    }


def test_filters_count_what_is_known_to_be_there(runs_page, look):
    seen = look(runs_page, "#/episodes?run=1")
    assert counted(seen) == {flag: len(known([flag])) for flag in FLAGS}
    seen.tab.get_by_role("button", name="flat group").click()
    seen.tab.locator("[aria-pressed=true]").wait_for()
    assert counted(seen) == {flag: len(known([flag, "flat group"])) for flag in FLAGS}
    assert seen.texts(".page > .hint") == [
        f"{len(known(['flat group']))} episodes of {3 * EPISODES}"
    ]
    seen.tab.get_by_role("button", name="left out").click()
    seen.tab.locator("[data-flag='left out'][aria-pressed=true]").wait_for()
    both = known(["flat group", "left out"])
    assert seen.texts(".page > .hint") == [
        f"{len(both)} episode{'s' * (len(both) != 1)} of {3 * EPISODES}"
    ]
    assert seen.texts(".row .e1") == [f"{at // 4 % 8}.{at % 4}" for at in both]
    assert seen.tab.evaluate("document.activeElement.dataset.flag") == "left out"


def test_a_step_an_outcome_and_an_order_are_chosen(runs_page, look):
    seen = look(runs_page, "#/episodes?run=0&step=3")
    seen.tab.get_by_role("combobox", name="Order").select_option("score")
    seen.tab.wait_for_url(re.compile(r"#.*order=score"))
    marks = seen.texts(".row .e3")
    assert marks == sorted(marks, reverse=True)
    seen.tab.get_by_role("combobox", name="Outcome").select_option("failure")
    seen.tab.wait_for_url(re.compile(r"#.*outcome=failure"))
    assert set(seen.texts(".row .e3")) == {"0"}
    seen.tab.get_by_role("button", name="Step after").click()
    seen.tab.wait_for_url(re.compile(r"#.*step=4"))
    assert set(seen.texts(".row .e0")) == {"4"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Three groups of two; what was learned from them is 0.5, 2 and 0."""
    folder = tmp_path_factory.mktemp("small")
    lines = []
    for group, strength in enumerate((0.5, 2.0, 0.0)):
        for member in range(2):
            advantage = strength if member else -strength
            one = turn(
                advantages=[advantage] * 3,
                weights=[1.0] * 3,
                credit={"trajectory": advantage, "response": 0.25, "alpha": 0.75},
            )
            two = turn(
                advantages=[advantage, 2 * advantage, 0.0],
                weights=[1.0] * 3,
                energies=[None, None, 0.125],
            )
            lines.append(
                line(
                    one, two, group=group, member=member, success=bool(member), score=float(member)
                )
            )
    lines[3]["messages"][1]["content"] = "the wombat sleeps"
    ratio = {
        "logprobs": [-1.0 + math.log(2.0), -1.0, -1.0],
        "old_logprobs": [-1.0] * 3,
        "entropies": [0.5, 0.25, 0.75],
    }
    updates = [{"generation": 4, "trajectory": 3, "turns": {"0": ratio}}]
    args = {"importance_sampling_level": "token", "epsilon": 0.2, "epsilon_high": None, "seed": 0}
    log = [
        {"step": step, "success_rate": step / 4, "signal/group_advantage": 0.5}
        for step in (1, 2, 3)
    ]
    write_run(
        folder / "run",
        *lines,
        facts={"method": "planpo", "model": "tiny", "args": args},
        updates=updates,
        log=log,
    )
    page = folder / "page.html"
    build_page([folder / "run"], page)
    return page


def test_groups_are_sorted_by_what_was_learned(small, look):
    seen = look(small, "#/groups")
    assert seen.texts(".row .c1") == ["1", "0", "2"]
    # group 1: of turn one 2, 2, 2; of turn two 2, 4, 0: the mean of the six is 2
    assert seen.texts(".row .c4") == ["2", "0.5", "0"]
    assert [one.startswith("flat group") for one in seen.texts(".row .c5")] == [False, False, True]
    seen.tab.locator(".row").first.click()
    seen.shown("Group 1 of step 4")
    assert [one.split(" score")[0] for one in seen.texts(".compare thead th")][1:] == [
        "Member 0 ×",
        "Member 1 ✓",
    ]
    assert seen.texts(".compare tbody .chipped") == ["A −2", "A +2", "A −2", "A +2"]


def figures(seen):
    return {
        one.get_attribute("data-figure"): one.locator("b").inner_text()
        for one in seen.tab.locator("#inspector [data-figure]").all()
    }


def test_a_token_has_its_figures_by_pointer_and_by_keyboard(small, look):
    seen = look(small, "#/episode/0/4/0/3?colour=ratio")
    option = seen.tab.locator("#turn-1 [role=option]")
    option.nth(0).hover()
    assert figures(seen) == {
        "kind": "reasoning", "advantage": "+2", "weight": "1", "ratio": "2", "difference": "−0.5",
        "log-probability": "−0.5", "entropy": "0.5", "clipped": "yes",
    }  # fmt: skip
    option.nth(1).hover()
    assert figures(seen)["ratio"] == "1"
    assert figures(seen)["difference"] == "−0.75"
    seen.tab.locator("#turn-1 .tokens").focus()
    seen.press("ArrowRight", "ArrowRight")
    assert figures(seen)["kind"] == "action"
    assert figures(seen)["log-probability"] == "−1"
    assert "entropy 0.75" in seen.tab.locator("#status").inner_text()
    assert seen.tab.locator("#turn-1 .tokens").get_attribute("aria-activedescendant") == "token-0"
    # The ratio of the first token is the largest, the others are in the middle; of 2 > 1.2 nothing is learned.
    assert ["d5" in one for one in classes(option)] == [True, False, False]
    assert ["cut-off" in one for one in classes(option)] == [True, False, False]
    seen.tab.locator("#turn-2 [role=option]").nth(2).hover()
    assert figures(seen)["energy"] == "0.125"
    seen.tab.locator("#turn-2 [role=option]").nth(0).hover()
    assert figures(seen)["energy"] == "–"


def classes(option):
    return [one.get_attribute("class").split() for one in option.all()]


def test_colours_follow_the_figure_that_is_chosen(small, look):
    seen = look(small, "#/episode/0/4/0/3")
    option = seen.tab.locator("[role=option]")
    option.nth(5).wait_for()
    # Advantages 2, 2, 2 and 2, 4, 0 of at most 4.
    assert [one[1] for one in classes(option)] == ["d3", "d3", "d3", "d3", "d5", "d0"]
    seen.press("1")
    assert [one[1] for one in classes(option)] == ["k1", "k1", "k2"] * 2
    assert seen.texts(".legend-scale") == ["kind: reasoning action other"]
    seen.tab.get_by_text("energy", exact=True).click()
    assert [one[1] for one in classes(option)] == ["unknown"] * 5 + ["s8"]
    assert seen.texts(".legend-scale .end") == ["0", "0.125"]


def test_the_parts_of_the_credit_stand_with_their_turn(small, runs_page, look):
    seen = look(small, "#/episode/0/4/0/3")
    parts = seen.texts("#turn-1 [data-part]")
    assert parts[:3] == ["of the trajectory +2", "of the response +0.25", "alpha 0.75"]
    # exp((log 2 + 0 + 0) / 3)
    assert parts[3] == "mean ratio of tokens 1.26, 1 of 3 tokens clipped"
    assert seen.texts("#turn-2 [data-part]") == []
    critic = look(runs_page, "#/episode/0/1/0/0")
    names = [
        one.get_attribute("data-part") for one in critic.tab.locator("#turn-1 [data-part]").all()
    ]
    assert names == ["value", "delta", "return", "advantage", "units"]


def test_search_finds_the_one_episode_and_no_other(small, look):
    seen = look(small, "#/runs")
    seen.press("/")
    seen.tab.keyboard.type("WOMBAT")
    seen.shown("Episodes")
    seen.tab.locator(".searching", has_text="1 episode").wait_for()
    assert seen.texts(".row .e1") == ["1.1"]
    seen.tab.get_by_role("button", name="Clear search").click()
    seen.tab.locator(".page > .hint", has_text="6 episodes of 6").wait_for()


def test_search_looks_at_every_chunk(runs_page, look):
    seen = look(runs_page, "#/episodes?query=the+house+has+no+such+room")
    seen.tab.locator(".searching button").wait_for()
    seen.tab.locator(".searching progress").wait_for(state="detached")
    assert seen.texts(".searching span")[0].endswith(f": {3 * len(known(['failed']))} episodes")
    assert seen.texts(".row .e2") == ["× environment_error"] * 3 * len(known(["failed"]))


def test_a_walk_by_keys_alone(small, look):
    seen = look(small, "#/groups")
    seen.press("j", "j", "k", "Enter")
    seen.shown("Group 1 of step 4")
    seen.press("j")
    seen.shown("Group 0 of step 4")
    seen.press("u")
    seen.shown("Groups")
    seen.go("#/episodes?outcome=success")
    seen.press("ArrowDown", "ArrowDown", "Enter")
    seen.shown("Step 4, group 1, member 1")
    seen.press("n", "n")
    assert seen.address == "#/episode/0/4/0/3?turn=2"
    assert seen.tab.evaluate("document.activeElement.id") == "turn-2"
    seen.press("p")
    assert seen.address == "#/episode/0/4/0/3?turn=1"
    seen.press("j")
    seen.shown("Step 4, group 2, member 1")
    seen.press("k", "k")
    seen.shown("Step 4, group 0, member 1")
    seen.press("g")
    seen.shown("Group 0 of step 4")
    seen.press("?")
    seen.tab.get_by_role("dialog").wait_for()
    seen.press("Escape")
    assert seen.tab.locator("dialog[open]").count() == 0
    before = seen.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    seen.press("t")
    assert seen.tab.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_an_address_opens_its_episode_and_its_turn(runs_page, look):
    seen = look(runs_page, "#/episode/2/5/0/9?turn=3&colour=kind")
    seen.shown("Step 5, group 2, member 1")
    assert "planpo-1" in seen.texts(".crumbs")[0]
    assert seen.tab.evaluate("document.activeElement.id") == "turn-3"
    assert seen.tab.locator("input[name=colour]:checked").get_attribute("value") == "kind"
    assert (
        seen.tab.title().startswith("× Step 5, group 2")
        or "Step 5, group 2, member 1" in seen.tab.title()
    )


def test_a_turn_has_its_observation_and_its_response(small, look):
    seen = look(small, "#/episode/0/4/0/3")
    assert seen.texts("#turn-1 .observed .said") == ["rules", "the wombat sleeps"]
    assert seen.texts("#turn-2 .observed .said") == ["user 1"]
    assert seen.texts(".turn:not([id]) .said") == ["the end"]
    assert seen.texts("#turn-1 .kind") == ["reasoning", "action"]


def test_every_message_is_shown_where_the_file_does_not_say_whose_it_is(tmp_path, look):
    episode = line(turn(), turn(conversation=1))
    run = write_run(tmp_path / "run", episode, line(turn(message=2), member=2))
    build_page([run], tmp_path / "page.html")
    seen = look(tmp_path / "page.html", "#/episode/0/4/0/0")
    assert seen.texts(".turn:not([id]) h2") == ["Messages"]
    assert seen.texts(".turn:not([id]) .said") == [one["content"] for one in episode["messages"]]
    assert "listed below" in seen.texts("#turn-1 .observed .hint")[0]
    seen.go("#/episode/0/4/0/1")
    seen.shown("Step 4, group 2, member 2")
    assert seen.texts("#turn-1 .observed .said") == ["rules", "user 0"]
    assert seen.texts(".turn:not([id]) h2") == ["After the last response"]


def test_curves_say_their_figures(small, runs_page, look):
    seen = look(small, "#/runs")
    chart = seen.tab.get_by_role("slider", name="Success rate over steps")
    assert chart.get_attribute("aria-valuetext") == "step 3: success_rate 0.75"
    chart.focus()
    seen.press("ArrowLeft")
    assert chart.get_attribute("aria-valuetext") == "step 2: success_rate 0.5"
    both = look(runs_page, "#/runs")
    readout = both.texts(".panel .readout")[0]
    assert readout.startswith("step 6 steppo 0.")
    assert "planpo-0 (2 seeds) 0." in readout
    assert re.search(r"\(2 seeds\) 0\.\d+ \(0\.\d+ to 1\.\d+\)", readout)
    table = dict(
        one.split("\t")[:2] for one in both.tab.locator("section tbody tr").all_inner_texts()
    )
    assert table["method"] == "steppo"


def test_a_long_log_is_drawn_in_part_with_its_extremes(tmp_path, look):
    steps = 150_000
    values = {1: 0.75, 77: -3.0, 123_456: 9.0, steps: 0.25}
    log = [{"step": one, "grad_norm": values.get(one, 0.5)} for one in range(1, steps + 1)]
    build_page([write_run(tmp_path / "run", line(turn()), log=log)], tmp_path / "page.html")
    seen = look(tmp_path / "page.html", "#/runs")
    chart = seen.tab.locator(".panel", has_text="Gradient norm").first
    chart.locator("polyline").wait_for()
    points = chart.locator("polyline").get_attribute("points").split()
    heights = [float(one.split(",")[1]) for one in points]
    assert len(points) <= 2000
    # From 10 at the highest to 164 at the lowest: 0.75, 0.5 and 0.25 lie in 12ths of 3, from -3.
    at = {value: 164 - (value + 3) / 12 * 154 for value in (0.75, 0.25, -3.0, 9.0)}
    assert heights[0] == pytest.approx(at[0.75])
    assert heights[-1] == pytest.approx(at[0.25])
    assert max(heights) == pytest.approx(at[-3.0])
    assert min(heights) == pytest.approx(at[9.0])
    assert "2,000 of a line at most" in chart.locator(".hint").inner_text()
    slider = chart.get_by_role("slider")
    assert slider.get_attribute("aria-valuetext") == f"step {steps}: grad_norm 0.25"
    slider.focus()
    seen.press("Home")
    assert slider.get_attribute("aria-valuetext") == "step 1: grad_norm 0.75"


def test_a_run_without_a_log_opens_with_its_groups(tmp_path, look):
    run = write_run(tmp_path / "run", line(turn()))
    build_page([run], tmp_path / "page.html")
    seen = look(tmp_path / "page.html")
    seen.shown("Groups")
    seen.go("#/runs")
    assert "no log" in seen.tab.locator("main").inner_text()
    seen.go("#/episode/0/4/0/0")
    assert "token ids are shown" in seen.texts(".note")[0]
    assert seen.texts("[role=option]") == ["⟨7⟩", "⟨8⟩", "⟨9⟩"]


def test_lines_that_cannot_be_read_are_listed(tmp_path, look):
    run = write_run(tmp_path / "run", line(turn()), '{"turns": <b>', line(turn(), member=2))
    build_page([run], tmp_path / "page.html")
    seen = look(tmp_path / "page.html", "#/runs")
    assert "run: 1 line cannot be read; all others are shown" in seen.texts("summary")
    seen.tab.locator("summary", has_text="cannot be read").click()
    assert "step_000004_rank_0.jsonl, line 2" in seen.texts(".note li")[0]
    assert "<b>" in seen.texts(".note li")[0]
