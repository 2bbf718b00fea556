"""Credit that compares episodes (GRPO, GiGPO, PlanPO, a user's own): an advantage per turn, over all ranks."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor

from agentic_trl.batching import Row
from agentic_trl.methods import CREDITS, Credit
from agentic_trl.ops.returns import spread_turns
from agentic_trl.process_settings import keeping
from agentic_trl.trainers.config.host import Host
from agentic_trl.trainers.config.progress import is_written
from agentic_trl.trainers.ranks.collective import own_slice
from agentic_trl.trainers.update.flat_groups import FlatGroups, flat_groups, log_flat
from agentic_trl.trainers.update.signal_causes import read_credit
from agentic_trl.trainers.update.signals import watch_signals
from agentic_trl.turn_table import concatenate_tables, turn_table
from agentic_trl.types import Trajectory, TurnTable


def group_credit(
    trainer: Host, trajectories: Sequence[Trajectory], rows: Sequence[Row]
) -> list[Row]:
    """Give the tokens of this rank's rows their advantages and what these are made of, from the statistics of all ranks."""
    tables = _tables_of_ranks(trainer, trajectories)
    everyone = concatenate_tables(tables)
    advantage = turn_advantage(trainer, everyone)
    if trainer.args.flat_groups != "refill":  # which logs the groups as they were played first
        log_flat(trainer, flat_groups(everyone, advantage))
    custom = trainer.advantage_function is not None
    watch_signals(trainer, read_credit(trainer.args, everyone, advantage, custom=custom))
    mine = own_slice(trainer.accelerator, [len(one.turn_index) for one in tables])
    parts = {name: part[mine] for name, part in _parts_of(trainer, everyone).items()}
    spread = [spread_turns(advantage[mine], row.turn_of_token) for row in rows]
    return [
        replace(row.made_of(parts), token_advantage=one)
        for row, one in zip(rows, spread, strict=True)
    ]


def find_flat(trainer: Host, trajectories: Sequence[Trajectory]) -> FlatGroups:
    """Return the flat groups of all ranks, as the first rank finds them; nothing is logged.

    Args:
        trainer: The trainer.
        trajectories: This rank's episodes, scored.
    """
    everyone = concatenate_tables(_tables_of_ranks(trainer, trajectories))
    found = flat_groups(everyone, turn_advantage(trainer, everyone))
    agreed: FlatGroups = gather_object([found])[0]
    return agreed


def _tables_of_ranks(trainer: Host, trajectories: Sequence[Trajectory]) -> list[TurnTable]:
    skip = trainer.args.mask_truncated_completions
    tables: list[TurnTable] = gather_object([turn_table(trajectories, skip_truncated=skip)])
    return tables


def turn_advantage(trainer: Host, table: TurnTable) -> Float[Tensor, " turn"]:
    """Return the advantage of each turn: the user's function, or the one that the knobs name.

    Args:
        trainer: The trainer.
        table: Turns and trajectories of all ranks.

    Raises:
        ValueError: If the user's function gives no tensor with an entry per turn.
    """
    if trainer.advantage_function is None:
        advantage: Tensor = _credit_of(trainer).function(table, **_knobs(trainer))
        return advantage
    with keeping("advantage_function"):
        given: Any = trainer.advantage_function(copy.deepcopy(table))
    shape = tuple(table.turn_index.shape)
    if isinstance(given, Tensor) and tuple(given.shape) == shape:
        return given
    got = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
    raise ValueError(
        f"advantage_function returned {got}, expected a tensor with an advantage per turn, shape {shape}. "
        "Index what belongs to trajectories by table.trajectory."
    )


def _parts_of(trainer: Host, table: TurnTable) -> Mapping[str, Float[Tensor, " turn"]]:
    """Return what the advantage of each turn is made of; nothing where a user's function gave it, or nobody reads it."""
    parts = _credit_of(trainer).parts
    if parts is None or trainer.advantage_function is not None or not is_written(trainer):
        return {}
    return parts(table, **_knobs(trainer))


def _credit_of(trainer: Host) -> Credit:
    return CREDITS[str(trainer.args.advantage)]


def _knobs(trainer: Host) -> dict[str, Any]:
    state = trainer.state
    return _credit_of(trainer).arguments(trainer.args, state.global_step, state.max_steps)


def refuse_unsound(trainer: Host, *, credit: Callable[..., Any]) -> None:
    """Refuse ``flat_groups`` where the model or the trainer's class does not go with it.

    Args:
        trainer: A trainer with its model.
        credit: The ``assign_credit`` that asks the knob or the function.

    Raises:
        ValueError: If a row without advantage has a part in the router's load-balancing loss, or "refill" would ask
            another rule than the one that assigns credit.
    """
    choice = trainer.args.flat_groups
    if choice == "drop" and trainer.aux_loss_enabled:
        raise ValueError(
            f"flat_groups='drop' with router_aux_loss_coef={trainer.router_aux_loss_coef} on a mixture of experts: the "
            "load-balancing loss is trained on rows without advantage, too. Set router_aux_loss_coef=0, or "
            "flat_groups='keep'."
        )
    if choice == "refill" and type(trainer).assign_credit is not credit:
        raise ValueError(
            f"flat_groups='refill' with {type(trainer).__name__}.assign_credit: which groups are flat is asked before rows "
            "are made, of the knob `advantage` or of `advantage_function`. Give an `advantage_function` instead, or set "
            "flat_groups='drop'."
        )
