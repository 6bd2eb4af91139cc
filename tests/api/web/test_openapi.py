"""The OpenAPI document describes bodies that FastAPI does not parse."""

from __future__ import annotations

from atroposlib.api.server import create_app


async def test_groups_are_described_by_their_record_and_errors_by_one_shape():
    app = create_app()
    document = app.openapi()
    schemas, paths = document["components"]["schemas"], document["paths"]
    assert {"ScoredData", "ClaimedBatch", "Problem", "Full"} <= schemas.keys()
    assert {"tokens", "masks", "scores"} <= set(schemas["ScoredData"]["required"])
    content = paths["/groups"]["post"]["requestBody"]["content"]
    assert content["application/json"]["schema"]["items"] == {
        "$ref": "#/components/schemas/ScoredData"
    }
    assert "application/x-atropos-groups" in content
    full = paths["/groups"]["post"]["responses"]["429"]["content"]["application/json"]
    assert full["schema"] == {"$ref": "#/components/schemas/Full"}
    assert app.openapi() is document  # built once
    app.state.service.close()
