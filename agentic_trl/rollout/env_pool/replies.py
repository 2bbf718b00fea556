"""What a call to an environment gave, read and checked; it travels between threads and processes."""

import traceback
from dataclasses import dataclass
from typing import Any

from agentic_trl.rollout.env_pool.agent_request import AgentRequest
from agentic_trl.rollout.env_pool.env_attributes import EnvironmentSetup
from agentic_trl.user_values import error_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A start of an episode."""

    setup: EnvironmentSetup
    """The environment's attributes."""
    observation: str
    """The first observation."""
    messages: tuple[dict[str, str], ...] | None
    """Chat messages before it, in place of the system message; ``None`` for none."""
    request: AgentRequest | None = None
    """The prompt of a program, in place of observation and messages."""
    category: str | None = None
    """Kind of the task; ``None`` if the environment names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """A step, or a look at the state where the response held no action."""

    state_key: str | None
    """Identity of the state before the step."""
    observation: str | None = None
    """The next observation; ``None`` if there was no action."""
    messages: tuple[dict[str, Any], ...] = ()
    """Chat messages before it, such as results of tools."""
    request: AgentRequest | None = None
    """The next prompt of a program, in place of observation and messages."""
    reward: float = 0.0
    """Reward of the step."""
    terminated: bool = False
    """Whether the task itself ended."""
    truncated: bool = False
    """Whether the environment cut the episode."""
    success: bool | None = None
    """Whether the goal is reached; ``None`` if the environment does not say."""
    accepted: bool = False
    """Whether there was an action that could be carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A copy of an environment at the end of an episode."""

    environment: Any
    """What reward functions get of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a call gave nothing."""

    error: str
    """Kind of the error and its message, cleaned and cut."""
    traceback: str = ""
    """Where it was raised, as Python prints it, cleaned and cut."""
    timeout: bool = False
    """Whether the call took too long."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", error_text(self.error))
        object.__setattr__(self, "traceback", error_text(self.traceback))

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Return the failure of a call that raised, also if the error itself cannot be shown; a ``TimeoutError`` took too long."""
        kind = type(error).__name__
        try:
            said = str(error)
        except BaseException:  # a stranger's `__str__`
            said = "an error whose text cannot be read"
        try:
            trace = "".join(traceback.format_exception(error))
        except BaseException:  # a stranger's attributes
            trace = ""
        late = isinstance(error, TimeoutError)
        return cls(error=f"{kind}: {said}", traceback=trace, timeout=late)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The result of a call."""

    value: Opened | Stepped | Kept | None = None
    """Result of a reset, a step, or of keeping the environment."""
    failure: Failure | None = None
    """The failure of the call; ``None`` if it succeeded."""
    seconds: float = 0.0
    """Wall time of the call."""
