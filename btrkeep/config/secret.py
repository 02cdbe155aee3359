"""URLs that hold passwords and tokens: their kind is shown, never their content."""

import re
from dataclasses import dataclass, field

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://[^\s\x00-\x1f\x7f]+", re.ASCII)
_CREDENTIALS = re.compile(r"://\S*@")
_PING = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+/[!-~]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Url:
    """`text` is the whole of it; str and repr give the scheme alone, so that no log and no message has more."""

    text: str = field(repr=False)

    @property
    def scheme(self) -> str:
        """mailto, ntfy, json, https, ..."""
        return self.text.partition("://")[0].lower()

    def __str__(self) -> str:
        return f"{self.scheme}://..."

    __repr__ = __str__


def without_credentials(text: str) -> str:
    """Returns the text without what stands before the @ of a URL."""
    return _CREDENTIALS.sub("://***@", text)


def parse_url(text: str) -> Url:
    """SCHEME://SOMETHING, without blanks. Raises ValueError, which does not repeat the text."""
    if not _URL.fullmatch(text.strip()):
        raise ValueError("no URL")
    return Url(text.strip())


def parse_ping(text: str) -> Url:
    """An http or https URL that /start can be added to. Raises ValueError, which does not repeat the text."""
    if not _PING.fullmatch(text.strip()) or "?" in text or "#" in text:
        raise ValueError("no URL")
    return Url(text.strip().rstrip("/"))
