"""Where the documentation is that messages name: the pages of the checkout, or what install.sh has put beside the programs."""

from pathlib import Path

INSTALLED = Path("/usr/local/share/doc/btrkeep")
_CHECKOUT = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> Path:
    """The page of that name. HTML where it is installed; as it was written in a checkout, and where no HTML could be made."""
    written = _CHECKOUT / f"{name}.rst"
    if written.exists():
        return written
    found = [path for suffix in ("html", "rst") if (path := INSTALLED / f"{name}.{suffix}").exists()]
    return found[0] if found else INSTALLED / f"{name}.html"


def reference() -> str:
    """Where every key of the configuration is explained: the manual page, or the page of a checkout, which man does not know."""
    written = page("configuration")
    return str(written) if written.is_relative_to(_CHECKOUT) else "`man btrkeep.toml`"
