"""Endpoints for files in backups; the root service lists, compares and sends them."""

from dataclasses import dataclass
from typing import Annotated

from flask import Response, abort, request
from pydantic import Field

from web import download as downloads
from web.api import FILES, ApiRequest, Bytes, Endpoint, Host, Name, OneOf, Path, Which, either_way
from web.files import data
from web.files.data import FolderPage
from web.files.differences import LIMIT, Compared, HistoryPage, compare_at, history
from web.mapping import from_row
from web.service_client import root_service


@dataclass(frozen=True, slots=True)
class BrowseParameters:
    """The folder to list, and the part of its list."""

    host: Host
    path: Path = b"/"
    backup: Which = "latest"
    offset: Annotated[int, Field(ge=0, le=999_999_999, description="The number of names to skip.")] = 0
    limit: Annotated[int, Field(ge=1, le=5000, description="The maximum number of names.")] = data.PAGE
    sort: Annotated[str, either_way(data.SORTS), Field(description="The sort order; a minus sign reverses it.")] = "name"


@dataclass(frozen=True, slots=True)
class VersionsParameters:
    """The file or folder whose versions are listed."""

    host: Host
    path: Path
    content: Annotated[bool, Field(description="Distinguish versions by content; this reads every version.")] = False
    since: Annotated[Name, Field(description="Continue from this backup: `next` of the previous answer.")] | None = None


@dataclass(frozen=True, slots=True)
class CompareParameters:
    """The path to compare, and the two backups."""

    host: Host
    before: Which
    path: Path = b"/"
    after: Which = "latest"
    limit: Annotated[int, Field(ge=1, le=5000, description="The maximum number of differences.")] = LIMIT
    since: Annotated[Path, Field(description="Continue after this path: `next` of the previous answer.")] | None = None


@dataclass(frozen=True, slots=True)
class DownloadParameters:
    """The path to download, and its form."""

    host: Host
    path: Path
    backup: Which = "latest"
    form: Annotated[
        str, OneOf(downloads.KINDS), Field(description="`file`: a file unchanged; else an archive of a file or folder.")
    ] = "file"


def browse(asked: ApiRequest) -> FolderPage:
    """Lists a folder."""
    given = asked.given
    listing = data.browse(root_service(), given.host, given.backup, given.path, given.offset, given.limit, given.sort)
    return from_row(FolderPage, listing, entries=tuple(from_row(data.NamedFile, entry) for entry in listing.entries))


def versions(asked: ApiRequest) -> HistoryPage:
    """Lists the versions of a path over all backups."""
    return history(root_service(), asked.given.host, asked.given.path, asked.given.content, asked.given.since)


def compare(asked: ApiRequest) -> Compared:
    """Compares two backups."""
    given = asked.given
    return compare_at(root_service(), given.host, given.path, given.before, given.after, given.limit, given.since)


def download(asked: ApiRequest) -> Response:
    """Sends a file, or an archive of a file or folder. Refuses archives over HTTP/1.0."""
    given, who = asked.given, asked.viewer
    if given.form != "file" and request.environ.get("SERVER_PROTOCOL") == "HTTP/1.0":
        abort(426, "an archive needs HTTP/1.1: over HTTP/1.0 a client cannot see whether it is complete")
    words = {"host": given.host, "backup": given.backup, "path": data.text_of(given.path), "as": given.form}
    with downloads.place(who) as places:
        stream = root_service().stream("download", **words)
        return downloads.sent(stream, downloads.name_of(given.host, given.backup, given.path, given.form), who, places)


_DOWNLOAD = Bytes("application/octet-stream", "The file or archive. If it fails midway, the last chunk is missing.")
_OF = "/hosts/<host>"

ENDPOINTS = (
    Endpoint(
        "GET",
        f"{_OF}/files",
        "browse",
        FILES,
        "List a folder of a backup",
        FolderPage,
        browse,
        BrowseParameters,
        needs_root_service=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/versions",
        "versions",
        FILES,
        "List the versions of a path",
        HistoryPage,
        versions,
        VersionsParameters,
        needs_root_service=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/compare",
        "compare",
        FILES,
        "Compare two backups",
        Compared,
        compare,
        CompareParameters,
        needs_root_service=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/download",
        "download",
        FILES,
        "Download a file, or a folder as an archive",
        _DOWNLOAD,
        download,
        DownloadParameters,
        needs_root_service=True,
        errors=(426,),
    ),
)
