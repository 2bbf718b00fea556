"""An agent that is a program: what it is told, how it is judged, and that nothing of it is left.

Mutations seen red: output that is kept whole; a program that is left running, or what it forked; an exit code that is
ignored; the variables of a proxy left as they are; a shell that reads the command; what a program says read to its first line.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from agentic_trl import AgentEnv, make_env
from agentic_trl.environments.agents import command as command_module
from tests.environments.agents.agents import PRELUDE, YES, play

MEGABYTE = 2**20


@pytest.fixture
def agent(tmp_path):
    """Makes the environment of a program."""
    made = []

    def make(code, *arguments, **settings):
        path = tmp_path / "solve.py"
        path.write_text(PRELUDE + code)
        made.append(AgentEnv(command=["python", str(path), *arguments], **settings)())
        return made[-1]

    yield make
    for one in made:
        one.close()


def alive(path):
    """Processes that run a program of this test."""
    running = psutil.process_iter(["cmdline"])
    return [one.pid for one in running if str(path) in " ".join(one.info["cmdline"] or ())]


def gone(path):
    end = time.monotonic() + 10
    while alive(path) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(path)


def test_what_a_program_is_told(agent, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    names = (
        "OPENAI_BASE_URL OPENAI_API_KEY ANTHROPIC_BASE_URL ANTHROPIC_API_KEY AGENT_TASK AGENT_MODEL"
    )
    code = f"call(json.dumps({{name: os.environ[name] for name in '{names} NO_PROXY MINE'.split()}}))\nprint(1)"
    env = agent(code, variables={"MINE": "$HOME; ls"})
    text = env.reset(seed=4, options={"name": "ü", "noise_seed": 1})[1]["request"]["messages"][0]
    told = json.loads(text["content"])
    assert told["OPENAI_BASE_URL"] == told["ANTHROPIC_BASE_URL"] + "/v1"
    assert told["OPENAI_API_KEY"] == told["ANTHROPIC_API_KEY"]
    assert json.loads(told["AGENT_TASK"]) == {"name": "ü", "seed": 4}
    assert (told["AGENT_MODEL"], told["MINE"]) == ("policy", "$HOME; ls")
    assert told["NO_PROXY"].split(",")[:2] == ["example.org", "127.0.0.1"]
    assert env.step(YES)[1:3] == (1.0, True)


def test_no_shell_reads_the_command(agent):
    env = agent("call(sys.argv[1])\nprint(0)", "$(echo x); 'a b'")
    assert env.reset()[1]["request"]["messages"][0]["content"] == "$(echo x); 'a b'"


def test_python_is_this_interpreter_and_the_folder_is_the_given_one(agent, tmp_path):
    env = agent("call(sys.executable + ' ' + os.getcwd())\nprint(0)", folder=str(tmp_path))
    text = env.reset()[1]["request"]["messages"][0]["content"]
    assert text == f"{sys.executable} {tmp_path}"


@pytest.mark.parametrize(
    ("code", "rewards", "info"),
    [
        ("print('log'); print(0.5)", [0.5], {}),
        ("print(0.5, end='')", [0.5], {}),
        ("print(0.5); print(); print('  ')", [0.5], {}),
        (
            """print('{"score": 1, "success": true, "form": 0.5}')""",
            [1],
            {"success": True, "rewards": {"form": 0.5}},
        ),
        (
            "post('/sessions/rewards', {'score': 0.75, 'success': False}); print('bye')",
            [0.75],
            {"success": False},
        ),
        ("post('/sessions/rewards', {'reward': 0.25}); print('bye')", [0.25], {}),
        ("post('/sessions/rewards', {'reward': 0.25}); call(); print('bye')", [0.25, 0.0], {}),
        ("sys.stderr.write('warning'); print(1)", [1], {}),
        ("os.close(1); post('/sessions/rewards', {'score': 1})", [1], {}),
    ],
)
def test_how_a_program_is_judged(agent, code, rewards, info):
    found, infos = play(agent("call()\n" + code))
    assert (found, infos[-1]) == (rewards, info)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "print('great')",
            "The last line that the agent's program wrote is 'great', expected its score as JSON",
        ),
        ("print(1); print('bye')", "wrote is 'bye', expected its score"),
        ("print('NaN')", "wrote is 'NaN', expected its score"),
        ("print('[' * 100000)", "expected its score as JSON"),
        ("print('true')", "stdout's last line is True, expected a score"),
        ("pass", "The agent ended without a score"),
        ("sys.exit(3)", "ended with exit code 3"),
        ("print(1); sys.exit('sorry')", "exit code 1; the end of its stderr:\nsorry"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("post('/nowhere', {})", "HTTP Error 404"),
    ],
)
def test_a_program_that_fails(agent, code, words):
    env = agent("call()\n" + code)
    env.reset()
    with pytest.raises((RuntimeError, TypeError, ValueError), match=words):
        env.step(YES)


def test_a_program_that_asks_nothing(agent):
    with pytest.raises(
        RuntimeError, match=r"ended before it asked(?s:.*)The end of its stderr:\nmy key is missing"
    ):
        agent("sys.stderr.write('my key is missing'); print(1)").reset()
    with pytest.raises(RuntimeError, match=r"exit code 1(?s:.*)NameError"):
        agent("nothing").reset()


def test_output_alone_does_not_score_where_reward_functions_do(agent):
    assert play(agent("call(); print('bye')", earns_rewards=False))[0] == [0.0]


def test_a_program_that_is_not_there():
    with pytest.raises(
        FileNotFoundError, match="The agent's program 'no-such-thing' was not found"
    ):
        AgentEnv(command=["no-such-thing"])().reset()


def test_a_folder_that_is_not_there():
    with pytest.raises(RuntimeError, match="The agent's program 'python' could not be started"):
        AgentEnv(command=["python"], folder="/no/such")().reset()


def test_a_task_that_is_too_long_or_no_json(agent):
    env = agent("call(); print(1)")
    with pytest.raises(RuntimeError, match="a task of less than 100 kB"):
        env.reset(options={"text": "x" * 300_000})
    with pytest.raises(TypeError, match="The task cannot be written as JSON"):
        env.reset(options={"object": object()})
    assert play(env)[0] == [1.0]


def test_an_episode_that_is_cut(agent, tmp_path):
    env = agent(
        "call()\ntime.sleep(0.1)\nopen(sys.argv[1], 'w').write('out')", str(tmp_path / "out")
    )
    env.reset()
    began = time.monotonic()
    env.close()
    assert time.monotonic() - began < 4  # its call fails, and it ends
    assert gone(tmp_path / "solve.py")
    assert not (tmp_path / "out").exists()


STUBBORN = """
import signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
try:
    call()
