"""The progress of a run, in forward-backward calls and generation batches."""

from agentic_trl.trainers.config.host import Host


def calls_done(trainer: Host) -> int:
    """Return the number of forward-backward calls in the optimizer steps that are done."""
    return int(trainer.state.global_step * trainer.args.gradient_accumulation_steps)


def calls_per_generation(trainer: Host) -> int:
    """Return the number of forward-backward calls that one generation batch serves."""
    return int(trainer.args.steps_per_generation * trainer.num_iterations)


def generation_index(trainer: Host) -> int:
    """Return the number of the current generation batch, from 0; it seeds everything that is drawn for it."""
    return trainer._step // calls_per_generation(trainer)
