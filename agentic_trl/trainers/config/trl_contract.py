"""The versions of TRL that the trainers are written for.

Everything that the package takes from TRL beyond its public classes is listed in
``tests/trainers/config/trl_contract_tables.py`` and checked against the installed TRL by the tests beside it, so
that an upgrade that breaks an entry says which.
"""

from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

MINIMUM, BELOW = "1.16", "1.17"
"""Supported versions of TRL: from ``MINIMUM`` on, below ``BELOW``."""


def require_supported_trl(installed: str | None = None) -> None:
    """Refuse a version of TRL that the trainers are not written for.

    Args:
        installed: Version to judge; ``None`` asks the installed package.

    Raises:
        ImportError: If TRL is missing or its version lies outside the supported range.
    """
    wanted = f"agentic_trl supports trl >= {MINIMUM}, < {BELOW}"
    if installed is None:
        try:
            installed = version("trl")
        except PackageNotFoundError as error:
            raise ImportError(
                f"trl is not installed; {wanted}: pip install 'trl>={MINIMUM},<{BELOW}'."
            ) from error
    if not Version(MINIMUM) <= Version(installed) < Version(BELOW):
        raise ImportError(
            f"trl {installed} is installed, {wanted}: pip install 'trl>={MINIMUM},<{BELOW}'."
        )
