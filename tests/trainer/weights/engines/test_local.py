from __future__ import annotations

from tests.trainer.weights.support.engine_fakes import vllm_app


def test_original_server_applies_an_adapter_to_every_request(to):
    diary = []
    app = vllm_app(diary)

    @app.post("/lora/load")
    def load(body: dict[str, str]):
        diary.append(("/lora/load", body))

    engine = to(app)
    engine.require("lora", None)
    engine.load_adapter("/weights/policy-v3", 3, None)
    body = {"adapter_path": "/weights/policy-v3", "adapter_name": "policy-v3"}
    assert diary[0] == ("/lora/load", body)
    assert engine.score([4, 5, 6]) == [-0.5, -0.6] and engine.version() == "3"
