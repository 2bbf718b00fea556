"""Configuration of rollouts: limits, history, sampling, engine, environments."""

from dataclasses import dataclass
from typing import Any, ClassVar

from trl import GRPOConfig

from agentic_trl.number_ranges import Count, Finite, NotNegative, Positive, Seconds, Share
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.trainers.config.ranges import knob
from agentic_trl.user_values import as_texts


@dataclass
class RolloutConfig(GRPOConfig):
    """TRL's configuration, and what the playing of episodes needs beside it."""

    environment_kwargs: dict[str, Any] | str | None = knob(
        None, help="Arguments that the environment is built with."
    )
    num_train_tasks: Positive = knob(512, help="Tasks made for training when no dataset is given.")
    num_eval_tasks: Positive = knob(
        64, help="Held-out tasks made for evaluation when no dataset is given."
    )
    max_turns: Positive | None = knob(
        None, help="Turns of an episode; None takes the environment's number."
    )
    max_tokens_per_turn: Positive | None = knob(
        None, help="Sampled tokens of a response; None takes max_completion_length."
    )
    max_tokens_per_trajectory: Positive | None = knob(
        None, help="Sampled tokens of an episode; None for no limit."
    )
    max_context_tokens: Positive | None = knob(
        None, help="Prompt and response together; None takes what the model's config allows."
    )
    history: str = knob(
        "full",
        help="Messages that a prompt shows: the 'full' conversation, a 'window' of it, or what a function makes "
        "of the messages so far ('module:function', or the function itself).",
    )
    history_window: Count | None = knob(
        None,
        help="Past turns that history='window' shows besides the current observation; None shows none, as 0.",
    )
    stop_strings: list[str] | None = knob(
        None, help="Texts that end a response early, such as '</search>'; one or a list."
    )
    response_prefill: str = knob(
        "", help="Beginning of every response that the prompt already holds, such as '<think>'."
    )
    eval_temperature: NotNegative | None = knob(
        None, help="Temperature of evaluation; 0 is greedy, None the training temperature."
    )
    success_threshold: Finite | None = knob(
        None,
        help="Final score, reward functions included, from which an episode is a success, unless the environment "
        "says itself; None takes the environment's.",
    )
    rollout_engine: str = knob(
        "auto",
        help="Engine that samples: 'transformers', 'vllm', or 'auto': vllm if use_vllm is set.",
    )
    engine_slots: Positive | None = knob(
        None, help="Episodes in flight at a time; the next starts when one ends. None for all."
    )
    engine_max_cache_tokens: Positive | None = knob(
        None,
        help="Tokens that the rollout's key-value cache holds at most, all episodes; None for no limit.",
    )
    engine_probe: bool = knob(
        True,
        help="Check at the start that the model samples, scores and trains as a plain forward pass does.",
    )
    rollout_order: str = knob(
        "arrival",
        help="'arrival': an episode whose environment has answered joins the next pass; 'rounds': a pass waits for every environment "
        "in flight, so that runs with workers repeat bit for bit.",
    )
    max_staleness: Count = knob(
        0,
        help="Generations by which the weights that sample may be behind those that are trained; 0 plays and trains in turn.",
    )
    rollout_device: str | None = knob(
        None,
        help="Device of the process that plays ahead, such as 'cpu' or 'cuda:1', or one a rank of the machine, separated by commas; "
        "None takes the trainer's.",
    )
    env_workers: Count = knob(
        0, help="Workers that reset and step environments; 0 does it in between, one by one."
    )
    env_worker_kind: str = knob(
        "thread", help="'thread', or 'process' for environments that need a core or may crash."
    )
    env_timeout: Seconds | None = knob(
        None,
        help="Seconds that a reset or a step may take, and building the environment, which has 60 at least; needs env_workers. "
        "None for no limit.",
    )
    env_retries: Count = knob(
        2,
        help="Times that a failed episode is played anew, in a fresh environment, before it is left out.",
    )
    max_failed_fraction: Share = knob(
        0.5,
        help="Share of failed environments in a batch, or in an evaluation, above which the run stops.",
    )
    log_trajectories: bool = knob(
        True,
        help="Write one generation per logging_steps to output_dir/trajectories as JSON lines.",
    )
    tracked_episodes: Count = knob(
        8,
        help="Episodes of each generation that log_trajectories writes whose conversations go to the trackers of report_to; 0 sends "
        "none.",
    )
    log_format: str = knob(
        "lines",
        help="What a run prints: 'lines', one a logging step with what moved and a summary at the end, or TRL's 'dict'.",
    )

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *GRPOConfig._VALID_DICT_FIELDS,
        "environment_kwargs",
    ]

    def __post_init__(self) -> None:
        """Read one stop string as a list of one."""
        if self.stop_strings is not None:
            self.stop_strings = list(as_texts("stop_strings", self.stop_strings))
        super().__post_init__()

    @property
    def sampling(self) -> Sampling:
        """The settings by which tokens are drawn in training."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )
