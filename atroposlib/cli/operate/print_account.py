"""atropos account: where the tokens of a run went, by end state.

atropos account runs/a                     a live or an ended run, by its folder
atropos account --api-url URL --by version
atropos account runs/a --live              again every two seconds, until ^C
atropos account runs/a --server URL        and the count of the server itself
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from atroposlib.api.archive.load import open_explorer, place
from atroposlib.errors import ConfigError
from atroposlib.run_status.polling import address_in
from atroposlib.run_status.server_tokens import generated_by
from atroposlib.run_status.why import add_run, parser_of
from atroposlib.wire.explore import AccountLine, RunAccount
from atroposlib.wire.status import (
    OLDER_VERSIONS,
)

APART_S = 2.0
TIMEOUT_S = 30.0
LISTS = ("env", "version", "step")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the balance: tokens that servers returned, by end state."""
    parser = parser_of("atropos account", main.__doc__)
    add_run(parser)
    parser.add_argument("--by", choices=LISTS, help="a list for each")
    parser.add_argument("--live", action="store_true", help="again every 2 s, until ^C")
    parser.add_argument("--json", action="store_true", help="print JSON, a balance a line")
    parser.add_argument(
        "--server", action="append", default=[], help="compare with its counter; repeatable"
    )
    options = parser.parse_args(argv)
    while True:
        account = read_account(options.run, options.api_url, options.by or "")
        counted = generated_by(options.server) if options.server else None
        if options.json:
            document = {**msgspec.to_builtins(account), "generated_by_servers": counted}
            print(msgspec.json.encode(document).decode(), flush=True)
        else:
            print(account_table(account, options.by or ""), flush=True)
            if counted is not None:
                print(server_line(account, counted), flush=True)
        if not options.live:
            return 0
        time.sleep(APART_S)


def read_account(run: Path | None, url: str, by: str) -> RunAccount:
    """The balance of the live run at an address, or of the stored run in a folder.

    Raises:
        ConfigError: the API does not answer, or does not know the balance.
    """
    address = url if run is None else address_in(run)
    if address is not None and (account := account_of_api(address, by)) is not None:
        return account
    if run is None:
        raise ConfigError(
            f"no balance at {url}: start a rollout API, or give the folder of a run"
        )
    with open_explorer(place(str(run)), None) as (_, explorer):
        return explorer.account({"by": by})


def account_of_api(url: str, by: str) -> RunAccount | None:
    """The answer of GET /explore/account; None without an answer."""
    import httpx

    token = os.environ.get("ATROPOS_API_TOKEN")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    query: dict[str, Any] = {"by": by} if by else {}
    try:
        with httpx.Client(trust_env=False, timeout=TIMEOUT_S, headers=headers) as http:
            answer = http.get(f"{url.rstrip('/')}/explore/account", params=query)
    except httpx.TransportError:
        return None
    if not answer.is_success:
        raise ConfigError(f"{url} answered {answer.status_code}: {answer.text[:200]}")
    return msgspec.json.decode(answer.content, type=RunAccount)


def account_table(account: RunAccount, by: str) -> str:
    """The balance as text: a line for each end state, with its share of all tokens."""
    whole = max(1, account.generated + account.supplied)
    lines = [f"{by:>12}  {'state':34}{'tokens':>14}{'samples':>10}{'share':>8}"]
    for line in account.lines:
        lines.append(
            f"{label_of(line, by):>12}  {line.state:34}{line.tokens:>14,}{line.samples:>10,}"
            f"{line.tokens / whole:>8.1%}"
        )
    if account.unknown:
        lines.append(f"{'':12}  {'unknown':34}{account.unknown:>14,}")
    useful = "-" if account.useful is None else f"{account.useful:.1%}"
    lines.append(
        f"{account.generated:,} tokens returned by servers, {account.supplied:,} supplied, "
        f"{account.moving:,} under way; useful: {useful}"
    )
    return "\n".join(lines)


def server_line(account: RunAccount, counted: int) -> str:
    """The count of the servers against the tokens that processes of the run reported."""
    more = counted - account.generated
    if more < 0:
        return (
            f"servers: {counted:,} tokens since the start, {-more:,} fewer than the run got: a"
            " server restarted, or is not named here"
        )
    return (
        f"servers: {counted:,} tokens since the start, {more:,} more than processes reported:"
        " checks of the trainer, other callers, replies on the way or to a killed process"
    )


def label_of(line: AccountLine, by: str) -> str:
    """The environment, version or step of a line."""
    value = getattr(line, by) if by else ""
    if by == "version" and value == OLDER_VERSIONS:
        return "older"
    return "-" if value is None or value == -1 else str(value)
