"""What the pages point to is there: links and their headings, paths in backticks, names of the package, the layout.

Mutations seen red: a module of the layout under the name that it had; a folder left out of the layout; a link to a
page that is gone, and to a heading that is; a recipe's file misspelt; a row of ``PAPERS.md`` that names a function of
another file; a dotted name that cannot be imported; a public name off the page; a signature with an argument too many.
"""

import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import agentic_trl
from tests.paths import PAGES, ROOT

SOURCES = sorted((ROOT / "agentic_trl").rglob("*.py"))

ENDINGS = r"py|md|ya?ml|jsonl?|txt|toml|png|pt"

ELSEWHERE = {
    r"output_dir/.*|trajectories(-1)?/.*|_partial|outputs/.*|metrics\.json|(metrics|run)(-1)?\.jsonl?": "what a run writes",
    r"agentic_state_<rank>\.pt|reference\.pt|critic/": "files of a checkpoint",
    r"(recipes/)?results/<recipe>\.jsonl|tests/reference/<paper>\.py|<environment>/.*": "a pattern of names",
    r"frozen_lake-grpo\.jsonl": "the name of a file in recipes/results",
    r"ori_pqal\.json|train\.json|json_2\.1\.1|items_\w+\.json|\.json": "data sets of others",
    r"my_package/.*|agentic_trl/algorithms/leave_one_out\.py": "a reader's own",
    r"retrieval_server\.py|(arft|ragen)/.*": "in the repositories of papers",
}
"""Paths that are no files of the repository, and what they are."""


def name_of(path):
    return str(path.relative_to(ROOT))


def prose(page):
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def links(page):
    return [one for one in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" not in one]


def headings(page):
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in titles}


def paths(page):
    """Words in backticks that end as a file or a folder does, each with the folder of the one before it in its line."""
    for line in prose(page).splitlines():
        beside = page.parent
        for span in re.findall(r"`([^`]+)`", line):
            for word in re.findall(r"[^\s,()\"']+", span):
                path, _, name = word.partition(":")
                if not re.search(rf"(\.({ENDINGS})|/)$", path) or "://" in word or "=" in word:
                    continue
                if any(re.fullmatch(one, path) for one in ELSEWHERE):
                    continue
                found = find(path, page.parent, beside)
                yield word, found, name
                beside = found.parent if found else beside


def find(path, *places):
    for place in (ROOT, ROOT / "agentic_trl", *places):
        if (place / path).exists():
            return place / path
    return None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page):
    for link in links(page):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not heading or heading in headings(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_in_backticks_exist(page):
    for word, found, name in paths(page):
        assert found is not None, word
        if name:
            assert re.search(
                rf"^(def|class) {name}\b|^{name}\b", found.read_text(), re.MULTILINE
            ), word


def test_paths_are_found_where_there_are_some():
    assert sum(len(list(paths(page))) for page in PAGES) > 60
    assert sum(len(links(page)) for page in PAGES) > 20


def test_functions_without_a_file_stand_in_that_of_their_row():
    """In ``PAPERS.md`` a row names a file once and its further functions alone."""
    for row in (ROOT / "PAPERS.md").read_text().splitlines():
        home = None
        for span in re.findall(r"`([\w/.:]+)`", row.split("|")[4] if row.count("|") > 5 else ""):
            path, _, name = span.rpartition(":")
            home = find(path) if path else home
            assert home is not None, span
            assert re.search(rf"^def {name}\(", home.read_text(), re.MULTILINE), span


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_dotted_names_of_the_package_can_be_imported(page):
    for name in re.findall(r"`(?:[^`]*[\s\"'])?(agentic_trl(?:[.:]\w+)+)", prose(page)):
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_paths_in_docstrings_exist(source):
    for path in re.findall(rf"``([\w/.]+/[\w.]+\.(?:{ENDINGS}))``", source.read_text()):
        assert find(path, source.parent) or any(re.fullmatch(one, path) for one in ELSEWHERE), path


def section(title):
    page = (ROOT / "docs" / "design.md").read_text()
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def layout():
    """The folder of each entry of the layout, and the files and folders that its description names."""
    entries, above = [], []
    for line in section("Layout").splitlines():
        entry = re.match(r"( {4,8})(\S+)(?: +(.*))?$", line)
        if entry:
            depth = len(entry[1]) // 2 - 2
            above = [*above[:depth], entry[2]]
            entries.append((Path(*above), entry[3] or ""))
        elif line.startswith(" " * 12) and entries:
            entries[-1] = (entries[-1][0], f"{entries[-1][1]} {line.strip()}")
    return entries


def named():
    """Every path that the layout names."""
    for entry, text in layout():
        yield entry
        for word in re.findall(rf"(?:\w+/)+|\w+\.(?:{ENDINGS})\b", text):
            yield entry / word


def test_the_layout_names_what_is_there():
    assert [str(path) for path in named() if not (ROOT / path).exists()] == []


def test_every_folder_and_file_at_the_top_is_in_the_layout():
    package = ROOT / "agentic_trl"
    tops = [one for one in package.iterdir() if one.is_dir() or one.suffix == ".py"]
    rooms = [one for top in tops if top.is_dir() for one in top.iterdir() if one.is_dir()]
    there = {one.relative_to(ROOT) for one in [*tops, *rooms] if one.name[0] not in "_."}
    there -= {Path("agentic_trl/assets/tiny_policy")}
    listed = set(named())
    listed |= {one.parent for one in listed}
    assert there - listed == set()


def test_the_page_lists_the_public_names():
    listed = section("Public names").split("Pure functions")[0].split(":", 1)[1]
    assert set(re.findall(r"`(\w+)`", listed)) == set(agentic_trl.__all__)


SIGNATURES = re.findall(r"^    ([\w.]+)\((.*?)\)(?: ->.*)?$", section("Public names"), re.MULTILINE)


@pytest.mark.parametrize(("name", "arguments"), SIGNATURES, ids=[name for name, _ in SIGNATURES])
def test_a_signature_on_the_page_is_the_function_s(name, arguments):
    module, _, function = name.rpartition(".")
    found = inspect.signature(pkgutil.resolve_name(f"agentic_trl.{module}:{function}"))
    shown = re.sub(r" \[[^\]]*\]", "", arguments)  # shapes
    there = ", ".join(
        [("*, " if first else "") + written for first, written in star(found.parameters.values())]
    )
    assert shown == there


def star(parameters):
    """Each parameter as the page writes it, and whether it is the first that is given by name alone."""
    seen = False
    for one in parameters:
        keyword = one.kind is one.KEYWORD_ONLY
        default = "" if one.default is one.empty else f"={one.default!r}".replace("'", '"')
        yield keyword and not seen, f"{one.name}{default}"
        seen = seen or keyword
