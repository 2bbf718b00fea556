"""The page as a file: what stands in it, what does not, and what of a run it holds.

Mutations seen red: the records behind the last whole chunk dropped; numbers of chunks that skip; a broken line ending its file; the hash
of another script; the unfinished page left behind; names of runs not told apart; another column of the index as the line.
"""

import base64
import hashlib
import html.parser
import json
import re

import pytest

from agentic_trl.page import chunks
from agentic_trl.page.build import build_page
from agentic_trl.page.index import label_of
from agentic_trl.page.runs import find_runs
from tests.page.lines import line, turn, write_run
from tests.page.unpack import floats, parts_of
from tests.web.hostile import HOSTILE, hostile_run


def built(folder, *paths, **given):
    page = folder / "page.html"
    return page, build_page(paths, page, **given)


def test_every_line_is_on_the_page_in_its_order(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 1500)  # two lines or so
    first = [line(turn(), group=at // 2, member=at % 2, score=at / 8) for at in range(7)]
    second = [line(turn(), turn(), group=0, member=at) for at in range(3)]
    runs = write_run(tmp_path / "a", *first), write_run(tmp_path / "b", *second, step=2)
    page, made = built(tmp_path, *runs)
    index, records, data = parts_of(page)
    assert made.episodes == index["count"] == len(records) == 10
    columns = index["columns"]
    assert columns["run"] == [0] * 7 + [1] * 3
    assert columns["step"] == [4] * 7 + [2] * 3
    assert columns["line"] == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert columns["score"][:7] == [at / 8 for at in range(7)]
    assert [one["score"] for one in records] == [at / 8 for at in range(7)] + [1.0] * 3
    assert len(set(columns["chunk"])) > 3
    assert sorted(set(columns["chunk"])) == list(range(max(columns["chunk"]) + 1))
    for at, record in enumerate(records):
        place = record["turns"][0]["columns"]["advantage"]
        assert floats(data[f"chunk-{columns['chunk'][at]}"], place, 3) == [1.0, -2.0, 3.0]


def test_lines_that_cannot_be_read_are_counted_and_said(tmp_path):
    lines = [line(turn()), '{"turns": [', "[1, 2]", "", '{"group": 1}', line(turn(), member=9)]
    page, made = built(tmp_path, write_run(tmp_path / "a", *lines))
    index, records, _ = parts_of(page)
    run = index["runs"][0]
    assert [one["member"] for one in records] == [1, 9]
    assert index["columns"]["line"] == [0, 5]
    assert run["unread"] == 3
    assert [re.search(r"line (\d+)", one)[1] for one in run["problems"]] == ["2", "3", "5"]
    assert "3 lines cannot be read" in made.notes[-1]


def test_a_lone_file_opens(tmp_path):
    path = tmp_path / "episodes.jsonl"
    path.write_text(
        json.dumps(
            {
                key: one
                for key, one in line(turn(advantages=[], weights=[])).items()
                if key != "step"
            }
        )
    )
    page, made = built(tmp_path, path)
    index, _, _ = parts_of(page)
    assert (made.episodes, index["runs"][0]["name"]) == (1, "episodes.jsonl")
    assert index["columns"]["learned"] == [None]
    assert index["columns"]["flags"] == [0]


class Tags(html.parser.HTMLParser):
    """Tags of a page, by their name, with their attributes."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_nothing_of_a_run_stands_in_the_markup(tmp_path):
    page, _ = built(tmp_path, write_run(tmp_path / "plain", line(turn())))
    hostile = tmp_path / "hostile.html"
    build_page(hostile_run(tmp_path), hostile)
    tags = Tags()
    tags.feed(hostile.read_text())
    names = [tag for tag, _ in tags.found if tag != "script"]
    harmless = Tags()
    harmless.feed(page.read_text())
    assert names == [tag for tag, _ in harmless.found if tag != "script"]
    text = hostile.read_text()
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    rest = re.sub(
        r'<script type="application/octet-stream" id="[\w-]+">[A-Za-z0-9+/=]*</script>', "", text
    )
    for word in HOSTILE:
        assert word not in rest.replace(script, "")


def test_the_policy_names_the_script_and_the_style_by_their_hash(tmp_path):
    page, _ = built(tmp_path, write_run(tmp_path / "a", line(turn())))
    text = page.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    for kind, pattern in (
        ("script", r"<script>(.*?)</script>"),
        ("style", r"<style>(.*?)</style>"),
    ):
        (content,) = re.findall(pattern, text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_the_page_asks_for_nothing_from_elsewhere(tmp_path):
    page, _ = built(tmp_path, write_run(tmp_path / "a", line(turn())))
    tags = Tags()
    tags.feed(page.read_text())
    places = [
        value for _, attrs in tags.found for name, value in attrs.items() if name in ("src", "href")
    ]
    assert places == ["data:,", "#main"]
    script = re.search(r"<script>(.*?)</script>", page.read_text(), re.DOTALL)[1]
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "XMLHttp",
        "import(",
    ):
        assert word not in script, word


def test_a_page_appears_when_it_is_whole(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("the one before")
    with pytest.raises(FileNotFoundError, match="is not there"):
        build_page([tmp_path / "none"], page)
    run = write_run(tmp_path / "a", line(turn()))
    with pytest.raises(OSError, match="cannot be loaded"):
        build_page([run], page, tokenizer="no/such")
    assert page.read_text() == "the one before"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "page.html"]


def test_a_folder_without_anything_is_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no episodes and no log"):
        find_runs([tmp_path])


def test_runs_are_told_apart_by_as_much_of_their_path_as_that_takes(tmp_path):
    for name in ("x/out", "y/out", "y/other"):
        write_run(tmp_path / name, line(turn()))
    names = lambda *paths: [one.name for one in find_runs([tmp_path / path for path in paths])]  # noqa: E731
    assert names("x/out", "y/other") == ["out", "other"]
    assert names("x/out", "y/out") == ["x/out", "y/out"]
    assert names("x/out", "x/out") == ["out (1)", "out (2)"]


@pytest.mark.parametrize(
    ("task", "label"),
    [
        ('{"seed": 3, "map": ["SF", "FG"], "environment": ""}', "seed 3 · map SF FG"),
        ('{"prompt": [{"role": "user"}], "n": null}', 'prompt [{"role": "user"}]'),
        ("no json", "no json"),
        ("[1]", "[1]"),
        ("", ""),
    ],
)
def test_a_task_in_a_line(task, label):
    assert label_of(task) == label
