"""Claims: their values for whole rows, for rows of clients without seals, and for forged rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from atroposlib.certificate.claims import (
    CLAIMS,
    Circumstances,
    Standing,
    Value,
    certificate,
    repeated_samples,
)
from atroposlib.certificate.seals import SEAL, SEALS, TASK
from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import pack_columns, pack_group, unpack_columns
from atroposlib.wire.columns import from_group, to_group
from atroposlib.wire.group_arrays import Columns
from atroposlib.wire.messages import MASKED, ScoredData
from tests.certificate.rows import KNOWN, sealed_group

Forgery = Callable[[ScoredData], object]
ROW = 1  # the forged row
READER_CLAIMS = {"bytes"}  # written by the reader of the archive


def claims_after(forge: Forgery, known: Circumstances = KNOWN, routed: bool = False) -> Any:
    """The claims of the forged row, as stored and read again."""
    group = to_group(sealed_group(routed).columns)
    forge(group)
    return certificate(unpack_columns(pack_group(group)), known)[ROW]


def values(claims: dict[str, Standing]) -> dict[str, str]:
    return {name: claim.value.value for name, claim in claims.items()}


@pytest.mark.parametrize("routed", [False, True])
def test_every_claim_of_a_row_of_a_session_is_proved(routed):
    names = set(CLAIMS) - READER_CLAIMS - (set() if routed else {"routes"})
    assert values(claims_after(lambda group: None, routed=routed)) == dict.fromkeys(
        names, "proved"
    )


def test_claims_survive_the_binary_encoding_of_an_environment():
    columns = sealed_group(True).columns
    sent = unpack_columns(pack_columns(columns))
    assert all(claim.value is Value.PROVED for claim in certificate(sent, KNOWN)[ROW].values())


def test_a_client_without_seals_is_declared_or_absent_and_never_refuted():
    plain = ScoredData(
        tokens=[[1, 5, 9]],
        masks=[[MASKED, MASKED, 9]],
        scores=[1.0],
        inference_logprobs=[[1.0, 1.0, -0.5]],
        versions=[[-1, -1, 3]],
    )
    for known in (KNOWN, Circumstances()):
        [claims] = certificate(from_group(plain), known)
        assert Value.REFUTED not in {claim.value for claim in claims.values()}
        assert claims["tokens"].value is Value.ABSENT
        assert claims["versions"].value is Value.DECLARED


# --- forged rows: each is found by the named claim -----------------------------


def set_at(name: str, at: int, value: Any) -> Forgery:
    def forge(group: ScoredData) -> None:
        getattr(group, name)[ROW][at] = value

    return forge


def shift_logprobs(group: ScoredData) -> None:
    row = group.inference_logprobs[ROW]
    row[3:6] = [row[4], row[5], row[3]]


def scale_logprobs(group: ScoredData) -> None:
    row = group.inference_logprobs[ROW]
    row[3:6] = [value / 0.7 for value in row[3:6]]


def shift_mask(group: ScoredData) -> None:
    group.masks[ROW][2], group.masks[ROW][5] = group.tokens[ROW][2], MASKED


def train_tool_text(group: ScoredData) -> None:
    group.masks[ROW][7] = group.tokens[ROW][7]


def span(**changes: Any) -> Forgery:
    def forge(group: ScoredData) -> None:
        group.sampling[ROW][0].update(changes)

    return forge


def all_versions(value: int) -> Forgery:
    def forge(group: ScoredData) -> None:
        row = group.versions[ROW]
        row[3:6] = [value] * 3

    return forge


def swap(name: str) -> Forgery:
    def forge(group: ScoredData) -> None:
        rows = getattr(group, name)
        rows[0], rows[1] = rows[1], rows[0]

    return forge


def duplicate(group: ScoredData) -> None:
    for name in ("tokens", "masks", "inference_logprobs", "versions", "sampling", "scores"):
        rows = getattr(group, name)
        rows[1] = rows[0]
    group.metadata[SEALS][1] = group.metadata[SEALS][0]


def drop_layer(group: ScoredData) -> None:
    columns = from_group(group)
    routed = columns.routed_experts[:, :1]
    group.routed_experts = to_group(replace(columns, routed_experts=routed)).routed_experts


def set_field(name: str, value: Any) -> Forgery:
    return lambda group: setattr(group, name, value)


FORGERIES: dict[str, tuple[Forgery, str]] = {
    "sampled token changed": (set_at("tokens", 4, 55), "tokens"),
    "prompt token changed": (set_at("tokens", 1, 55), "tokens"),
    "tool text changed": (set_at("tokens", 7, 55), "tokens"),
    "token above the vocabulary": (set_at("tokens", 4, 100), "vocabulary"),
    "tokens of another row": (swap("tokens"), "tokens"),
    "mask shifted": (shift_mask, "tokens"),
    "tool text trained": (train_tool_text, "tokens"),
    "span shifted": (span(start=2, end=5), "tokens"),
    "logprobs shifted": (shift_logprobs, "logprobs"),
    "logprobs of another temperature": (scale_logprobs, "logprobs"),
    "logprobs of another row": (swap("inference_logprobs"), "logprobs"),
    "logprob above 0": (set_at("inference_logprobs", 4, 0.5), "logprobs"),
    "logprobs before the temperature": (span(logprobs="raw"), "logprobs"),
    "version relabelled": (all_versions(4), "versions"),
    "version of the future": (all_versions(7), "versions"),
    "mixed lineage": (all_versions(5), "versions"),
    "incarnation that never was": (set_field("incarnation", 3), "versions"),
    "temperature changed": (span(temperature=1.0), "sampling"),
    "top_k hidden in its call": (span(top_k=5), "sampling"),
    "top_k of the group alone": (set_field("generation_params", {"top_k": 5}), "sampling"),
    "finish reason changed": (span(finish_reason="length"), "sampling"),
    "score changed": (set_field("scores", [0.0, 0.5]), "reward"),
    "score of another row": (swap("scores"), "reward"),
    "outcome changed": (set_field("outcomes", ["ok", "truncated"]), "reward"),
    "task changed": (lambda group: group.metadata.update({TASK: "f" * 16}), "reward"),
    "row twice": (duplicate, "distinct"),
}
ROUTE_FORGERIES: dict[str, tuple[Forgery, str]] = {
    "routes of another row": (swap("routed_experts"), "routes"),
    "routes without a layer": (drop_layer, "routes"),
}


@pytest.mark.parametrize("kind", [*FORGERIES, *ROUTE_FORGERIES])
def test_a_forged_row_is_refuted_or_refused_at_intake(kind):
    forge, claim = (FORGERIES | ROUTE_FORGERIES)[kind]
    routed = kind in ROUTE_FORGERIES
    try:
        claims = claims_after(forge, routed=routed)
    except InvalidGroup as refusal:  # the check at intake
        assert kind == "logprob above 0" and "inference_logprobs" in str(refusal)
        return
    assert claims[claim].value is Value.REFUTED, values(claims)


@pytest.mark.parametrize(
    ("known", "claim"),
    [
        (replace(KNOWN, source_digest="sha256:other"), "reward"),
        (replace(KNOWN, max_token_len=10), "context"),
        (replace(KNOWN, arrived_version=1), "versions"),
    ],
    ids=["digest of the code changed", "row longer than the context", "arrived before"],
)
def test_circumstances_of_the_run_refute_a_row(known, claim):
    assert claims_after(lambda group: None, known)[claim].value is Value.REFUTED


@pytest.mark.parametrize(
    ("forge", "claim"),
    [
        (set_field("outcomes", None), "outcome"),
        (set_field("sampling", None), "tokens"),
        (set_field("versions", None), "versions"),
        (set_field("inference_logprobs", None), "logprobs"),
        (lambda group: group.metadata.pop(TASK), "task"),
    ],
    ids=["outcome", "spans", "versions", "logprobs", "task"],
)
def test_a_field_that_is_missing_is_absent(forge, claim):
    assert claims_after(forge)[claim].value is Value.ABSENT


def test_routes_that_were_sealed_and_not_kept_are_absent():
    claims = claims_after(set_field("routed_experts", None), routed=True)
    assert claims["routes"].value is Value.ABSENT


def test_a_version_whose_publish_was_not_checked_has_no_fresh_cache():
    claims = claims_after(lambda group: None, replace(KNOWN, fresh_versions=frozenset({4})))
    assert claims["prefix_cache"].value is Value.ABSENT and "3" in claims["prefix_cache"].why
    at_start = replace(KNOWN, fresh_versions=frozenset({4}), first_versions=frozenset({3}))
    assert claims_after(lambda group: None, at_start)["prefix_cache"].value is Value.DECLARED
    unasked = claims_after(lambda group: None, replace(KNOWN, fresh_versions=None))
    assert "prefix_cache" not in unasked


def test_a_restarted_trainer_explains_an_older_version_later_in_a_row():
    def before_the_restart(group: ScoredData) -> None:
        all_versions(5)(group)
        group.incarnation = 1
        for spans in group.sampling:
            for call in spans:
                del call[SEAL]

    assert claims_after(before_the_restart)["versions"].value is Value.DECLARED


def test_tokens_that_an_environment_masks_stay_proved_and_their_numbers_are_declared():
    def mask(group: ScoredData) -> None:
        group.masks[ROW][4] = MASKED
        group.inference_logprobs[ROW][4], group.versions[ROW][4] = 1.0, -1

    claims = claims_after(mask)
    assert claims["tokens"].value is Value.PROVED
    assert claims["logprobs"].value is claims["versions"].value is Value.DECLARED


def test_samples_are_repeated_only_if_all_their_calls_are():
    assert repeated_samples([("a", "b"), ("a", "c"), (), (), ("a", "b")]) == [4]


def test_a_seal_of_another_form_proves_nothing():
    claims = claims_after(span(seal="x.y"))
    assert claims["tokens"].value is Value.DECLARED


def test_metadata_of_another_form_proves_nothing():
    columns: Columns = sealed_group().columns
    rest = {**columns.rest, "metadata": msgspec.json.encode({SEALS: "x", TASK: 7})}
    claims = certificate(replace(columns, rest=rest), KNOWN)[ROW]
    assert (claims["reward"].value, claims["task"].value) == (Value.DECLARED, Value.ABSENT)
