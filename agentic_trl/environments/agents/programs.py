"""What runs an agent for an episode: a thread that calls a function, or a process.

Contract of both: ``start`` returns at once; ``outcome`` is there before the session is closed, which the end of the agent
does; ``stop``, after the session was closed, is bounded.
"""

import asyncio
import inspect
import logging
import pkgutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentic_trl.endpoint.session import Session
from agentic_trl.user_values import quoted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an agent needs to call the policy."""

    base_url: str
    """For OpenAI's SDK; ends in ``/v1``."""
    anthropic_url: str
    """The same server for Anthropic's SDK."""
    api_key: str = field(repr=False)
    """Names the episode; tell nobody."""
    model: str
    """Name of the model; any other will do."""
    _session: Session = field(repr=False)

    def report(
        self, *, reward: float = 0.0, score: float | None = None, success: bool | None = None
    ) -> None:
        """Post a reward of the turn under way, or a final score; see ``/v1/sessions/rewards``.

        Args:
            reward: Added to the turn's.
            score: Score of the episode; the last one counts.
            success: Whether the goal was reached.
        """
        self._session.report(reward=reward, score=score, success=success)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an agent ended."""

    said: Any = None
    """What it returned."""
    line: str = ""
    """The last line that its program wrote."""
    error: BaseException | None = None
    """What it raised, or that its program failed."""
    words: str = ""
    """The end of what its program complained of."""


class FunctionProgram:
    """An agent that is a function of this process, in a thread of its own."""

    def __init__(self, solve: Callable[..., Any]) -> None:
        """Bind a function.

        Args:
            solve: Gets the task and the place; may be a coroutine function.
        """
        self.outcome: Outcome | None = None
        """How it ended; ``None`` while it runs."""
        self._solve = solve
        self._thread: threading.Thread | None = None
        self._cancel: Callable[[], Any] | None = None

    def start(self, task: Mapping[str, Any], place: Place, session: Session) -> None:
        """Start the agent.

        Args:
            task: Columns of the task.
            place: Where the policy is.
            session: Closed when the agent ends.
        """
        arguments = (dict(task), place, session)
        self._thread = threading.Thread(target=self._run, args=arguments, name="agent", daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Wait for the end of the agent, whose session is closed.

        Args:
            seconds: How long to wait before it is left behind.
        """
        if self._thread is None:
            return
        self._thread.join(seconds / 2)
        cancel = self._cancel
        if self._thread.is_alive() and cancel is not None:
            cancel()
        self._thread.join(seconds / 2)
        if self._thread.is_alive():
            _say_left_behind(seconds)

    def _run(self, task: dict[str, Any], place: Place, session: Session) -> None:
        try:
            said = self._solve(task, place)
            if inspect.isawaitable(said):
                said = asyncio.run(self._awaited(said))
            self.outcome = Outcome(said=said)
        except BaseException as error:  # an exit of the agent is none of the run
            self.outcome = Outcome(error=error)
        session.close()

    async def _awaited(self, said: Any) -> Any:
        task, loop = asyncio.ensure_future(said), asyncio.get_running_loop()
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            return await task
        finally:
            self._cancel = None


_left_behind = threading.Event()


def _say_left_behind(seconds: float) -> None:
    """Say once that a thread is left running."""
    if not _left_behind.is_set():
        _left_behind.set()
        logger.warning(
            "An agent runs on %g seconds after the end of its episode; it is left behind, and keeps its thread and memory. "
            "Let it return when a request is refused with the code episode_ended, or run it as a command, which is "
            "killed. This is said once.",
            seconds,
        )


def agent_of(solve: Any, command: Any) -> Callable[..., Any] | None:
    """Return the function that is the agent; ``None`` if the command is.

    Args:
        solve: A function, its name, or ``None``.
        command: A list, or ``None``.

    Raises:
        TypeError: If there is neither, or both, or one is something else.
        ValueError: If the command is empty.
    """
    if (solve is None) == (command is None):
        raise TypeError(
            f"An agent got solve={quoted(solve)} and command={quoted(command)}, expected one of them: a function "
            "`solve(task, endpoint)`, or a list such as ['python', 'solve.py']. Give one."
        )
    if isinstance(command, str):
        raise TypeError(
            f"command: got the text {command!r}, expected a list: no shell reads it. Give {command.split()}."
        )
    if solve is None:
        if not command:
            raise ValueError(
                "command: got no program, expected a list with one and its arguments. Give ['python', 'solve.py']."
            )
        return None
    function = pkgutil.resolve_name(solve) if isinstance(solve, str) else solve
    if not callable(function):
        raise TypeError(
            f"solve: got {quoted(solve)}, expected a function `solve(task, endpoint)`. Give a function."
        )
    found: Callable[..., Any] = function
    return found
