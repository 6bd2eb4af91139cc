"""The page /docs needs no network, and shows every route and type."""

from __future__ import annotations

from html.parser import HTMLParser

from atroposlib.api.guards.auth import SCOPES_OF
from atroposlib.api.server import create_app
from atroposlib.api.web.openapi import docs_page


class Tags(HTMLParser):
    def __init__(self, document):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


OPEN_PAGES = ("/ui", "/ui/", "/ui/{asset}")  # static files, in no schema


async def test_the_page_loads_nothing_and_lists_every_route(api):
    for path in ("/docs", "/redoc"):
        reply = await api.http.get(path)
        assert reply.status_code == 200
        assert reply.headers["content-security-policy"].startswith("default-src 'none'")
    tags = Tags(reply.text)
    assert not {"script", "link", "img", "iframe"} & set(tags.tags)
    links = {value for name, value in tags.attributes if name in ("src", "href")}
    anchors = {f"#{value}" for name, value in tags.attributes if name == "id"}
    assert links - {"openapi.json"} <= anchors
    for _, path in SCOPES_OF:
        assert f" {path}</code>" in reply.text or path in (
            "/docs",
            "/redoc",
            "/openapi.json",
            *OPEN_PAGES,
        )


def test_texts_of_the_document_do_not_become_markup():
    evil = "<script>x</script><img src=x>"
    app = create_app()
    document = dict(app.openapi())
    schema = {"description": evil, "properties": {evil: {"type": evil, "default": evil}}}
    document["components"] = {"schemas": {evil: schema}}
    document["paths"] = {
        evil: {
            "get": {
                "tags": [evil],
                "summary": evil,
                "responses": {evil: {"description": evil}},
            }
        }
    }
    tags = Tags(docs_page(document))
    assert not {"script", "img"} & set(tags.tags)
    app.state.service.close()
