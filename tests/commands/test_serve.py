"""``agentic_trl serve`` as a process: it says where it is, answers, and Ctrl-C ends it; wrong flags are a line and status 2.

Mutations seen red: Ctrl-C let through.
"""

import os
import re
import signal
import socket
import subprocess
import sys

import openai
import pytest

from agentic_trl.__main__ import main
from tests.paths import ROOT

QUICK = ["--port", "0", "--no-engine_probe", "--max_tokens_per_turn", "5"]


def started(*flags):
    """The process, and what it said until it was ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "agentic_trl", "serve", *QUICK, *flags],
        cwd=ROOT,
        env={**os.environ, "AGENTIC_TRL_API_KEY": "sk-secret"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = ""
    while "Ctrl-C ends it." not in said:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        said += line
    return process, said


@pytest.mark.trainer
@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(signal.SIGINT, id="SIGINT"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_the_command_answers_until_it_is_interrupted(stop):
    process, said = started()
    try:
        (url,) = re.findall(r"base_url  (\S+)", said)
        assert "sk-secret" not in said
        assert (
            f'curl {url}/chat/completions -H "authorization: Bearer $AGENTIC_TRL_API_KEY"' in said
        )
        client = openai.OpenAI(base_url=url, api_key="sk-secret", max_retries=0)
        assert [one.id for one in client.models.list()] == ["tiny"]
        hello = [{"role": "user", "content": "Hello"}]
        answer = client.chat.completions.create(model="tiny", messages=hello)
        assert answer.usage.completion_tokens == 5
        assert answer.choices[0].finish_reason == "length"
    finally:
        process.send_signal(stop)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert rest == "Ended.\n"
    assert "Traceback" not in errors


FLAGS = [
    (["--port", "70000"], "port: got 70000, expected a port, 0 to 65535"),
    (["--batch_size", "0"], "batch_size: got 0, expected at least 1"),
    (["--temperature", "-1"], "temperature: got -1"),
    (["--max_tokens_per_turn", "0"], "max_tokens_per_turn: got 0"),
    (["--api_key", "a b"], "api_key: got 'a b', expected visible ASCII characters"),
    (["--api_key", ""], "api_key: got '', expected visible ASCII characters"),
    (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1:0"),
    (["--model", "no/such/model"], "no/such/model"),
]


@pytest.mark.trainer
@pytest.mark.parametrize(("flags", "expected"), FLAGS, ids=[one[0][0] for one in FLAGS])
def test_a_wrong_flag_is_a_line(flags, expected, capsys):
    assert main(["serve", *QUICK, *flags]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert "Traceback" not in said


@pytest.mark.trainer
def test_a_port_that_is_taken_is_said_before_a_model_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--port", port, "--model", "no/such/model"]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.trainer
def test_json_of_a_flag_is_an_object(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--template_kwargs", "[1]"])
    assert "got '[1]', expected a JSON object" in capsys.readouterr().err
