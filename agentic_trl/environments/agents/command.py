"""An agent that is a program of its own: a process group that ends with it, with its episode and with this process."""

import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from agentic_trl import group_end
from agentic_trl.endpoint.proxies import without_proxy
from agentic_trl.endpoint.session import Session
from agentic_trl.environments.adapters.common import end_descriptor, has_ended, program_path
from agentic_trl.environments.agents.programs import Outcome, Place
from agentic_trl.environments.agents.verdict import last_line
from agentic_trl.user_values import error_text

KEPT_OUTPUT = 2**20
"""Bytes of a program's output that are kept, the last ones."""

KEPT_ERRORS = 2**14
"""Bytes of its complaints that are kept, the last ones."""

LOOK = 0.05
"""Seconds between two looks at whether a program has ended, where the system does not say so."""

LAST_WORDS = 1.0
"""Seconds in which what a program wrote is read after its end: others may hold its output open."""


class CommandProgram:
    """An agent that is a command; no shell reads it."""

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str], folder: str | None
    ) -> None:
        """Bind a command.

        Args:
            command: The program and its arguments; ``python`` is the interpreter of this process.
            variables: Environment variables besides those of this process.
            folder: Where it runs; ``None`` for this process's.
        """
        self.outcome: Outcome | None = None
        """How it ended; ``None`` while it runs."""
        self._command = list(command)
        self._variables = dict(variables)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self, task: Mapping[str, Any], place: Place, session: Session) -> None:
        """Start the program.

        Args:
            task: Columns of the task.
            place: Where the policy is.
            session: Closed when the program ends.

        Raises:
            FileNotFoundError: If there is no such program.
            RuntimeError: If it cannot be started.
            TypeError: If the task is no JSON.
        """
        variables = {**os.environ, **self._variables, **_variables(task, place)}
        program = self._command[0]
        path = program_path(program, "agent's program")
        try:
            self._process = subprocess.Popen(
                group_end.together(path, *self._command[1:]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=variables,
                cwd=self._folder,
            )
        except (OSError, ValueError) as error:
            raise RuntimeError(
                f"The agent's program {program!r} could not be started ({error}), expected room for a process, and a task of "
                "less than 100 kB. Raise the limits (`ulimit -n`, `ulimit -u`), or let the program read long tasks itself."
            ) from error
        self._watcher = threading.Thread(
            target=self._watch, args=(self._process, session), name="agent", daemon=True
        )
        self._watcher.start()

    def stop(self, seconds: float) -> None:
        """Wait for the end of the program, whose session is closed.

        Args:
            seconds: How long to wait before it is killed.
        """
        if self._watcher is None:
            return
        try:
            self._watcher.join(seconds)
        finally:  # a pool that closes interrupts what takes long
            self._kill()
        self._watcher.join(seconds + LAST_WORDS)

    def _watch(self, process: subprocess.Popen[bytes], session: Session) -> None:
        """Read what the program writes until it ends; note how it ended."""
        try:
            try:
                output, errors = _read_until_end(process)
            finally:
                self._kill()  # what it left running, or itself if it cannot be watched
                with self._lock:
                    code = process.wait()
            words = error_text(errors.decode("utf-8", "replace")).strip()
            failed = ChildProcessError(_obituary(code, words)) if code else None
            self.outcome = Outcome(line=last_line(output), error=failed, words=words)
        except BaseException as error:  # a fault here fails the episode, and no other
            self.outcome = Outcome(error=error)
        finally:
            session.close()

    def _kill(self) -> None:
        """Kill the process group, whose number stays taken until the process is waited for."""
        with self._lock:
            process = self._process
            if process is not None and process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)


def _variables(task: Mapping[str, Any], place: Place) -> dict[str, str]:
    """Return the environment variables that tell a program what to do.

    Raises:
        TypeError: If the task is no JSON.
    """
    try:
        said = json.dumps(dict(task))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"The task cannot be written as JSON ({error}), expected columns with texts, numbers, lists and objects. Change "
            "the dataset, or give a function as the agent."
        ) from error
    host = urlsplit(place.base_url).hostname or ""
    return {
        "OPENAI_BASE_URL": place.base_url,
        "OPENAI_API_KEY": place.api_key,
        "ANTHROPIC_BASE_URL": place.anthropic_url,
        "ANTHROPIC_API_KEY": place.api_key,
        "AGENT_TASK": said,
        "AGENT_MODEL": place.model,
        **without_proxy(os.environ, host),
    }


class _Tail:
    """The end of what was written."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()

    def add(self, part: bytes) -> None:
        self._kept += part
        if len(self._kept) > 2 * self._most:
            del self._kept[: -self._most]

    def __bytes__(self) -> bytes:
        return bytes(self._kept[-self._most :])


def _read_until_end(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return the ends of a program's output and complaints, once it has ended; it is not waited for."""
    assert process.stdout is not None
    assert process.stderr is not None
    tails = {process.stdout: _Tail(KEPT_OUTPUT), process.stderr: _Tail(KEPT_ERRORS)}
    ending = end_descriptor(process.pid)
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        for pipe, tail in tails.items():
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, tail)
        if ending is not None:
            selector.register(ending, selectors.EVENT_READ)
        try:
            while not has_ended(process):
                _read(selector, LOOK if ending is None else 1.0)
        finally:
            if ending is not None:
                selector.unregister(ending)
                os.close(ending)
        until = time.monotonic() + LAST_WORDS
        while time.monotonic() < until and _read(selector, 0.0):
            pass
        return tuple(map(bytes, tails.values()))  # type: ignore[return-value]


def _read(selector: selectors.BaseSelector, seconds: float) -> bool:
    """Read what is there; return whether anything was."""
    found = False
    if not selector.get_map():
        time.sleep(seconds)
    for key, _ in selector.select(seconds) if selector.get_map() else ():
        if key.data is None:
            continue
        with suppress(BlockingIOError):
            part = os.read(key.fd, 2**16)
            key.data.add(part)
            found = True
            if not part:
                selector.unregister(key.fileobj)
    return found


def _obituary(code: int, words: str) -> str:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the agent's program {how}" + (f"; the end of its stderr:\n{words}" if words else "")
