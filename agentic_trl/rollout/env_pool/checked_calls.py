"""An environment behind calls that cannot raise; its answers are checked here, wherever it lives.

Imports little: every worker process loads this file.
"""

import asyncio
import copy
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

from agentic_trl.chat_messages import opening_messages, plain_message
from agentic_trl.environments.base import Environment, TextEnv
from agentic_trl.rollout.env_pool.agent_request import read_request
from agentic_trl.rollout.env_pool.env_attributes import read_setup, with_tools
from agentic_trl.rollout.env_pool.replies import Failure, Kept, Opened, Reply, Stepped
from agentic_trl.user_values import (
    clean_text,
    read_category,
    read_flag,
    read_result,
    read_reward,
    read_success,
    visible_text,
)

Call = tuple[Any, ...]
"""``("open",)``, ``("reset", seed, options)``, ``("step", action)``, ``("keep",)`` or ``("close",)``."""


class EventLoop:
    """An event loop in a thread of its own, which starts when the first coroutine comes."""

    def __init__(self) -> None:
        """Bind nothing yet."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def finish(self, value: Any) -> Any:
        """Return a value, or what it gives if it has to be awaited.

        Args:
            value: What a function returned, coroutine function or not.
        """
        if not inspect.isawaitable(value):
            return value
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(self._loop,), daemon=True).start()
        result, error = asyncio.run_coroutine_threadsafe(_settle(value), self._loop).result()
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        """End the thread; the next coroutine starts another."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


class Host:
    """Holds one environment in this process."""

    def __init__(self, make: Callable[[], Environment], loop: EventLoop | None = None) -> None:
        """Bind a factory.

        Args:
            make: Builds the environment at the first call.
            loop: Runs coroutines; ``None`` for one of the host's own.
        """
        self._make = make
        self._environment: Environment | None = None
        self._loop = loop or EventLoop()
        self._own_loop = loop is None

    def call(self, name: str, *arguments: Any) -> Reply:
        """Carry out a call.

        Returns:
            Its result; what the environment raises, short of an interrupt, becomes a failure.

        Raises:
            KeyboardInterrupt: If the user interrupts the run.
        """
        calls: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "reset": self._reset,
            "step": self._step,
            "finish": self._finish,
            "keep": self._keep,
            "close": self._close,
        }
        began = perf_counter()
        try:
            value = calls[name](*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an exit of the environment is none of the run
            return Reply(failure=Failure.of(error), seconds=perf_counter() - began)
        return Reply(value=value, seconds=perf_counter() - began)

    def kill(self) -> None:
        """Do nothing: a call in this process cannot be stopped from outside."""

    killable = False
    """Whether ``kill`` stops a call that hangs."""

    def _open(self) -> None:
        if self._environment is None:
            self._environment = self._make()

    def _reset(self, seed: int, options: dict[str, Any]) -> Opened:
        assert self._environment is not None
        setup = read_setup(self._environment)
        answer = self._loop.finish(self._environment.reset(seed=seed, options=options))
        observation, info = read_result(answer, ("observation", "info"), "reset")
        messages = opening_messages(info["messages"]) if "messages" in info else None
        if "tools" in info:
            setup = with_tools(setup, info["tools"])
        return Opened(
            setup=setup,
            observation=_text(observation),
            messages=messages,
            request=read_request(info),
            category=read_category(info),
        )

    def _step(self, action: Any) -> Stepped:
        environment = self._environment
        assert environment is not None
        inner = getattr(environment, "unwrapped", environment)
        key = _key(self._loop.finish(getattr(inner, "state_key", lambda: None)()))
        if action is None:
            return Stepped(state_key=key)
        return _stepped(key, self._loop.finish(environment.step(action)))

    def _keep(self) -> Kept:
        environment = self._environment
        inner = getattr(environment, "unwrapped", environment)
        shown = inner.judged if isinstance(inner, TextEnv) else inner
        try:
            return Kept(environment=copy.deepcopy(shown))
        except Exception as error:
            raise TypeError(
                f"{type(shown).__name__} cannot be copied ({error}), and reward functions that ask for `environments` get a "
                "copy of each episode's. Give it a `__deepcopy__`, or read `trajectories` in the reward function."
            ) from error

    def _finish(self, reason: str) -> None:
        finish = getattr(getattr(self._environment, "unwrapped", self._environment), "finish", None)
        if finish is not None:
            self._loop.finish(finish(reason))

    def _close(self) -> None:
        environment, self._environment = self._environment, None
        close = getattr(environment, "close", None)
        try:
            if close is not None:
                self._loop.finish(close())
        finally:
            if self._own_loop:
                self._loop.stop()


class WaitingHost(Host):
    """Holds an environment whose calls wait for a program; its ``cut`` ends what waits."""

    killable = True

    def kill(self) -> None:
        """End the call that waits, from whatever thread."""
        cut = getattr(self._environment, "cut", None)
        if cut is not None:
            cut()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    stopped = False
    while not stopped:
        # A task that nobody awaits ends the loop with an exit, but not for the others.
        with suppress(BaseException):
            loop.run_forever()
            stopped = True
    loop.close()


async def _settle(value: Any) -> tuple[Any, BaseException | None]:
    """Await a value; what it raises is returned, since an interrupt would end the loop's thread."""
    try:
        return await value, None
    except BaseException as error:  # raised again by the caller
        return None, error


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        kind = type(observation).__name__
        raise TypeError(
            f"The environment returned an observation of type {kind}, expected a str. Render the state as text"
        )
    return clean_text(observation)


def _stepped(state_key: str | None, answer: Any) -> Stepped:
    names = ("observation", "reward", "terminated", "truncated", "info")
    observation, reward, terminated, truncated, info = read_result(answer, names, "step")
    invalid = info.get("invalid_action", False)
    return Stepped(
        state_key=state_key,
        observation=_text(observation),
        messages=tuple(plain_message(one) for one in info.get("messages") or ()),
        request=read_request(info),
        reward=read_reward(reward, "The reward of step"),
        terminated=read_flag(terminated, "`terminated` of step"),
        truncated=read_flag(truncated, "`truncated` of step"),
        success=read_success(info, "step"),
        accepted=not read_flag(invalid, "info['invalid_action'] of step"),
    )


def _key(key: Any) -> str | None:
    if key is not None and not isinstance(key, str):
        raise TypeError(
            f"state_key() returned an object of type {type(key).__name__}, expected a str or None. "
            "Write the state as text."
        )
    # Nothing is taken out of a key: two states may differ by a colour.
    return key if key is None or clean_text(key) == key else visible_text(key)
