"""10 000 episodes and 200 MB of trajectories: built in 60 s, open in 3 s, and fluid."""

import time

import pytest

from agentic_trl.page.build import build_page
from tests.web.synthetic import write_run

pytestmark = pytest.mark.web

MEGABYTE = 1_000_000
SWITCH = """async () => {
    const began = performance.now();
    const before = document.querySelector('main h1').textContent;
    walk.by(1);
    const frame = () => new Promise(requestAnimationFrame);
    while (document.querySelector('main h1').textContent === before || !document.querySelector('.tok[class*=" d"]')) await frame();
    await frame();
    return performance.now() - began;
}"""
SEARCH = """async (query) => {
    location.hash = `#/episodes?query=${query}`;
    let last = performance.now(), longest = 0;
    while (searched.query !== query || searched.done < data.first.length) {
        await new Promise(requestAnimationFrame);
        longest = Math.max(longest, performance.now() - last);
        last = performance.now();
    }
    return longest;
}"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    count = write_run(
        folder / "run", steps=40, groups=32, members=8, turns=7, tokens=26, update_every=8
    )
    size = sum(one.stat().st_size for one in (folder / "run" / "trajectories").rglob("*.jsonl"))
    assert count >= 10_000
    assert size >= 200 * MEGABYTE
    began, busy = time.perf_counter(), time.process_time()
    built = build_page([folder / "run"], folder / "view.html")
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    print(
        f"\n{count} episodes, {size / MEGABYTE:.0f} MB: built in {seconds:.1f} s, {busy:.1f} s its own, {built.size / MEGABYTE:.0f} MB"
    )
    assert busy <= 60  # what others take of a shared machine is not the page's
    return folder / "view.html"


@pytest.mark.parametrize("view", ["#/groups", "#/episodes", "#/episode/0/20/0/100"])
def test_it_opens_in_3_seconds(view, large, look):
    began = time.perf_counter()
    seen = look(large, view)
    seen.tab.locator(".row, .turn .tok").first.wait_for()
    seconds = time.perf_counter() - began
    print(f"\n{view}: shown in {seconds:.2f} s, with a new tab")
    assert seconds <= 3


def test_it_stays_fluid(large, look):
    seen = look(large, "#/episode/0/20/0/100")
    took = sorted(seen.tab.evaluate(SWITCH) for _ in range(15))
    print(f"\nto the next episode: {took[7]:.0f} ms, at most {took[-1]:.0f} ms")
    assert took[7] <= 100
    longest = seen.tab.evaluate(SEARCH, "wombat")
    print(f"longest frame while 200 MB are searched: {longest:.0f} ms")
    assert longest <= 250
