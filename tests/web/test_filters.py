"""What templates may use, without a page around it."""

import pytest

from web.filters import with_commands


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("keep less, `backupd forecast` shows when", "keep less, <code>backupd forecast</code> shows when"),
        ("<b>`<i>`", "&lt;b&gt;<code>&lt;i&gt;</code>"),
        ("one ` alone\x1b[1m", "one <code> alone\\x1b[1m</code>"),
        ("", ""),
    ],
)
def test_what_stands_between_backquotes_is_a_command_and_nothing_is_markup(text: str, shown: str) -> None:
    assert str(with_commands(text)) == shown
