"""These tests need a browser and what ``make test-web`` installs; without ``-m web`` they are left out."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("playwright") else ["test_*.py", "screenshots.py"]


def pytest_collection_modifyitems(config, items):
    if "web" not in config.getoption("-m").replace("not web", ""):
        left_out = [item for item in items if item.get_closest_marker("web")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def browser():
    from tests.web.browsing import browser_running

    with browser_running() as running:
        yield running


@pytest.fixture
def look(browser):
    """Opens a page; at the end of the test nothing may have gone wrong on it."""
    from tests.web.browsing import Watched

    opened = []

    def open_page(page, address="", **given):
        opened.append(Watched(browser, page, address, **given))
        return opened[-1]

    yield open_page
    for one in opened:
        one.well()
        one.close()


@pytest.fixture(scope="session")
def runs_page(tmp_path_factory):
    """A page of a method with a critic, and of two seeds of one without."""
    from agentic_trl.page.build import build_page
    from tests.web.synthetic import write_run

    folder = tmp_path_factory.mktemp("runs")
    for name, method, seed in (
        ("steppo", "steppo", 0),
        ("planpo-0", "planpo", 0),
        ("planpo-1", "planpo", 1),
    ):
        write_run(folder / name, method=method, seed=seed, steps=6, groups=8, members=4)
    page = folder / "view.html"
    build_page([folder / name for name in ("steppo", "planpo-0", "planpo-1")], page)
    return page
