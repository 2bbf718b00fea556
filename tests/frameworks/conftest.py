"""These tests need packages that only ``make test-frameworks`` installs; without ``-m frameworks`` they are left out."""


def pytest_collection_modifyitems(config, items):
    if "frameworks" not in config.getoption("-m"):
        left_out = [item for item in items if item.get_closest_marker("frameworks")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
