"""Reports the running test module to coverage, also in started processes: `-p tests.beds.recording` (see CONTRIBUTING)."""

import os
from collections.abc import Iterator

import coverage
import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    module = item.nodeid.partition("::")[0]
    os.environ["TEST_MODULE"] = module
    if running := coverage.Coverage.current():
        running.switch_context(module)
        running.config.context = module  # inherited by started processes
        os.environ["COVERAGE_PROCESS_CONFIG"] = running.config.serialize()
    return (yield)
