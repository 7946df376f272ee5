"""The shell of every page: one HTML file that loads nothing, with its style, and with scripts where it has any."""

from __future__ import annotations

import html
from pathlib import Path
from string import Template

PAGE_FILES = Path(__file__).with_name("page")
"""Where templates, style and scripts are."""


def shell(*, title: str, kicker: str, heading: str, about: str, body: str, footer: str, scripts: str = "") -> str:
    """Return a page.

    Args:
        title: of the window.
        kicker: what kind of page it is.
        heading: what it is of.
        about: a line below the heading.
        body: of the page, as HTML.
        footer: sentences on where its figures come from.
        scripts: elements with scripts and their data, as HTML. Without any, the page's policy forbids them.
    """
    template = Template((PAGE_FILES / "shell.html").read_text(encoding="utf-8"))
    texts = {"title": title, "kicker": kicker, "heading": heading, "about": about, "footer": footer}
    return template.substitute(
        {name: html.escape(text) for name, text in texts.items()},
        style=(PAGE_FILES / "page.css").read_text(encoding="utf-8"),
        script_policy="script-src 'unsafe-inline'; " if scripts else "",
        body=body,
        scripts=scripts,
    )
