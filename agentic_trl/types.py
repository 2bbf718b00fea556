"""The types of the flow. Plain Python: ``Turn``, ``Trajectory``; tensors: ``TurnTable``, ``TokenBatch``, those of losses.

Levels are spelled out in names: trajectory, turn, token. ``None`` means "never assigned", zero "assigned and neutral".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from agentic_trl.old_names import COLUMNS, accept_old_fields


class StopReason(StrEnum):
    """Why a trajectory ended."""

    TERMINATED = "terminated"
    """The environment reached an end of its own: goal, hole, game over."""
    TRUNCATED = "truncated"
    """The environment cut the episode, for example by its own step limit."""
    TURN_LIMIT = "turn_limit"
    """``max_turns`` turns were taken."""
    TOKEN_LIMIT = "token_limit"
    """``max_tokens_per_trajectory`` tokens were sampled."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The next prompt would leave no room for a response in ``max_context_tokens``."""
    ENVIRONMENT_ERROR = "environment_error"
    """The environment raised; the trajectory carries no loss and enters no statistics."""
    TIMEOUT = "timeout"
    """The environment did not answer in time; treated like ``ENVIRONMENT_ERROR``."""

    @property
    def failed(self) -> bool:
        """Whether the environment, not the policy, ended the episode."""
        return self in {StopReason.ENVIRONMENT_ERROR, StopReason.TIMEOUT}


