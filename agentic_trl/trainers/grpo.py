"""``AgenticGRPOTrainer``: GRPO and its relatives for agents, TRL's trainer with an environment."""

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, ClassVar

from datasets import Dataset
from torch import Tensor

from agentic_trl.process_settings import keeping
from agentic_trl.rollout.manager import RolloutManager
from agentic_trl.trainers.config.arguments import rollout_settings
from agentic_trl.trainers.config.checks import check_environment_run, check_plain_run, refuse_idle
from agentic_trl.trainers.config.explained import environment_explained, loading_explained
from agentic_trl.trainers.config.grpo import AgenticGRPOConfig
from agentic_trl.trainers.config.host import Model
from agentic_trl.trainers.config.paths import fix_paths, named_model
from agentic_trl.trainers.config.trl_contract import require_supported_trl
from agentic_trl.trainers.config.wrong_names import refuse_wrong_arguments
from agentic_trl.trainers.hooks import EnvironmentHooks
from agentic_trl.trainers.model.dropout import disable_dropout
from agentic_trl.trainers.model.leftovers import take_over
from agentic_trl.trainers.model.output_layer import HeadUse
from agentic_trl.trainers.model.peft_adapters import refuse_prompt_learning
from agentic_trl.trainers.model.reference import keep_reference
from agentic_trl.trainers.model.shared_prefixes import refuse_unshareable
from agentic_trl.trainers.model.vllm import choose_engine, require_vllm
from agentic_trl.trainers.ranks.collective import any_rank
from agentic_trl.trainers.ranks.supported import set_up_ranks
from agentic_trl.trainers.user_code.missing import (
    asks_for,
    refuse_missing_packages,
    refuse_unfed,
    refuse_unknown_metric,
    refuse_unread_credit,
)
from agentic_trl.trainers.user_code.own_copies import guarded
from agentic_trl.trainers.user_code.reward_functions import checked, read_weights
from agentic_trl.trainers.user_code.reward_functions import environment as environment_reward
from agentic_trl.trainers.user_code.reward_models import name_reward_models, refuse_unreadable
from agentic_trl.trainers.user_code.tasks import (
    columns_of,
    has_text_prompts,
    held_out_dataset,
    refuse_streams,
    refuse_unknown_columns,
    refuse_unrewarded,
    resolve_environments,
    task_dataset,
)
from agentic_trl.types import TurnTable
from agentic_trl.user_values import let_streams_show_anything


