"""``agentic_trl view``: where the page goes, what is said, what is served and to whom.

Mutations seen red: the page of a lone file looked for in it; a folder as ``--output`` raising raw; notes not printed; any path of the
server answered; a name of another host answered; a host without a port not; a file written over that is no page.
"""

import http.client
import json
import os
import signal
import subprocess
import sys

import pytest

from agentic_trl.__main__ import main
from tests.page.lines import line, turn, write_run
from tests.page.unpack import parts_of
from tests.paths import ROOT


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path / "run", line(turn()), line(turn(), member=2))


def test_the_page_lies_in_the_folder_of_its_run(run, capsys):
    assert main(["view", "run"]) == 0
    said = capsys.readouterr().out
    assert "run/view.html: 2 episodes, 0." in said.splitlines()[-1]
    assert "note: run: No tokenizer was found" in said
    assert parts_of(run / "view.html")[0]["count"] == 2


def test_the_page_of_several_lies_here_and_that_of_a_file_beside_it(run, tmp_path, capsys):
    write_run(tmp_path / "other", line(turn()))
    assert main(["view", "run", "other"]) == 0
    assert parts_of(tmp_path / "view.html")[0]["count"] == 3
    lone = tmp_path / "lone.jsonl"
    lone.write_text(json.dumps(line(turn())))
    assert main(["view", "lone.jsonl"]) == 0
    assert parts_of(tmp_path / "lone.html")[0]["count"] == 1
    assert json.loads(lone.read_text())["member"] == 1
    assert main(["view", "run", "--output", "new/folder/page.html", "--tokenizer", "tiny"]) == 0
    assert (
        parts_of(tmp_path / "new" / "folder" / "page.html")[0]["runs"][0]["tokens"]["missing"]
        is False
    )
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere"], "nowhere is not there, expected the folder of a run"),
        (["run", "nowhere"], "nowhere is not there"),
        (["empty"], "holds no episodes and no log"),
        (["run", "--output", "empty"], "is a folder, expected a file"),
        (["run", "--output", "run/run.json/page.html"], "run.json"),
        (["run", "--tokenizer", "no/such"], "'no/such' cannot be loaded"),
    ],
)
def test_what_is_wrong_is_a_line(words, expected, run, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (run / "run.json").write_text("{}")
    assert main(["view", *words]) == 2
    said = capsys.readouterr()
    lines = [one for one in said.err.splitlines() if one.startswith("agentic_trl view: ")]
    assert len(lines) == 1
    assert expected in lines[0]
    assert "Traceback" not in said.err
    assert not list(tmp_path.glob("**/*.html*"))


@pytest.mark.parametrize("text", ["a note", "<!doctype html>\n<title>another</title>", "\xff\x00"])
def test_a_file_that_is_no_page_is_not_written_over(text, run, tmp_path, capsys):
    (tmp_path / "mine").write_text(text)
    assert main(["view", "run", "--output", "mine"]) == 2
    assert "is no page of agentic_trl view" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == text
    episodes = run / "trajectories" / "step_000004_rank_0.jsonl"
    before = episodes.read_text()
    assert main(["view", "run", "--output", str(episodes)]) == 2
    assert episodes.read_text() == before
    capsys.readouterr()


def test_a_page_and_an_empty_file_are_written_over(run, tmp_path, capsys):
    (tmp_path / "page").touch()
    for _ in range(2):
        assert main(["view", "run", "--output", "page"]) == 0
        assert parts_of(tmp_path / "page")[0]["count"] == 2
    capsys.readouterr()


@pytest.mark.parametrize("port", ["-1", "65536", "x", "1.5"])
def test_a_port_is_a_number(port, run, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["view", "run", "--serve", f"--port={port}"])
    assert stopped.value.code == 2
    assert "expected a port, 0 to 65535" in capsys.readouterr().err


def ask(port, path, host):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.getheader("Content-Type"), body


def test_the_page_alone_is_served_to_this_machine(run):
    command = [sys.executable, "-m", "agentic_trl", "view", "run", "--serve"]
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=run.parent, stdout=subprocess.PIPE, text=True, env=given
    ) as server:
        try:
            address = next(one for one in server.stdout if one.startswith("http://"))
            port = int(address.strip().rstrip("/").rpartition(":")[2])
            status, kind, body = ask(port, "/", f"127.0.0.1:{port}")
            assert (status, kind) == (200, "text/html; charset=utf-8")
            assert body == (run / "view.html").read_bytes()
            assert ask(port, "/", f"localhost:{port}")[0] == 200
            assert ask(port, "/", "localhost")[0] == ask(port, "/", "127.0.0.1")[0] == 200
            for host in (f"elsewhere.invalid:{port}", "elsewhere.invalid", "", ":80"):
                assert ask(port, "/", host)[0] == 404
            for path in ("/view.html", "/run.json", "/../run.json", "//etc/passwd"):
                assert ask(port, path, f"127.0.0.1:{port}")[0] == 404
            server.send_signal(signal.SIGINT)
            assert "Ended." in server.stdout.read()
            assert server.wait(timeout=60) == 0
        finally:
            server.kill()
