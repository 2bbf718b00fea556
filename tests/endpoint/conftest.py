import pytest

from tests.endpoint.served import served


@pytest.fixture
def hello():
    """A session at an endpoint of its own that answers ``HELLO``."""
    with served() as one:
        yield one
