"""The table of checks in docs/doctor.rst, made from the rules: `python -m backupd.doctor docs/doctor.rst` writes it anew."""

from backupd.doctor.rules import RULES

BEGIN, END = ".. checks begin here\n", ".. checks end here\n"


def refreshed(text: str) -> str:
    """`text` of the page with the table between the two marks made anew. Raises ValueError when a mark is missing."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{checks()}\n{END}{after}"


def checks() -> str:
    """reStructuredText: a row for each rule."""
    rows = [("NAME", "SEVERITY", "FIX", "WHAT IT FINDS")]
    rows += [(f"``{rule.name}``", ", ".join(rule.severities), "yes" if rule.fixable else "", rule.looks) for rule in RULES]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    line = "  ".join("=" * width for width in widths)
    head, *body = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join([line, head, line, *body, line]) + "\n"
