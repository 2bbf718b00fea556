"""A browser for the tests and the screenshots: the machine's own Chromium."""

import os
import shutil
from contextlib import contextmanager

from playwright.sync_api import sync_playwright

CHROMIUM = "AGENTIC_TRL_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium():
    """Path of the browser."""
    found = os.environ.get(CHROMIUM) or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise FileNotFoundError(
            f"No Chromium is on the PATH ({', '.join(NAMES)}). Install one, or name it: {CHROMIUM}=/path/to/chromium"
        )
    return found


@contextmanager
def browser_running():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A tab, and all that it must not do."""

    def __init__(self, browser, page, address="", width=1280, height=800, scheme="light"):
        size = {"width": width, "height": height}
        self.context = browser.new_context(viewport=size, color_scheme=scheme)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(20_000)
        self.faults, self.asked = [], []
        self.tab.on(
            "dialog",
            lambda dialog: (self.faults.append(f"dialog {dialog.message}"), dialog.dismiss()),
        )
        self.tab.on("pageerror", lambda error: self.faults.append(f"error {error}"))
        self.tab.on(
            "console",
            lambda said: said.type in ("error", "warning") and self.faults.append(said.text),
        )
        self.tab.on("popup", lambda _: self.faults.append("a window"))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.url = page.resolve().as_uri()
        self.go(address)

    def go(self, address):
        """Open a view and wait for it."""
        self.tab.goto(self.url + address)
        self.shown()

    def shown(self, heading=""):
        """Wait for a view, the one with a heading."""
        self.tab.locator("main h1, main .none", has_text=heading).first.wait_for()

    def press(self, *keys):
        for key in keys:
            self.tab.keyboard.press(key)

    @property
    def address(self):
        return self.tab.evaluate("location.hash")

    def texts(self, selector):
        return [" ".join(one.split()) for one in self.tab.locator(selector).all_inner_texts()]

    def well(self):
        """Nothing has gone wrong, and nothing but the file was asked for."""
        assert self.faults == [], self.faults
        assert {url.split("#")[0] for url in self.asked} <= {self.url, "data:,"}

    def close(self):
        self.context.close()