class TokenKind(IntEnum):
    """What a token is to the loss."""

    NOT_SAMPLED = 0
    """Prompt, observation, glue of the chat template, forced end of turn, padding."""
    REASONING = 1
    """Sampled, outside every action span."""
    ACTION = 2
    """Sampled, inside an action span (tags included), or the end of turn after one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One exchange: what was added to the context, and what the policy sampled.

    Two turns of an append-only trajectory, ``P`` prompt, ``A`` sampled, ``O`` observation with its glue; stored is [...]::

        turn 0   [P P P P] [A A]
        turn 1    P P P P   A A [O O O] [A A A]
    """

    observation_ids: tuple[int, ...]
    """Token ids put before the response: only what is new if ``extends``, else the whole prompt."""
    response_ids: tuple[int, ...]
    """Token ids that the policy sampled, in order, its end-of-turn token included if it was sampled."""
    response_logprobs: tuple[float, ...]
    """Log-probability of each sampled token under the sampling policy, nats."""
    token_kinds: tuple[int, ...]
    """``TokenKind`` of each sampled token: ``REASONING`` or ``ACTION``."""
    reward: float
    """What the environment's step earned; ``penalty`` is not taken off."""
    extends: bool
    """Whether the prompt is previous prompt + response of its conversation + ``observation_ids``."""
    conversation: int = 0
    """Which of the episode's conversations it continues; sub-agents have their own."""
    valid: bool = True
    """Whether an action was found in the response and accepted by the environment."""
    action: str | None = None
    """The action that the environment received; ``None`` if the response held none."""
    state_key: str | None = None
    """Identity of the state in which the action was chosen; ``None`` if states cannot be compared."""
    penalty: float = 0.0
    """Non-negative amount that ``turn_table`` takes off, because the action was missing or refused."""
    truncated: bool = False
    """Whether the response was cut by a token limit before the policy ended it."""
    seconds: float = 0.0
    """Wall time of the environment step."""
    policy_version: int | None = None
    """Optimizer steps of the run that the weights had seen when they sampled; ``None``: not said, as in ``evaluate``."""
    message: int | None = None
    """Index of the response in the trajectory's ``messages``; ``None``: not said."""

    def __post_init__(self) -> None:
        sizes = {len(self.response_ids), len(self.response_logprobs), len(self.token_kinds)}
        assert len(sizes) == 1, f"ids, log-probs and kinds of a turn differ in length: {sizes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An attempt at an episode that its environment spoiled; nothing else of it is kept."""

    stop: StopReason
    """``ENVIRONMENT_ERROR`` or ``TIMEOUT``."""
    error: str
    """Kind of the error and its message."""
    traceback: str = ""
    """Where it was raised, as Python prints it; empty if that is not known."""
    turns: int = 0
    """Turns that had been taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode of one task."""

    turns: tuple[Turn, ...]
    """The turns in order; empty if the environment failed before the first response."""
    group: int
    """Group that the episode is compared with: a position of the sampler, not a task id."""
    member: int
    """Index of the episode inside its group."""
    stop: StopReason
    """Why it ended."""
    success: bool
    """Whether the goal of the task was reached."""
    score: float
    """Outcome R: rewards of the environment and of reward functions, without penalties."""
    success_threshold: float | None = None
    """Score from which it is a success; ``None`` where another thing decides: the environment, or a cut."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """The dataset row that the episode was started from."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The whole conversation as chat messages, calls of tools included, whatever part of it each prompt showed."""
    final_observation_ids: tuple[int, ...] = ()
    """Ids that would follow the last response: the state from which a cut episode would go on."""
    final_extends: bool = True
    """Whether they follow the last context and response, or are a whole new prompt."""
    error: str | None = None
    """The environment's error, if it failed."""
    faults: tuple[Fault, ...] = ()
    """Attempts that the environment spoiled, in order; the last is this one if it failed too."""
    unused_turns: int = 0
    """Responses that a program asked for and threw away; not among the turns."""
    unused_tokens: int = 0
    """Their sampled tokens, and those behind a text that a program named as the end of a response."""
    given_messages: int | None = None
    """Number of ``messages`` before the first response; ``None``: not said."""
    environment: Any = field(default=None, compare=False, repr=False)
    """A copy of the environment at the end, until reward functions have it."""
    category: str | None = None
    """Kind of the task, as the environment says it; metrics of held-out tasks are taken for each."""

    @property
    def failed(self) -> bool:
        """Whether the trajectory is to be left out of the loss and of the statistics."""
        return self.stop.failed

    def scored(self, score: float) -> "Trajectory":
        """Return the episode with another score, and the success that follows from it.

        Args:
            score: The final one; ten times .1 reaches 1, up to 1e-6, relative.
        """
        if (bar := self.success_threshold) is None:
            return replace(self, score=score)
        return replace(self, score=score, success=score >= bar - 1e-6 * abs(bar))

    @property
    def first_response(self) -> int:
        """Index of the first sampled response in ``messages``; their number if there is none."""
        if self.given_messages is not None and self.turns:
            return self.given_messages
        said = [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]
        return dict(enumerate(said)).get(len(said) - len(self.turns), len(self.messages))

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(len(turn.response_ids) for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTable:
    """All turns of a batch, flat, in order of trajectory and turn; a ``valid`` trajectory without turns counts, too."""

    trajectory: Int[Tensor, " turn"]
    """Index of the trajectory of each turn, non-decreasing."""
    turn_index: Int[Tensor, " turn"]
    """Index of the turn inside its trajectory, from 0 without holes."""
    reward: Float[Tensor, " turn"]
    """Reward of the turn less its penalty; those of a trajectory with turns sum to its ``score``."""
    length: Int[Tensor, " turn"]
    """Sampled tokens of the turn."""
    group: Int[Tensor, " trajectory"]
    """Group of each trajectory."""
    score: Float[Tensor, " trajectory"]
    """Outcome R of each trajectory, less its penalties."""
    success: Bool[Tensor, " trajectory"]
    """Whether the goal was reached."""
    valid: Bool[Tensor, " trajectory"] | None = None
    """Trajectories that count in statistics; ``None`` means all."""
    value: Float[Tensor, " turn"] | None = None
    """Critic's value of the state before the turn."""
    state: Int[Tensor, " turn"] | None = None
    """Identity of the state before the turn; -1 where it is not comparable."""

    def __post_init__(self) -> None:
        order = self.trajectory.diff()
        assert bool((order >= 0).all()), "trajectory indices of a TurnTable must not decrease"
        expected = (self.turn_index[:-1] + 1).where(order == 0, 0)
        assert self.turn_index[1:].equal(expected), "turn_index must be 0, 1, ... in a trajectory"

    @property
    def turns_per_trajectory(self) -> Int[Tensor, " trajectory"]:
        """Number of turns T of each trajectory."""
        return self.trajectory.bincount(minlength=self.group.shape[0])

    @property
    def counted(self) -> Bool[Tensor, " trajectory"]:
        """``valid``, with ``None`` read as all."""
        return self.group.new_ones(self.group.shape).bool() if self.valid is None else self.valid


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumns:
    """Credit of the tokens of a sequence, or of a batch of rows, aligned to the token that is scored."""

    turn_of_token: Int[Tensor, "*row token"]
    """Turn (an entry of the ``TurnTable``) that sampled the token, -1 elsewhere."""
    token_share: Float[Tensor, "*row token"]
    """Part of the averaged unit that the token stands for: 1, 1 / |turn| or 1 / |trajectory|; 0 where not sampled."""
    token_advantage: Float[Tensor, "*row token"]
    """Advantage of the token; 0 where not sampled or not yet assigned."""
    old_logprob: Float[Tensor, "*row token"] | None = None
    """Log-probability that the ratio is taken to, nats; ``None`` if it is the current policy's own."""
    ref_logprob: Float[Tensor, "*row token"] | None = None
    """Log-probability under the reference policy, nats."""
    token_weight: Float[Tensor, "*row token"] | None = None
    """Non-negative weight of the token in the surrogate; ``None`` means 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns(TokenColumns):
    """All that is known of the tokens of a row, or of a batch of rows."""

    input_ids: Int[Tensor, "*row token"]
    """Prompt and sampled tokens in the order in which the model saw them; in a batch right-padded."""
    kind: Int[Tensor, "*row token"]
    """``TokenKind`` of each token."""
    sampling_logprob: Float[Tensor, "*row token"]
    """Log-probability under the sampler, nats; 0 where not sampled."""
    old_value: Float[Tensor, "*row token"] | None = None
    """Critic's value of the context before the token, at the time of the rollout, reward units."""
    returns: Float[Tensor, "*row token"] | None = None
    """What the critic learns at the token, reward units."""
    value_mask: Int[Tensor, "*row token"] | None = None
    """1 at the tokens before which the critic is trained."""
    tree: Int[Tensor, "*row token"] | None = None
    """Tree of rows with common prefixes that the token belongs to; ``None`` if rows are computed one by one."""
    node: Int[Tensor, "*row token"] | None = None
    """Node of the token in its tree; see ``ops.prefixes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch(RowColumns):
    """A padded micro-batch of rows; the sampled positions are those with ``turn_of_token >= 0``."""

    attention_mask: Int[Tensor, "row token"]
    """1 at real tokens, 0 at padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs(TokenColumns):
    """What a policy loss needs, all of shape ``row token``."""

    logprob: Float[Tensor, "row token"]
    """Log-probability under the policy, with gradient, nats."""
    old_logprob: Float[Tensor, "row token"]
    """Log-probability that the ratio is taken to, nats."""
    denominator: float
    """Number of units (tokens, turns or trajectories) in the whole optimizer step, all ranks."""
    correction: Float[Tensor, "row token"] | None = None
    """Detached factor that corrects for a sampler that is not exactly the policy; ``None`` means 1."""
    entropy: Float[Tensor, "row token"] | None = None
    """Entropy of the policy's distribution at the token, nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """A scalar to differentiate, and detached sums for logging."""

    loss: Float[Tensor, ""]
    """The loss of the micro-batch; losses of all micro-batches and ranks add up to the step's."""
    metrics: dict[str, float | Tensor]
    """Detached parts that add up over micro-batches in the same way as ``loss``."""


accept_old_fields(Turn, COLUMNS)
accept_old_fields(Trajectory, {"first_answer": "first_response"})
accept_old_fields(TurnTable, {"step": "turn_index"})