except Exception:
    pass
while True:
    time.sleep(1)
"""


def test_a_program_that_never_ends(agent, tmp_path):
    env = agent(STUBBORN, grace=0.3, timeout=0.5)
    env.reset()
    with pytest.raises(TimeoutError, match="neither asked nor ended"):
        env.step(YES)
    assert alive(tmp_path / "solve.py")
    began = time.monotonic()
    env.close()
    assert time.monotonic() - began < 3
    assert gone(tmp_path / "solve.py")


FORKS = """
for _ in range(5):
    if os.fork() == 0:
        while True:
            time.sleep(1)
call()
print(1)
"""


@pytest.mark.parametrize("cut", [True, False])
def test_a_program_that_forks(agent, tmp_path, cut):
    """Its children hold its output open; they end with it, and hold nothing up."""
    env = agent(FORKS)
    env.reset()
    assert len(alive(tmp_path / "solve.py")) >= 6
    began = time.monotonic()
    if cut:
        env.close()
    else:
        assert env.step(YES)[1:3] == (1.0, True)
    assert time.monotonic() - began < 4
    assert gone(tmp_path / "solve.py")


DAEMON = """
call()
post("/sessions/rewards", {"score": 1})
if os.fork() == 0:
    os.setsid()
    end = time.monotonic() + 6
    while time.monotonic() < end:
        time.sleep(QUIET)
        os.write(1, b"x" * 1000)
    os._exit(0)
