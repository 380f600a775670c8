"""The browser of the page's tests sees what is planted."""

import pytest

PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>a page</title>{head}</head>
<body><p id="said">before</p>{body}
<script>document.getElementById("said").textContent = "after"</script></body></html>"""
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "script-src 'unsafe-inline'\">"
)
PLANTED = {
    "a request": ("", '<img src="https://example.org/a.png">', "request: https://example.org/a"),
    "another file": ("", '<img src="file:///etc/passwd">', "request: file:///etc/passwd"),
    "a fetch": ("", "<script>fetch('https://example.org/b')</script>", "request: https://exam"),
    "a complaint": ("", "<script>console.error('no axis')</script>", "console error: no axis"),
    "an exception": ("", "<script>throw Error('no figure')</script>", "uncaught: no figure"),
    "a policy": (POLICY, "<img src=data:,>", "against the page's policy: img-src data"),
    "a dialog": ("", "<script>alert('a line')</script>", "dialog: a line"),
    "a window": ("", "<script>open('about:blank#x')</script>", "another page: about:blank"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_a_page_should_not_do_is_seen(what, opened, tmp_path):
    head, body, said = PLANTED[what]
    page = tmp_path / "a page #1.html"
    page.write_text(PAGE.format(head=head, body=body))
    problems = opened(page).problems
    assert any(problem.startswith(said) for problem in problems), problems