class AgenticGRPOTrainer(EnvironmentHooks):
    """Trains a causal language model to act over many turns in an environment.

    With ``environment`` the trainer plays episodes, assigns credit to trajectories and turns, and updates on
    exactly the token ids that were sampled. Without it, it is TRL's ``GRPOTrainer``.

    Example:
        >>> from agentic_trl import AgenticGRPOConfig, AgenticGRPOTrainer, tiny_policy
        >>> args = AgenticGRPOConfig("outputs/lake", method="planpo", max_steps=200)
        >>> trainer = AgenticGRPOTrainer(tiny_policy(), args, environment="FrozenLake-v1")
        >>> trainer.train()
    """

    HAS_CRITIC: ClassVar[bool] = False

    def __init__(
        self,
        model: str | PathLike[str] | Model,
        args: AgenticGRPOConfig | None = None,
        *,
        environment: Any = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        reward_funcs: Any = None,
        advantage_function: Callable[[TurnTable], Tensor] | None = None,
        **trl_arguments: Any,
    ) -> None:
        """Build the trainer.

        Args:
            model: Name or path of a model (``"tiny"`` and ``"tiny-tools"`` are embedded), a ``PreTrainedModel``, or a ``PeftModel``. A name or path is loaded
                in float32, as TRL does, unless ``args.model_init_kwargs`` has a ``dtype``.
            args: Configuration.
            environment: A registered id, a class, a factory, or a dictionary of them by the name that
                the dataset's ``environment`` column uses. ``None`` gives TRL's own trainer.
            train_dataset: Tasks, a row each: ``seed`` and whatever the environment's ``reset`` takes as
                ``options``. ``None`` makes ``args.num_train_tasks`` of the environment's own tasks.
            eval_dataset: Held-out tasks; ``None`` makes ``args.num_eval_tasks``, disjoint from training.
            reward_funcs: Reward functions of TRL's kind, added to the environment's score.
            advantage_function: A credit of your own: takes the ``TurnTable`` of all ranks and returns an
                advantage per turn, in place of ``args.advantage``.
            **trl_arguments: Everything else of ``trl.GRPOTrainer``: ``processing_class``,
                ``peft_config``, ``callbacks``, ``optimizers``, ``quantization_config``.

        Raises:
            ImportError: If the installed TRL is not supported.
            TypeError: If the configuration is that of another kind of trainer, or an argument is unknown.
            ValueError: If a setting would have no effect, nothing scores the episodes, or there are too few tasks
                for a batch.
        """
        require_supported_trl()
        refuse_wrong_arguments(self, trl_arguments)
        model = named_model(model)
        args = args or AgenticGRPOConfig()
        require_kinds(self, args)
        fix_paths(args)
        self.advantage_function = advantage_function
        if environment is None:
            _check_plain(args, reward_funcs, eval_dataset)
            with loading_explained(args, model):
                super().__init__(
                    model=model,
                    args=args,
                    train_dataset=train_dataset,
                    eval_dataset=eval_dataset,
                    reward_funcs=reward_funcs,
                    **trl_arguments,
                )
            return
        check_environment_run(args)
        refuse_idle(args, model=model, train_dataset=train_dataset, eval_dataset=eval_dataset)
        refuse_unreadable(model, reward_funcs, trl_arguments)
        self.describe(args)
        require_vllm(args, model)
        _refuse_other_rollouts(trl_arguments)
        refuse_streams(train_dataset, eval_dataset)
        with keeping("The module of an environment"):
            specs = resolve_environments(environment, args.environment_kwargs)
            refuse_missing_packages(specs)
        refuse_unknown_metric(
            args.metric_for_best_model,
            open_ended=bool(reward_funcs) or isinstance(eval_dataset, dict),
        )
        if advantage_function is not None:
            refuse_unread_credit(args)
        with keeping("An environment"), environment_explained(args.environment_kwargs):
            if advantage_function is None:
                refuse_unrewarded(specs, reward_funcs)
            train_dataset, eval_dataset = _filled(specs, args, train_dataset, eval_dataset)
        if reward_funcs is None:
            refuse_unknown_columns(specs, train_dataset)
        _require_enough_tasks(train_dataset, eval_dataset, args)
        _prepend_judge(trl_arguments)
        given = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        refuse_unfed(given, columns_of(train_dataset))
        take_over(model, peft_config=trl_arguments.get("peft_config"))
        changed = {
            "beta": 0.0,  # the reference is made here, in one way for every model
            "sync_ref_model": False,
            "reward_weights": None
            if args.reward_weights is None
            else [1.0, *read_weights(args.reward_weights, given)],
            "use_vllm": False,  # built after the model, in its precision
        }
        with _set_for_trl(args, changed), loading_explained(args, model):
            super().__init__(
                model=model,
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                reward_funcs=[environment_reward, *map(guarded, checked(given))],
                **trl_arguments,
            )
        self._start_rollouts(specs, keep_environments=asks_for(given, "environments"))

    def _start_rollouts(self, specs: Any, *, keep_environments: bool) -> None:
        """Keep the reference, turn dropout off, so that what is scored is what was sampled, and set up the rollouts."""
        let_streams_show_anything()
        name_reward_models(self)
        set_up_ranks(self)
        self.beta = self.args.beta
        if self.beta or self.args.token_weighting == "actfocus":
            keep_reference(self)
        refuse_prompt_learning(self.model)
        disable_dropout(self.model)
        if self.args.share_prefixes:
            refuse_unshareable(self.model, temperature=self.temperature)
        self.head = HeadUse()
        self.num_generations_eval = self.args.num_generations_eval or 1  # each task once
        engine, limit = choose_engine(self)
        settings = rollout_settings(self.args, context_limit=limit)
        played = {
            "specs": specs,
            "settings": replace(settings, keep_environments=keep_environments),
            "tokenizer": self._tokenizer,
            "stop_ids": frozenset(self.eos_token_ids),
            "plain_text": has_text_prompts(specs, self.train_dataset),
        }
        self.rollouts = RolloutManager(
            **played, engine=engine, anyone=partial(any_rank, self.accelerator)
        )
        self.begin(played)


