"""Proxies of the environment, which requests to the endpoint must not take: they would carry its keys elsewhere."""

import logging
import os
import urllib.request
from collections.abc import Mapping

logger = logging.getLogger(__name__)

LOOPBACKS = ("127.0.0.1", "localhost", "::1")
"""Names of this machine."""


def without_proxy(variables: Mapping[str, str], host: str = LOOPBACKS[0]) -> dict[str, str]:
    """Return the environment variables by which clients reach an endpoint directly.

    Args:
        variables: The environment, whose own exceptions stay.
        host: Address of the endpoint.
    """
    known = variables.get("NO_PROXY") or variables.get("no_proxy") or ""
    named = [one.strip() for one in known.split(",") if one.strip()]
    hosts = [one for one in dict.fromkeys((*LOOPBACKS, host)) if one and one not in named]
    direct = ",".join([*named, *hosts])
    return {"NO_PROXY": direct, "no_proxy": direct}


def reach_directly(host: str) -> None:
    """Let clients in this process reach an endpoint without the proxy of the environment, if there is one; say so.

    Args:
        host: Address of the endpoint.
    """
    if urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        os.environ.update(without_proxy(os.environ, host))
        logger.warning(
            "The environment names a proxy, which requests of agents to %s must not take: NO_PROXY has it now. A client that "
            "was made before does not see this; set NO_PROXY=%s before the run, or make clients in the agent.",
            host,
            host,
        )
