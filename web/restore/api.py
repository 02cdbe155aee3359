"""Operations that restore files to their host, and preview it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from web.api import TASKS, ApiRequest, Endpoint, HostParameters, OneOf, Which
from web.jobs.api import Begun
from web.restore import data
from web.restore.data import PreviewPage, RestoreForm
from web.service_client import root_service
from web.source import require_folder_right

Folder = Annotated[str, Field(max_length=900, pattern=r"^/[^\x00-\x1f\x7f-\x9f]*$")]
Overwrite = Annotated[str, OneOf(tuple(data.OVERWRITE)), Field(description="What to do if a file exists already.")]


@dataclass(frozen=True, slots=True)
class RestoreParameters:
    """The paths to restore, and the destination."""

    paths: Annotated[tuple[bytes, ...], Field(min_length=1, max_length=1000, description="The paths; folders with all below them.")]
    backup: Which = "latest"
    folder: Annotated[Folder, Field(description="A folder on the host, for admins; default: the original places.")] | None = None
    overwrite: Overwrite = "never"


@dataclass(frozen=True, slots=True)
class PreviewAnswer:
    """What a restore would do."""

    preview: PreviewPage | None
    """The preview; null: it is not ready yet, and the task `job` is still preparing it."""
    job: str | None
    """The id of the task that is preparing the preview; null: `preview` has it."""


def restore(asked: ApiRequest) -> Any:
    """Restores files to their own host."""
    return root_service().ask("restore", **_wish(asked).arguments())


def preview(asked: ApiRequest) -> PreviewAnswer:
    """Returns the effect of a restore, without restoring anything."""
    result = data.preview(root_service(), _wish(asked))
    return PreviewAnswer(None, result) if isinstance(result, str) else PreviewAnswer(result, None)


def _wish(asked: ApiRequest) -> RestoreForm:
    body = asked.body
    require_folder_right(body.folder)
    return RestoreForm(asked.given.host, body.backup, body.paths, body.folder, body.overwrite)


def _post(path: str, name: str, summary: str, answer: type, act: Callable[[ApiRequest], Any]) -> Endpoint:
    return Endpoint(
        "POST", path, name, TASKS, summary, answer, act, HostParameters, RestoreParameters, operator=True, needs_root_service=True
    )


ENDPOINTS = (
    _post("/hosts/<host>/restore", "restore", "Restore files to their host", Begun, restore),
    _post("/hosts/<host>/restore/preview", "preview", "Preview a restore", PreviewAnswer, preview),
)