@contextmanager
def _set_for_trl(args: AgenticGRPOConfig, values: dict[str, Any]) -> Iterator[None]:
    """Show TRL's constructor other settings than the user gave."""
    given = {name: getattr(args, name) for name in values}
    for name, value in values.items():
        setattr(args, name, value)
    try:
        yield
    finally:
        for name, value in given.items():
            setattr(args, name, value)


def _filled(specs: Any, args: AgenticGRPOConfig, train: Any, held_out: Any) -> tuple[Any, Any]:
    """Return the tasks of training and evaluation, the environments' own where the user gave none."""
    if train is None:
        train = task_dataset(specs, args.num_train_tasks, "train")
    return train, held_out_dataset(specs, args.num_eval_tasks) if held_out is None else held_out


def require_kinds(
    trainer: AgenticGRPOTrainer,
    args: object,
    train_dataset: object = None,
    eval_dataset: object = None,
) -> None:
    """Refuse a configuration of another trainer, TRL's among them, and data sets without a length.

    Args:
        trainer: The trainer that got them.
        args: The configuration.
        train_dataset: Tasks of training, or ``None``.
        eval_dataset: Held-out tasks, or ``None``.

    Raises:
        TypeError: If one of them is of another kind.
    """
    if getattr(args, "HAS_CRITIC", None) != trainer.HAS_CRITIC:
        wanted = "PPOConfig or AgenticPPOConfig" if trainer.HAS_CRITIC else "AgenticGRPOConfig"
        raise TypeError(
            f"{type(trainer).__name__} got a {type(args).__name__}, expected {wanted}: its knobs are others. "
            "Build that configuration, with the same fields of TRL, or the other trainer."
        )
    refuse_streams(train_dataset, eval_dataset)


def _prepend_judge(trl_arguments: dict[str, Any]) -> None:
    """The environment's score is the first reward function; it has no tokenizer of its own."""
    judges = trl_arguments.get("reward_processing_classes")
    if judges is not None:
        several = judges if isinstance(judges, list) else [judges]
        trl_arguments["reward_processing_classes"] = [None, *several]


def _refuse_other_rollouts(trl_arguments: dict[str, Any]) -> None:
    taken = [
        name
        for name in ("tools", "rollout_func", "environment_factory")
        if trl_arguments.get(name) is not None
    ]
    if taken:
        raise ValueError(
            f"Got `environment` together with {', '.join(taken)}, expected one source of episodes: "
            "leave the others out, or leave `environment` out to use TRL's own."
        )


def _require_enough_tasks(dataset: Sized, held_out: object, args: AgenticGRPOConfig) -> None:
    _require_held_out(held_out, args)
    wanted = args.generation_batch_size // args.num_generations
    if len(dataset) < wanted:
        raise ValueError(
            f"The training set has {len(dataset)} tasks, but a generation batch takes {wanted} different ones "
            f"(generation_batch_size {args.generation_batch_size} / num_generations {args.num_generations}): "
            "no optimizer step could be made. Give more tasks (num_train_tasks), or make the batch smaller "
            "(per_device_train_batch_size, gradient_accumulation_steps, steps_per_generation)."
        )


def _check_plain(args: AgenticGRPOConfig, reward_funcs: Any, eval_dataset: object) -> None:
    """Refuse what a run without an environment would ignore or miss."""
    check_plain_run(args)
    _require_held_out(eval_dataset, args)
    if args.reward_weights is not None:
        given = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        read_weights(args.reward_weights, given)


def _require_held_out(held_out: object, args: AgenticGRPOConfig) -> None:
    if held_out is None and (args.eval_on_start or args.eval_strategy != "no"):
        raise ValueError(
            f"eval_strategy={str(args.eval_strategy.value)!r}, eval_on_start={args.eval_on_start}: got no `eval_dataset`, "
            "expected one: nothing makes held-out tasks here. Pass it, or leave both off."
        )