"""


@pytest.mark.parametrize("quiet", ["6", "0"], ids=["silent", "chatty"])
def test_a_child_that_leaves_the_group_holds_nothing_up(agent, quiet):
    """It keeps the output open, too: what comes is read for a moment, then the program counts as ended."""
    env = agent(DAEMON.replace("QUIET", quiet))
    env.reset()
    began = time.monotonic()
    assert env.step(YES)[1:3] == (1.0, True)
    assert time.monotonic() - began < 4


def test_only_the_end_of_an_output_is_in_memory():
    tail = command_module._Tail(1000)
    for number in range(10_000):
        tail.add(b"%04d" % number)
        assert len(tail._kept) <= 2004
    assert bytes(tail) == b"".join(b"%04d" % number for number in range(9750, 10_000))


def test_output_is_bounded(agent, monkeypatch):
    monkeypatch.setattr(command_module, "KEPT_OUTPUT", 1000)
    monkeypatch.setattr(command_module, "KEPT_ERRORS", 1000)
    code = "call()\nfor _ in range(100):\n    print('x' * 10000); sys.stderr.write('e' * 10000)\nprint(0.5)"
    assert play(agent(code))[0] == [0.5]
    env = agent("call()\nprint('x' * 5000)")
    env.reset()
    with pytest.raises(ValueError, match="wrote is 'xxx"):
        env.step(YES)
    env = agent("call()\nsys.stderr.write('e' * 50000 + ' the end'); sys.exit(1)")
    env.reset()
    with pytest.raises(RuntimeError, match=r"the end$") as caught:
        env.step(YES)
    assert len(str(caught.value)) < 1200


@pytest.mark.slow
def test_a_program_that_prints_a_gigabyte(agent):
    before = psutil.Process().memory_info().rss
    code = "call()\nfor _ in range(1024):\n    print('x' * 2**20)\nprint(0.5)"
    env = agent(code)
    env.reset()
    most, done = [], threading.Event()

    def watch():
        while not done.wait(0.02):
            most.append(psutil.Process().memory_info().rss)

    threading.Thread(target=watch, daemon=True).start()
    assert env.step(YES)[1:3] == (0.5, True)
    done.set()
    assert max(most) - before < 20 * MEGABYTE


def test_nothing_is_left_open(agent):
    env = agent("call(); print(1)")
    play(env)
    env.close()
    time.sleep(0.2)
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(5):
        play(env)
    env.close()
    time.sleep(0.2)
    assert len(os.listdir("/proc/self/fd")) <= files
    assert threading.active_count() <= threads
    children = psutil.Process().children(recursive=True)
    assert [one.pid for one in children if one.status() == psutil.STATUS_ZOMBIE] == []


@pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel ends a process with its parent on Linux"
)
def test_it_ends_with_the_process_that_started_it(tmp_path):
    path = tmp_path / "solve.py"
    path.write_text(PRELUDE + FORKS)
    code = (
        "from agentic_trl import AgentEnv; import sys, time;"
        "env = AgentEnv(command=['python', sys.argv[1]])(); env.reset(); print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == b"up\n"
        assert len(alive(path)) >= 6
        run.send_signal(signal.SIGKILL)
    assert gone(path)


def test_the_name_in_a_recipe(tmp_path):
    path = tmp_path / "solve.py"
    path.write_text(PRELUDE + "call(); print(0.5)")
    assert play(make_env("agent", command=["python", str(path)]))[0] == [0.5]


def test_a_close_that_is_interrupted_kills(agent, tmp_path):
    """As a pool of environments does that closes those of its own thread: an exception in the middle of the wait."""

    def late(*_):
        raise TimeoutError

    env = agent(STUBBORN, grace=30.0)
    env.reset()
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(TimeoutError):
            env.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert gone(tmp_path / "solve.py")
