"""How long a run's generations take, whoever plays them: for the recipe and the benchmark of ``max_staleness``."""

from statistics import fmean, median
from time import perf_counter
from typing import Any

from transformers import TrainerCallback

from agentic_trl import AgenticGRPOTrainer


class Clock(TrainerCallback):
    """Seconds since the start of training at the end of each optimizer step."""

    def __init__(self) -> None:
        """Wait for the start."""
        self.began, self.steps = 0.0, list[float]()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start."""
        self.began = perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note a step."""
        self.steps.append(perf_counter() - self.began)


class Timed(AgenticGRPOTrainer):
    """Keeps the seconds that each call waited for episodes, whoever played them, and those that it took besides."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """Build a trainer with a clock."""
        self.clock, self.waits, self.updates = Clock(), list[float](), list[float]()
        self._waited = 0.0
        super().__init__(*arguments, callbacks=[self.clock], **more)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        began = perf_counter()
        played = super()._generate_and_score_completions(inputs)
        self._waited = perf_counter() - began
        return played

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        self._waited = 0.0
        found = super()._prepare_inputs(generation_batch)
        self.waits.append(self._waited)
        return found

    def training_step(self, *arguments: Any, **more: Any) -> Any:
        """Time a call."""
        began = perf_counter()
        loss = super().training_step(*arguments, **more)
        self.updates.append(perf_counter() - began - self.waits[-1])
        return loss

    def seconds(self) -> dict[str, float]:
        """Return ``seconds_of`` of the run, which has an optimizer step a call."""
        staleness = getattr(self.args, "max_staleness", 0)
        return seconds_of(
            self.clock.steps,
            self.waits,
            self.updates,
            steps=self.args.num_iterations,
            staleness=staleness,
        )


def seconds_of(
    clock: list[float], waits: list[float], updates: list[float], *, steps: int, staleness: int
) -> dict[str, float]:
    """Return the seconds of steady generations: without the first S + 1 and the last S.

    The weights of the first are the initial ones; while the last are trained, nothing new is begun.
    With S + 1 generations in flight several may be trained at once after a long wait. A period is therefore
    that of S + 1 generations, and waits are averaged.

    Args:
        clock: Seconds at the end of each optimizer step.
        waits: Seconds waited for episodes in each of them.
        updates: Seconds of each without that.
        steps: Optimizer steps of a generation.
        staleness: S.

    Returns:
        ``generation``, median over the ends that lie S + 1 generations apart of their distance, over S + 1; ``waiting``, mean of
        a generation; ``update``, median of an optimizer step.
    """
    first, last = staleness + 1, len(clock) // steps - staleness
    ends = clock[steps - 1 :: steps][staleness:last]
    periods = [(end - begin) / first for begin, end in zip(ends, ends[first:], strict=False)]
    kept = waits[first * steps : last * steps]
    return {
        "generation": median(periods),
        "waiting": steps * fmean(kept),
        "update": median(updates[first * steps : last * steps]),
    }
