"""schemathesis sends to the API of a real pool all requests that the OpenAPI document allows, and many that it does not allow."""

import sys
from pathlib import Path

from tests.beds import work
from tests.beds.dashboard import OPERATOR, Dashboard

# `lab` exists, and is used in at least a third of the requests; an unknown name ends every request early.
# Two operations refuse valid parameters: a folder as a file, and a time in the past.
CONFIG = """
[parameters]
"path.host" = "lab"

[[operations]]
include-operation-id = ["download", "hold"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "403", "404", "409", "429"]
"""


PROCESSES = ("runNow", "restore", "preview")
"""Each request starts a process, which takes a second or more: test_api.py tests these."""


def test_the_api_keeps_what_its_document_says(shop: Dashboard, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    words = ("run", f"{shop.url}/api/v1/openapi.json", "-H", f"Authorization: Bearer {shop.tokens[OPERATOR]}", "--checks", "all")
    bounds = ("--phases", "examples,coverage,fuzzing", "--max-examples", "5", "--generation-deterministic", "--no-shrink")
    done = work(
        Path(sys.executable).with_name("schemathesis"),
        "--config-file",
        config,
        *words,
        *bounds,
        *(word for name in PROCESSES for word in ("--exclude-operation-id", name)),
        "--continue-on-failure",
        cwd=tmp_path,
    )
    assert "Tested: " in done.stdout, done.stdout
    assert "Traceback" not in shop.log_text, shop.log_text
