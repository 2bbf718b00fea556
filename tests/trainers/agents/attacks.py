"""Agents that do what they should not, each after an ordinary request; told to be polite they ask the same and no more.

As functions here, and as programs: ``python attacks.py ROLE``. ``python attacks.py hammer`` is a stranger who attacks the
server from outside until its input ends, and then writes down what it has done.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

MEGABYTE = 2**20
CHAT = "/v1/chat/completions"


class Place:
    """Where the policy is."""

    def __init__(self, base_url, key):
        self.netloc = urlsplit(base_url).netloc
        self.address = (urlsplit(base_url).hostname, urlsplit(base_url).port)
        self.key = key

    def head(self, size, *more, key=None):
        """The first lines of a request with a body."""
        lines = [f"POST {CHAT} HTTP/1.1", "Host: x", f"Authorization: Bearer {key or self.key}"]
        return "\r\n".join([*lines, *more, f"Content-Length: {size}", "", ""]).encode()

    def ask(self, text, *, key=None, line=None, **more):
        """Status and bytes of an answer."""
        own = line or http.client.HTTPConnection(self.netloc, timeout=60)
        body = {"messages": [{"role": "user", "content": text}], **more}
        own.request("POST", CHAT, json.dumps(body), {"authorization": f"Bearer {key or self.key}"})
        answer = own.getresponse()
        found = answer.status, answer.read()
        if line is None:
            own.close()
        return found


def keys(place, amounts, polite):
    """Tries keys."""
    line = http.client.HTTPConnection(place.netloc, timeout=60)
    for number in range(0 if polite else amounts["requests"]):
        status, _ = place.ask("hi", key=f"sk-agent-{number}", line=line)
        assert status == 401, status
    line.close()


def nonsense(place, amounts, polite):
    """Sends what is refused, with its own key."""
    line = http.client.HTTPConnection(place.netloc, timeout=60)
    for number in range(0 if polite else amounts["requests"]):
        status, _ = place.ask("hi", line=line, n=2 + number)
        assert status == 400, status
    line.close()


def bodies(place, amounts, polite):
    """Sends a body that is much too large."""
    if polite:
        return
    part = b"x" * MEGABYTE
    with socket.create_connection(place.address, 60) as line:
        line.sendall(place.head(amounts["megabytes"] * MEGABYTE))
        for _ in range(amounts["megabytes"]):
            line.sendall(part)
        assert b" 413 " in line.recv(100)


HELD = []
"""Connections of ``slow``."""


def slow(place, amounts, polite):
    """Opens connections on which heads and bodies do not come, and leaves them open."""
    for number in range(0 if polite else 20):
        line = socket.create_connection(place.address, 60)
        line.sendall(b"POST / HT" if number % 2 else place.head(1000) + b"{")
        HELD.append(line)


def leaves(place, amounts, polite):
    """Leaves in a stream."""
    if polite:
        assert place.ask("a b", stream=True)[1].endswith(b"data: [DONE]\n\n")
        return
    body = json.dumps({"messages": [{"role": "user", "content": "a b"}], "stream": True}).encode()
    with socket.create_connection(place.address, 60) as line:
        line.sendall(place.head(len(body)) + body)
        assert b"200" in line.recv(12)


END = threading.Event()
"""Ends the functions that do not end."""


def endless(place, amounts, polite):
    """Does not end."""
    if polite:
        raise ValueError("mine")
    END.wait(120)


def forks(place, amounts, polite):
    """Leaves processes behind, which hold its output open."""
    for _ in range(0 if polite else 5):
        subprocess.Popen([sys.executable, "-I", "-S", "-c", f"{MARK!r}; input()"], stdin=OPEN[0])
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)


MARK = "a child of attacks.py"
OPEN = os.pipe() if __name__ == "__main__" else ()


def prints(place, amounts, polite):
    """Writes very much."""
    for _ in range(0 if polite else amounts["printed"]):
        os.write(1, b"x" * (MEGABYTE - 1) + b"\n")
        os.write(2, b"y" * 1000)


def dies(place, amounts, polite):
    """Is killed."""
    if polite:
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


FUNCTIONS = {one.__name__: one for one in (keys, nonsense, bodies, slow, leaves, endless)}
PROGRAMS = {one.__name__: one for one in (forks, prints, endless, dies)}


def as_function(name, amounts, polite):
    """A function for ``AgentEnv``."""

    def solve(task, endpoint):
        place = Place(endpoint.base_url, endpoint.api_key)
        assert place.ask(f"w{task['seed'] % 20} a")[0] == 200
        FUNCTIONS[name](place, amounts, polite)
        return 0.5

    return solve


def as_command(name, amounts, polite):
    """A command for ``AgentEnv``."""
    return ["python", "-I", "-S", __file__, name, json.dumps(amounts), json.dumps(polite)]


def main(name, amounts, polite):
    """The program of an episode."""
    place = Place(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
    task = json.loads(os.environ["AGENT_TASK"])
    assert place.ask(f"w{task['seed'] % 20} a")[0] == 200
    PROGRAMS[name](place, json.loads(amounts), json.loads(polite))
    sys.stdout.write("\n0.5\n")


def guess(place):
    """Tries keys."""
    keys(place, {"requests": 50}, polite=False)


def flood(place):
    """Sends 100 MB, or as much as is taken."""
    part = b"x" * MEGABYTE
    with socket.create_connection(place.address, 60) as line:
        line.sendall(place.head(100 * MEGABYTE))
        for _ in range(100):
            line.sendall(part)


def babble(place):
    """Sends what is no HTTP."""
    with socket.create_connection(place.address, 60) as line:
        line.sendall(b"\x16\x03\x01\x00" * 1000)
        line.recv(1000)


def hang(place):
    """Holds connections on which nothing comes."""
    lines = [socket.create_connection(place.address, 60) for _ in range(50)]
    lines[0].recv(1)  # until they are closed
    for line in lines:
        line.close()


STRANGERS = {one.__name__: one for one in (guess, flood, babble, hang)}


def again(act, place, done, stop):
    """Does something until the end, and counts."""
    while not stop.is_set():
        with suppress(OSError, http.client.HTTPException):
            act(place)
        done[act.__name__] += 1


def hammer(base_url):
    """A stranger: wrong keys, large bodies, what is no HTTP, connections that say nothing, at the same time and again and again."""
    place, done, stop = Place(base_url, "no"), dict.fromkeys(STRANGERS, 0), threading.Event()
    arguments = (place, done, stop)
    threads = [threading.Thread(target=again, args=(one, *arguments)) for one in STRANGERS.values()]
    for one in threads:
        one.start()
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    sys.stdin.read()
    stop.set()
    for one in threads:
        one.join()
    sys.stdout.write(json.dumps(done))


if __name__ == "__main__":
    if sys.argv[1] == "hammer":
        hammer(sys.argv[2])
    else:
        main(*sys.argv[1:])
