"""What helps when something is wrong: without it a user loses the menu on an error page, the typed name after a wrong password, and
the way to the documentation.
"""

import re
from pathlib import Path

from btrkeep.config import HostConfig, page
from tests.web.made import client, token, write


def test_an_error_page_keeps_the_menu_and_shows_no_socket_path(tmp_path: Path) -> None:
    write(tmp_path / "state", [HostConfig("web1")]).close()
    browser = client(tmp_path / "state")
    missing = browser.get("/nowhere").text
    for entry in ('href="/hosts"', 'href="/jobs"', 'href="/account"', 'action="/logout"'):
        assert entry in missing
    assert browser.post("/account/elsewhere", data={"csrf_token": token(missing)}).status_code == 303, "its forms work"
    answer = browser.post("/hosts/web1/run", data={"csrf_token": token(missing)})
    assert (answer.status_code, "the root service cannot be reached: No such file" in answer.text) == (503, True)
    assert not re.search(r"\.sock\b", answer.text)


def test_a_wrong_password_keeps_the_name_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "state").close()
    stranger = client(tmp_path / "state").application.test_client()
    csrf = token(stranger.get("/login").text)
    answer = stranger.post("/login", data={"csrf_token": csrf, "name": 'no"<b>body', "password": "not the password"})
    assert answer.status_code == 401
    assert 'value="no&#34;&lt;b&gt;body"' in answer.text
    assert "not the password" not in answer.text


def test_the_footer_and_empty_pages_link_to_the_documentation(tmp_path: Path) -> None:
    write(tmp_path / "state").close()
    browser = client(tmp_path / "state")
    for address in ("/", "/hosts", "/log", "/copies", "/proof", "/pool", "/pool/balance", "/pool/expiry", "/pool/heatmap", "/jobs"):
        text = browser.get(address).text
        links = re.findall(r'href="/docs/([a-z-]+)"', text.partition("<footer")[0])
        assert links, address
        for name in links:
            assert page(name).exists(), (address, name)
    footer = browser.get("/hosts").text.partition("<footer")[2]
    assert 'href="/docs"' in footer
    assert 'href="/docs/api"' in footer


def test_only_pages_of_the_documentation_are_sent_and_only_to_users(tmp_path: Path) -> None:
    write(tmp_path / "state").close()
    browser = client(tmp_path / "state")
    assert "The dashboard" in browser.get("/docs/dashboard").text
    assert browser.get("/docs/dashboard.html").status_code == 200
    for name in ("nothing", "..%2fsetup", "decisions/0001", "dashboard.rst", "%00", "../pyproject"):
        assert browser.get(f"/docs/{name}").status_code in (400, 404), name
    assert browser.application.test_client().get("/docs/dashboard").status_code == 303
