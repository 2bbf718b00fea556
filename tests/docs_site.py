"""The built documentation, looked at as a browser does: dead links and anchors, other hosts, pages that nothing leads to.

python -m tests.docs_site docs/_build/html        prints what is wrong and exits with 1
"""

import argparse
import posixpath
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "link": ["href"],
    "script": ["src"],
    "iframe": ["src"],
    "embed": ["src"],
    "video": ["src", "poster"],
    "audio": ["src"],
    "img": ["src", "srcset"],
    "source": ["src", "srcset"],
    "object": ["data"],
    "image": ["href", "xlink:href"],
    "use": ["href", "xlink:href"],
}
"""Elements that a browser loads from somewhere, and the attributes that say from where."""
FOREIGN = re.compile(r"(?:url\(|@import\s)\s*[\"']?((?:https?:)?//[^\"')\s]+)")
"""What a style loads from another host."""
INDEX = "docs/index.html"
NO_PAGES = {"genindex.html", "py-modindex.html", "search.html"}
"""Pages of Sphinx's own, which are reached by its search and its indices."""


class Page(HTMLParser):
    """What a page links to, loads and defines."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), [], []
        self.style, self.styles = False, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        for name in LOADED.get(tag, ()):
            places = (given.get(name) or "").split(",") if name == "srcset" else [given.get(name)]
            self.loaded += [one.split()[0] for one in places if one and one.strip()]
        self.styles.append(given.get("style") or "")
        self.style = tag == "style"

    def handle_data(self, data):
        if self.style:
            self.styles.append(data)

    def handle_endtag(self, tag):
        self.style = False


def read(folder):
    """The pages of a site by their names."""
    return {
        path.relative_to(folder).as_posix(): Page(path.read_text(encoding="utf-8"))
        for path in sorted(Path(folder).rglob("*.html"))
        if "_static" not in path.relative_to(folder).parts
    }


def target(name, link):
    """The file and the anchor that a link on a page leads to; ``None`` for another host."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = posixpath.join(posixpath.dirname(name), unquote(parts.path)) if parts.path else name
    return posixpath.normpath(path), unquote(parts.fragment)


def faults(folder):
    """What is wrong with a site, a sentence each."""
    pages = read(folder)
    if INDEX not in pages:
        return [f"{folder}: there is no {INDEX}"]
    found = []
    for name, page in pages.items():
        found += [fault for link in page.links for fault in dead(folder, pages, name, link)]
        found += [fault for source in page.loaded for fault in missing(folder, name, source)]
        foreign = [one for style in page.styles for one in FOREIGN.findall(style)]
        found += [f"{name}: a style loads {one} from another host" for one in foreign]
    for style in sorted(Path(folder).rglob("*.css")):
        found += [
            f"{style.name}: {one} is of another host" for one in FOREIGN.findall(style.read_text())
        ]
    apart = set(pages) - reached(pages) - NO_PAGES
    return found + [f"{name}: no link leads to it from {INDEX}" for name in sorted(apart)]


def dead(folder, pages, name, link):
    """What is wrong with a link on a page; those to other hosts are not looked at."""
    led = target(name, link)
    if led and not Path(folder, led[0]).is_file():
        yield f"{name}: {link} leads to no file"
    elif led and led[1] and led[0] in pages and led[1] not in pages[led[0]].anchors:
        yield f"{name}: {link} leads to no anchor"


def missing(folder, name, source):
    """What is wrong with something that a browser loads for a page."""
    led = target(name, source)
    if led is None and not source.startswith("data:"):
        yield f"{name}: {source} is loaded from another host"
    elif led and not Path(folder, led[0]).is_file():
        yield f"{name}: {source} is not there to be loaded"


def reached(pages):
    """The pages to which links lead from the index."""
    seen, waiting = set(), [INDEX]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        led = [target(name, link) for link in pages[name].links]
        waiting += [one[0] for one in led if one and one[0] in pages]
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    found = faults(parser.parse_args().folder)
    print("\n".join(found) or "no dead links, nothing from other hosts, every page is reached")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
