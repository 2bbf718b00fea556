"""GRPO: the outcome of a trajectory against its group, one advantage for all its tokens.

Equations (DeepSeekMath, section 4.1.2): ``A_i = (R_i - mean(R)) / std(R)`` over the G trajectories
of a group.

Source: Shao et al., DeepSeekMath, arXiv 2402.03300v3. ``scale="none"``: Liu et al., Understanding
R1-Zero-Like Training (Dr.GRPO), arXiv 2503.20783v2, section 3.2.

Departures:
    1. A trajectory counts once, whatever its number of turns (implementations that store a row per
       turn weight it by its turns unless they take care).
    2. Groups of equal outcomes give exactly 0, not rounding noise over 1e-6.

Degenerate cases: a group with one counted trajectory gives 0; trajectories that are not valid are
left out of the statistics and get 0.

Reduces to: REINFORCE with the mean of the group as baseline for ``scale="none"``.
"""

from jaxtyping import Float
from torch import Tensor

from agentic_trl.ops.groups import Scale, normalize_in_groups
from agentic_trl.types import TurnTable


def grpo_advantage(table: TurnTable, *, scale: Scale = "std") -> Float[Tensor, " trajectory"]:
    """Return the group-relative outcome of each trajectory.

    Args:
        table: Turns and trajectories of the whole batch; ``score``, ``group`` and ``valid`` are read.
        scale: ``"std"`` divides by the sample standard deviation + 1e-6, ``"none"`` (Dr.GRPO) does not.

    Returns:
        Advantage of each trajectory, without unit for ``"std"``, in reward units for ``"none"``.

    Raises:
        ValueError: If ``scale`` is unknown.

    Source:
        DeepSeekMath, arXiv 2402.03300v3, section 4.1.2; Dr.GRPO, arXiv 2503.20783v2, section 3.2.
    """
    return normalize_in_groups(table.score, table.group, counted=table.counted, scale=scale)
