"""Pictures of docs/view.md.

python -m tests.web.screenshots [--runs RUN ...]      in the environment of ``make test-web``
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

from agentic_trl.page.build import build_page
from tests.paths import ROOT
from tests.web.browsing import Watched, browser_running
from tests.web.synthetic import write_run

FOLDER = ROOT / "docs" / "images"
METHODS = (
    ("planpo-seed0", "planpo", 0),
    ("planpo-seed1", "planpo", 1),
    ("planpo-seed2", "planpo", 2),
    ("steppo", "steppo", 3),
)
VIEWS = {
    "runs": ("#/runs", {"width": 1100, "height": 900}),
    "groups": ("#/groups?run=0&step=12", {"width": 1100, "height": 560}),
    "group": ("#/group/0/12/1", {"width": 1100, "height": 640}),
    "episode": (
        "#/episode/3/12/0/6?colour=ratio",
        {"width": 1100, "height": 760, "scheme": "dark"},
    ),
    "phone": ("#/episode/0/12/0/6", {"width": 390, "height": 800}),
}


def page_in(folder):
    for name, method, seed in METHODS:
        write_run(folder / name, method=method, seed=seed, steps=30, groups=8, members=4)
    page = folder.parent / "view.html"
    with contextlib.chdir(folder.parent):
        build_page([Path(folder.name, name) for name, _, _ in METHODS], page)
    return page


def take(page):
    FOLDER.mkdir(exist_ok=True)
    with browser_running() as browser:
        for name, (address, given) in VIEWS.items():
            seen = Watched(browser, page, address, **given)
            if "episode" in address:
                seen.tab.locator("#turn-1 [role=option]").nth(6).hover()
            seen.tab.wait_for_load_state("load")
            path = FOLDER / f"view_{name}.png"
            seen.tab.screenshot(path=path)
            seen.well()
            seen.close()
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", nargs="+", type=Path, help="runs of your own; unset makes some")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.runs:
            build_page(given.runs, Path(folder) / "view.html")
            take(Path(folder) / "view.html")
        else:
            take(page_in(Path(folder) / "outputs"))
