"""Checks of ``flat_groups``: what the rows of a group without advantages would do besides, and who has no such groups."""

from trl import GRPOConfig


def check_flat_groups(config: GRPOConfig) -> None:
    """Refuse ``flat_groups`` and ``max_refills`` where they would change what is trained, or nothing.

    Args:
        config: A configuration whose method is resolved.

    Raises:
        ValueError: If a critic learns from all rows, rows that "drop" leaves out have another term in the loss, or
            ``max_refills`` stands without "refill", or "refill" beside ``max_staleness``.
    """
    choice = config.flat_groups
    if config.max_refills is not None and choice != "refill":
        raise ValueError(
            f"max_refills={config.max_refills} is read by flat_groups='refill' only, got flat_groups={choice!r}. Leave it "
            "unset, or set flat_groups='refill'."
        )
    if choice == "keep":
        return
    if choice == "refill" and config.max_staleness:
        raise ValueError(
            f"flat_groups='refill' with max_staleness={config.max_staleness}: which groups are flat is known when a generation is "
            "trained, and by then the process that plays ahead is at later ones. Set flat_groups='drop', or max_staleness=0."
        )
    if config.HAS_CRITIC:
        raise ValueError(
            f"flat_groups={choice!r} with a critic: its values are trained on every row, and its advantages compare no "
            "groups. Set flat_groups='keep'."
        )
    terms = {"beta": "the KL divergence", "entropy_coef": "the entropy bonus"}
    for name, term in terms.items():
        if choice == "drop" and getattr(config, name):
            raise ValueError(
                f"flat_groups='drop' with {name}={getattr(config, name)}: {term} is trained on rows without advantage, "
                f"too, and dropping them would change the gradient. Set {name}=0, or flat_groups='keep'."
            )
