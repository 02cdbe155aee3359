"""Decides whether the caller, as the login service knows him, may do this: role, hosts, and disabled features. The dashboard's
own word does not count.
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from backupd.serve.arguments import FOLDER, HOST
from btrkeep.serving.client import Absent, RootServiceClient
from btrkeep.serving.protocol import Request, RequestRefused
from btrkeep.serving.server import Peer
from btrkeep.serving.viewer import Viewer, read_viewer
from btrkeep.units import printable

_LONGEST_WHO = 100
_PATIENCE = 20.0
ROOT = 0


class Right(Enum):
    """What a verb takes. Whoever has HOST sees the host, OPERATE changes something of it, POOL sees all hosts; LISTED is told of
    his hosts alone.
    """

    HOST, OPERATE, POOL, LISTED = range(4)


def viewer_of(request: Request, peer: Peer, login: Path) -> Viewer:
    """Returns the viewer. Root may name him; everybody else shows a session or a token. Raises RequestRefused."""
    if request.session is not None:
        return _logged_in(request.session, login)
    if not request.who.strip() or len(request.who) > _LONGEST_WHO:
        raise RequestRefused(f"who must be a name, of {_LONGEST_WHO} characters at most", kind="usage")
    if peer.uid != ROOT:
        raise RequestRefused(
            "nobody is logged in", "log in at the dashboard; only root is answered without a session", "refused", own=True
        )
    return Viewer(printable(request.who), "admin")


def _logged_in(word: str, login: Path) -> Viewer:
    try:
        found = RootServiceClient(login, "", _PATIENCE, word).ask("viewer")
        if found is not None:
            return read_viewer(found)
    except Absent as error:
        raise RequestRefused(
            "nobody can be asked who is logged in", "systemctl status 'btrkeep-login@*'", "unusable", own=True
        ) from error
    except (KeyError, TypeError):
        raise RequestRefused("the login service says nothing that is understood", "is it of the same version?") from None
    raise RequestRefused("nobody is logged in by that session", "log in again", "refused", own=True)


def require(right: Right, viewer: Viewer, arguments: Mapping[str, Any]) -> None:
    """Raises RequestRefused: of kind missing for a host that he does not see, as if there were none; else of kind refused."""
    if "host" in arguments and not viewer.may_see(arguments["host"]):
        raise RequestRefused("there is no such host", "", "missing", own=True)
    if right is Right.POOL and viewer.limited:
        raise _refused("that is about the pool as a whole, and you see some hosts of it")
    if right is Right.OPERATE and not viewer.operator:
        raise _refused("only operators may do this")
    if right is Right.OPERATE and arguments.get("to", HOST) not in (HOST, FOLDER) and not viewer.admin:
        raise _refused("only admins may restore into another folder of a host")


def _refused(message: str) -> RequestRefused:
    return RequestRefused(message, "ask an administrator of this pool", "refused", own=True)


def require_switched_on(verb: str, *, no_downloads: bool, no_restores: bool) -> None:
    """Raises RequestRefused for features that the configuration disables."""
    what = "downloads" if no_downloads and verb == "download" else ""
    what = "restores" if no_restores and verb in ("restore", "preview") else what
    if what:
        hint = f"the administrator has set `no_{what}` in [serve]; on the server: backupd restore"
        raise RequestRefused(f"{what} are switched off on this server", hint, "refused", own=True)
