"""The tools of an MCP server as an environment.

Contract, besides that of ``tools.ToolEnv``:

- Each ``reset`` starts the server, or by HTTP a session, anew: no state of one episode reaches another. It ends with the
  episode, with the environment, and with this process.
- The model is shown what the server lists. A result is its text; structured content, as JSON, where there is no text; of
  pictures, sounds and files that are no text a line says what is not shown. A result that is an error, and a call that
  the server refuses, reads ``{'error': ...}`` and is an invalid action.
- A server that ends, takes longer than ``timeout``, writes to its stdout what is no message, or a message of more than
  ``mcp_process.LARGEST_MESSAGE`` bytes, is a failed environment.
- There is a score where a tool of the server gives it (``reward``); else reward functions alone score.
"""

import json
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from agentic_trl.environments.adapters.common import need
from agentic_trl.environments.adapters.tools import ToolEnv
from agentic_trl.environments.base import NoOwnTasksError, StepResult, TextEnv, require_running
from agentic_trl.user_values import as_texts, quoted, read_reward


class McpEnv(ToolEnv):
    """An environment whose actions are calls of the tools of an MCP server."""

    path_arguments: ClassVar = {"folder": ()}
    secret_arguments = ("headers", "variables")
    waits = True
    """Whether calls wait for others, and compute nothing."""

    def __init__(
        self,
        command: Sequence[str] | None = None,
        *,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        folder: str | None = None,
        tools: Sequence[str] | None = None,
        reward: str | None = None,
        instructions: str = "",
        success_threshold: float | None = None,
        timeout: float = 60.0,
    ) -> None:
        """Bind a server, either a command or an address.

        Args:
            command: A list, a program and its arguments, without a shell; ``python`` is this interpreter.
            url: Address of a server that speaks streamable HTTP.
            headers: Headers of the requests to it, such as ``authorization``.
            variables: Environment variables of the program.
            folder: Folder that the program runs in.
            tools: Names of the tools that the model is shown; ``None`` for all.
            reward: Name of a tool without arguments that answers with the reward so far, a number; it is called after every
                response, and the model is not shown it.
            instructions: The task in words, the system message.
            success_threshold: Reward of ``reward`` from which an episode is a success, cut ones too, whatever reward
                functions add; ``None`` leaves success to the run's ``success_threshold``.
            timeout: Seconds that the start of the server, and each call, may take.

        Raises:
            ImportError: If the package of the extra ``mcp`` is not installed.
            TypeError: If there is neither a command nor an address, or both, or a command that is one text.
            ValueError: If the command is empty, the timeout is no positive number of seconds, or there is a threshold without
                ``reward``.
        """
        need("mcp", "mcp")
        if (command is None) == (url is None):
            raise TypeError(
                f"An MCP server got command={quoted(command)} and url={quoted(url)}, expected one of them: a list such as "
                "['python', 'server.py'], or the address of a server. Give one."
            )
        if isinstance(command, str):
            raise TypeError(
                f"command: got the text {command!r}, expected a list: no shell reads it. Give {command.split()}."
            )
        if command is not None and not command:
            raise ValueError(
                "command: got no program, expected a list with one and its arguments. Give ['python', 'server.py']."
            )
        if not 0 < timeout < math.inf:
            raise ValueError(
                f"timeout: got {timeout}, expected a positive number of seconds. Give one."
            )
        if success_threshold is not None and reward is None:
            raise ValueError(
                f"success_threshold={success_threshold} of McpEnv judges the tool `reward`, which there is none of; reward "
                "functions are judged by the trainer's: set `success_threshold` in its configuration."
            )
        self.inner = None
        self.earns_rewards = reward is not None
        self.instructions = instructions
        self._command = () if command is None else as_texts("command", command)
        self._url, self._headers = (
            url,
            {str(name): str(one) for name, one in (headers or {}).items()},
        )
        self._variables = {str(name): str(one) for name, one in (variables or {}).items()}
        self._folder, self._timeout = folder, timeout
        self._shown: dict[str, Any] = {}
        self._names = None if tools is None else as_texts("tools", tools)
        self._reward_tool, self._threshold = reward, success_threshold
        self._connection: Any = None
        self._task: dict[str, Any] = {}
        self._made: list[dict[str, Any]] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the server and an episode.

        Args:
            seed: Not used: the server is not told of it.
            options: Columns of the row; ``prompt`` as with ``ToolEnv``.

        Returns:
            The last message of the prompt, and ``info`` with the messages before it and the tools.

        Raises:
            RuntimeError: If the server fails.
            TimeoutError: If it takes too long.
            ValueError: If the server lacks a tool that is named, or has none, or the row poses no task.
        """
        self.close()
        self._task = {name: one for name, one in (options or {}).items() if name != "noise_seed"}
        self._made = []
        observation, info = super().reset(seed=seed, options=options)
        self._connection = self._new_connection()
        try:
            self._shown = self._chosen({one["name"]: one for one in self._connection.start()})
        except BaseException:
            self.close()
            raise
        return observation, {**info, "tools": [_schema(one) for one in self._shown.values()]}

    def step(self, action: Mapping[str, Any]) -> StepResult:
        """Carry out the calls of a response; see ``ToolEnv.step``.

        Raises:
            RuntimeError: If no episode is running, or the server fails.
            TimeoutError: If the server takes too long.
        """
        require_running(self._connection, self)
        return super().step(action)

    @classmethod
    def make_tasks(cls, count: int, *, split: str, **kwargs: Any) -> Sequence[Mapping[str, Any]]:
        """Return seeds, for one task in ``instructions``.

        Returns:
            Rows of a ``seed``.

        Raises:
            NoOwnTasksError: If there are no instructions: a server poses no task.
            ValueError: If ``split`` is another word.
        """
        if not kwargs.get("instructions"):
            raise NoOwnTasksError(
                "An MCP server poses no task: a dataset with a `prompt` column is needed, got none. Pass `train_dataset=...`, "
                "or the task as `instructions`."
            )
        return TextEnv.make_tasks.__func__(cls, count, split=split)  # type: ignore[attr-defined, no-any-return]

    @property
    def judged(self) -> SimpleNamespace:
        """What reward functions get: ``task``, and ``calls``, each with ``name``, ``arguments``, ``result`` and ``failed``."""
        return SimpleNamespace(task=self._task, calls=self._made)

    def cut(self) -> None:
        """End the server and what waits for it, from any thread."""
        if self._connection is not None:
            self._connection.cut()

    def finish(self, reason: str) -> None:
        """End the server of an episode that is over.

        Args:
            reason: Not used.
        """
        del reason
        self.close()

    def close(self) -> None:
        """End the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _new_connection(self) -> Any:
        here = "agentic_trl.environments.adapters.mcp_"
        connections = need(f"{here}connection", "mcp")
        if self._url is not None:
            server = connections.ServerAddress(self._url, self._headers)
        else:
            processes = need(f"{here}process", "mcp")
            server = processes.ServerProcess(self._command, self._variables, self._folder)
        return connections.Connection(server, self._timeout)

    def _chosen(self, listed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tools that the model is shown.

        Raises:
            ValueError: If there is none, or one is missing.
        """
        shown = [name for name in listed if name != self._reward_tool]
        names = shown if self._names is None else self._names
        wanted = [*names, *([self._reward_tool] if self._reward_tool else [])]
        if not names or not set(wanted) <= listed.keys():
            raise ValueError(
                f"The MCP server has the tools {sorted(listed)}, expected {wanted or 'one at least'}. Correct `tools` and "
                "`reward`, or give another server."
            )
        return {name: listed[name] for name in names}

    def _value(self) -> float:
        """Return the reward so far.

        Raises:
            ValueError: If the tool does not answer with a number.
        """
        if self._reward_tool is None:
            return 0.0
        result, good = self._connection.call(self._reward_tool, {})
        where = f"The answer of the tool {self._reward_tool!r}"
        try:
            value = float(_text(result)) if good else None
        except ValueError:
            value = None
        if value is None:
            raise ValueError(
                f"{where} is {quoted(_text(result))}, expected a number, the reward so far. Correct the server, or `reward`."
            )
        return read_reward(value, where)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Return the result of a call, and whether it succeeded."""
        text, good = f"there is no function {name!r}", False
        if name in self._shown:
            result, good = self._connection.call(name, arguments)
            text = _text(result)
        said = text if good else str({"error": text})
        call = {"name": name, "arguments": dict(arguments), "result": said, "failed": not good}
        self._made.append(call)
        return said, good


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool of a server as OpenAI's interface has it."""
    function = {
        "name": tool["name"],
        "description": tool.get("description") or tool.get("title") or "",
        "parameters": tool["inputSchema"],
    }
    return {"type": "function", "function": function}


def _text(result: Mapping[str, Any]) -> str:
    """Return the text of a result."""
    parts = result.get("content") or []
    texts = [_part(one) for one in parts]
    structured = result.get("structuredContent")
    if structured is not None and not any(one.get("type") == "text" for one in parts):
        texts.insert(0, json.dumps(structured, ensure_ascii=False))
    return "\n".join(texts)


def _part(part: Mapping[str, Any]) -> str:
    """Return the text of a part of a result, or what is not shown."""
    if part.get("type") == "text":
        return str(part["text"])
    resource = part.get("resource") or {}
    if "text" in resource:
        return str(resource["text"])
    known = (
        part.get("mimeType") or resource.get("mimeType"),
        part.get("uri") or resource.get("uri"),
    )
    words = " ".join(str(one) for one in (part.get("type"), *known) if one)
    return f"[not shown: {words}]"
