"""What a reader misses in Sphinx's pages: search results with excerpts, signatures for screen readers."""

import html
import json
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

MOST = 60_000
"""Characters of a page that excerpts are taken from."""
TEXTS = "texts.js"
PARAMETER = '<dd><em class="sig-param">'


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", prepare)
    app.connect("build-finished", write_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def prepare(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Scripts for the page of the search; a signature of several lines is no list of definitions."""
    if pagename == "search":
        app.add_js_file(TEXTS)
        app.add_js_file("excerpts.js")
    if PARAMETER in context.get("body", ""):
        role = 'role="presentation"'
        body = context["body"].replace(f"<dl>\n{PARAMETER}", f"<dl {role}>\n{PARAMETER}")
        context["body"] = body.replace(PARAMETER, PARAMETER.replace("<dd>", f"<dd {role}>"))


def write_texts(app: Sphinx, exception: Exception | None) -> None:
    """The words of every page, as a script: pages that are files cannot be fetched."""
    if exception is not None or app.builder.format != "html":
        return
    texts = {}
    for name in sorted(app.env.found_docs):
        page = (Path(app.outdir) / f"{name}.html").read_text(encoding="utf-8")
        article = re.search(r"<article.*?</article>", page, re.DOTALL)
        shown = re.sub(
            r"<(script|style|math)\b.*?</\1>", " ", article[0] if article else "", flags=re.DOTALL
        )
        words = re.sub(r"<(?:/?(?:p|li|td|th|dt|dd|h\d|div|pre)\b[^>]*)>", " ", shown)
        texts[name] = " ".join(
            html.unescape(re.sub(r"<[^>]*>", "", words)).replace("¶", "").replace("#", "").split()
        )[:MOST]
    target = Path(app.outdir) / "_static" / TEXTS
    target.write_text(f"window.TEXTS = {json.dumps(texts)};\n", encoding="utf-8")
