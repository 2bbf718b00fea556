"""Any agent that calls a chat endpoint, as an environment: the loop is the agent's, the turns are its requests.

Contract:

- ``reset`` starts the agent and waits for its first request, ``step`` hands the response back and waits for the next or the
  end. Both have an empty observation; the request stands in ``info["request"]``: ``messages`` (the whole history, as
  ``chat_messages.plain_message`` writes it), ``tools``, ``max_tokens`` and ``stop``.
- ``step`` takes a dictionary as ``endpoint.talk.ChatAnswer.of`` reads it, or the text of a response.
- The end of the agent is ``terminated``. Turn rewards that it posted are rewards of the turn under way; the last reward is
  its score less these. The score is what was posted, or else what the function returned, or the last line that the
  program wrote. ``info`` has ``success`` if the agent said so, and its named ``rewards``.
- An agent that raises, exits with another code than 0, or says nonsense is a failed environment, as is one that ends
  before it has asked anything, or gives no score where ``earns_rewards``.
- ``reset`` and ``close`` end what runs: requests are refused, the agent has ``grace`` seconds to end, then a program is
  killed with its process group, and a thread is left behind, with a warning.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

from agentic_trl.endpoint.refusals import CONTEXT_LENGTH_EXCEEDED, EPISODE_ENDED
from agentic_trl.endpoint.session import ENDED, Ended, Session, Verdict
from agentic_trl.endpoint.talk import ChatAnswer, ChatRequest
from agentic_trl.environments.adapters.common import need
from agentic_trl.environments.agents.command import CommandProgram
from agentic_trl.environments.agents.programs import FunctionProgram, Outcome, Place, agent_of
from agentic_trl.environments.agents.verdict import read_line, read_verdict
from agentic_trl.environments.base import ActionFormat, StepResult, TextEnv, require_running
from agentic_trl.types import StopReason
from agentic_trl.user_values import as_texts

Program = FunctionProgram | CommandProgram
"""What runs an agent."""

TOO_LONG = (
    "Got a prompt that leaves no room for a response in the run's `max_context_tokens`, expected a shorter one. Send "
    "fewer or shorter messages; this episode is over."
)
"""What a program is told whose prompt is too long."""

MODEL = "policy"
"""Name of the model."""


class AgentEpisode(TextEnv):
    """The environment that an agent is; ``AgentEnv`` makes one an episode."""

    action_format = ActionFormat(whole=True)
    earns_rewards = None
    task_columns = None
    path_arguments: ClassVar = {"folder": ()}
    secret_arguments = ("variables",)
    waits = True
    """Whether calls wait for others, and compute nothing."""

    def __init__(
        self,
        solve: Any = None,
        *,
        command: Any = None,
        variables: Mapping[str, str] | None = None,
        folder: str | None = None,
        earns_rewards: bool = True,
        timeout: float = 600.0,
        grace: float = 3.0,
        host: str = "127.0.0.1",
    ) -> None:
        """Bind an agent, either a function or a command.

        Args:
            solve: A function, coroutine function or not, or ``"module:function"``; called with the task, a dictionary,
                and the endpoint: ``base_url``, ``api_key``, ``model``.
            command: A list, a program and its arguments, without a shell; ``python`` is this interpreter.
            variables: Environment variables of the program.
            folder: Folder that the program runs in.
            earns_rewards: Whether the agent scores itself; if not, reward functions alone do.
            timeout: Seconds that it may take from an answer to its next request or its end.
            grace: Seconds in which it may end after the end of its episode.
            host: Address that the endpoint listens on. Any other than the loopback lets other machines try keys.

        Raises:
            ImportError: If the packages of the extra ``agents`` are not installed.
            TypeError: If there is no agent, or both a function and a command.
            ValueError: If a number of seconds is not positive, or the command is empty.
        """
        for module in ("starlette", "uvicorn"):
            need(module, "agents")
        for name, seconds in (("timeout", timeout), ("grace", grace)):
            if not seconds > 0:
                raise ValueError(
                    f"{name}: got {seconds}, expected a positive number of seconds. Give one."
                )
        self._solve = agent_of(solve, command)
        self._command = () if command is None else as_texts("command", command)
        self._variables = {str(name): str(one) for name, one in (variables or {}).items()}
        self._folder = folder
        self.earns_rewards = bool(earns_rewards)
        self._timeout, self._grace, self._host = timeout, grace, host
        self._session: Session | None = None
        self._program: Program | None = None
        self._asked: ChatRequest | None = None
        self._given = 0.0
        self._said: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the agent and wait for its first request.

        Args:
            seed: Seed of the task, ``seed`` among its columns.
            options: Columns of the task.

        Returns:
            No observation, and ``info`` with ``request``.

        Raises:
            RuntimeError: If it ends before it has asked anything.
            TimeoutError: If it takes too long.
        """
        super().reset(seed=seed)
        self.close()
        task = {name: value for name, value in (options or {}).items() if name != "noise_seed"}
        server = need("agentic_trl.endpoint.server", "agents").shared_endpoint(self._host)
        self._session = session = server.new_session()
        place = Place(
            base_url=server.base_url,
            anthropic_url=server.url,
            api_key=session.key,
            model=MODEL,
            _session=session,
        )
        self._program = self._new_program()
        self._given = 0.0
        self._said = {"task": task, "score": 0.0, "success": None, "rewards": {}}
        self._program.start(task if seed is None else {**task, "seed": seed}, place, session)
        if self._wait() is None:
            outcome = self._outcome()
            words = f" The end of its stderr:\n{outcome.words}" if outcome.words else ""
            raise RuntimeError(
                f"The agent ended before it asked the model anything, expected a request to {place.base_url}. Give its client "
                f"`base_url` and `api_key` of the endpoint.{words}"
            )
        return "", self._request_info()

    def step(self, action: Mapping[str, Any] | str) -> StepResult:
        """Answer the agent and wait for its next request or its end.

        Args:
            action: The response.

        Returns:
            No observation, the reward, whether the agent has ended, truncated (always False), and ``info``.

        Raises:
            RuntimeError: If the agent failed.
            TimeoutError: If it takes too long.
        """
        asked, session = require_running(self._asked, self), self._session
        assert session is not None
        given = {"content": action} if isinstance(action, str) else action
        session.answer(asked, ChatAnswer.of(given))
        if self._wait() is not None:
            posted, reward, info = session.verdict, session.take_rewards(), self._request_info()
            if posted is not None:  # it stands, whatever ends the episode
                reward = posted.score - self._given
                info |= {} if posted.success is None else {"success": posted.success}
            self._given += reward
            self._said |= {"score": self._given, "success": info.get("success")}
            return "", reward, False, False, info
        return self._end(session)

    @property
    def judged(self) -> SimpleNamespace:
        """What reward functions get: ``task``, and what the agent said of it: ``score``, ``success``, ``rewards``."""
        return SimpleNamespace(**self._said)

    def cut(self, code: str = EPISODE_ENDED, sentence: str = ENDED) -> None:
        """End the episode for the agent, whose requests are refused from now on; nothing is waited for.

        Args:
            code: Code that it is refused with.
            sentence: The same in words.
        """
        self._asked = None
        if self._session is not None:
            self._session.close(code, sentence)

    def finish(self, reason: str) -> None:
        """End what runs of an episode that is over, within ``grace``.

        Args:
            reason: Why it is over, a ``StopReason``.
        """
        if reason == StopReason.CONTEXT_OVERFLOW.value:
            self.cut(CONTEXT_LENGTH_EXCEEDED, TOO_LONG)
        self.close()

    def close(self) -> None:
        """End what runs, within ``grace``."""
        self.cut()
        program, self._program = self._program, None
        if program is not None:
            program.stop(self._grace)
        self._session = None

    def _new_program(self) -> Program:
        if self._solve is not None:
            return FunctionProgram(self._solve)
        return CommandProgram(self._command, self._variables, self._folder)

    def _wait(self) -> ChatRequest | None:
        """Wait for the next request; ``None`` at the end of the agent.

        Raises:
            TimeoutError: If nothing comes.
        """
        assert self._session is not None
        self._asked = None
        try:
            asked = self._session.next(self._timeout)
        except TimeoutError:
            raise TimeoutError(
                f"The agent neither asked nor ended for timeout={self._timeout:g} seconds, expected it to do so. Raise "
                "`timeout` of the environment, or look at what it waits for."
            ) from None
        self._asked = None if isinstance(asked, Ended) else asked
        return self._asked

    def _request_info(self) -> dict[str, Any]:
        asked = self._asked
        assert asked is not None
        return {
            "request": {
                "messages": asked.prompt(),
                "tools": list(asked.tools),
                "max_tokens": asked.max_tokens,
                "stop": list(asked.stop),
            }
        }

    def _outcome(self) -> Outcome:
        """Return how the agent ended.

        Raises:
            RuntimeError: If it failed.
        """
        outcome = self._program.outcome if self._program is not None else None
        if outcome is None:
            raise RuntimeError(
                "The agents' endpoint was closed while an agent ran, expected it to stay open. Start the run again."
            )
        if outcome.error is not None:
            kind = type(outcome.error).__name__
            raise RuntimeError(f"The agent failed: {kind}: {outcome.error}") from outcome.error
        return outcome

    def _end(self, session: Session) -> StepResult:
        """Return the last turn of an agent that has ended."""
        outcome = self._outcome()
        verdict = self._verdict(session, outcome)
        if verdict is not None:
            self._said |= {"score": verdict.score, "success": verdict.success}
            self._said |= {"rewards": dict(verdict.rewards)}
        if verdict is None:
            return "", session.take_rewards(), True, False, {}
        info: dict[str, Any] = {} if verdict.success is None else {"success": verdict.success}
        if verdict.rewards:
            info["rewards"] = dict(verdict.rewards)
        return "", verdict.score - self._given, True, False, info

    def _verdict(self, session: Session, outcome: Outcome) -> Verdict | None:
        """Return what the agent said of its episode; ``None`` if its turn rewards are all.

        Raises:
            RuntimeError: If there has to be a score, and is none.
        """
        if session.verdict is not None:
            return session.verdict
        silent = session.posted or not self.earns_rewards
        if self._solve is not None:
            found = read_verdict(outcome.said, "`solve`'s return value")
        elif silent:  # its output is its own
            found = None
        else:
            found = read_verdict(read_line(outcome.line), "stdout's last line")
        if found is None and not silent:
            raise RuntimeError(
                "The agent ended without a score, expected one: returned by `solve`, as the last line of JSON of a program, or "
                "posted to /v1/sessions/rewards. Give one, or earns_rewards=False where reward functions alone score."
            )
        return found
