"""Finds the pages of documentation that messages name: those of the checkout, or those that install.sh has installed."""

from pathlib import Path

INSTALLED = Path("/usr/local/share/doc/btrkeep")
_CHECKOUT = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> Path:
    """Returns the path of a page: HTML if it is installed, otherwise the source."""
    written = _CHECKOUT / f"{name}.rst"
    if written.exists():
        return written
    found = [path for suffix in ("html", "rst") if (path := INSTALLED / f"{name}.{suffix}").exists()]
    return found[0] if found else INSTALLED / f"{name}.html"


def reference() -> str:
    """Names the place where every key is explained: the manual page, or in a checkout, which man does not know, the page in
    docs/.
    """
    written = page("configuration")
    return str(written) if written.is_relative_to(_CHECKOUT) else "`man btrkeep.toml`"
