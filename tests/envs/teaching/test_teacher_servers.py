"""Addresses of a teacher in files: read at the connection, and followed when its server moves."""

from __future__ import annotations

import asyncio
import threading

import pytest

from atroposlib.envs.settings.teacher import TeacherSettings
from atroposlib.envs.teaching import teacher_servers
from atroposlib.envs.teaching.teacher import Student, Teacher
from atroposlib.envs.teaching.teacher_servers import TeacherServers, current_addresses
from atroposlib.errors import InferenceUnavailable, TeacherUnavailable
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import char_tokenizer
from tests.serving import WAIT_S

pytestmark = pytest.mark.filterwarnings("ignore:inference on this machine")


@pytest.fixture(autouse=True)
def looks_follow_at_once(monkeypatch):
    monkeypatch.setattr(teacher_servers, "ADDRESS_LOOK_S", 0.01)


def test_an_address_is_itself_or_the_content_of_its_file(tmp_path):
    file = tmp_path / "with a space"
    urls = ["http://a:1/v1", file.as_uri()]
    with pytest.raises(InferenceUnavailable, match="no address in file://"):
        current_addresses(urls)
    for text in ("", "  \n"):
        file.write_text(text)
        with pytest.raises(InferenceUnavailable, match="the file is empty"):
            current_addresses(urls)
    for text in ("http://b:2\n", "http://b:2/v1"):
        file.write_text(text)
        assert current_addresses(urls) == ["http://a:1/v1", "http://b:2/v1"]


async def test_a_request_to_a_server_that_never_answers_ends_when_the_server_moves(tmp_path):
    """Several requests at once: each ends, and the connection is renewed a single time."""
    file = tmp_path / "teacher"
    file.write_text("http://127.0.0.1:1")
    servers = TeacherServers(TeacherSettings(base_url=file.as_uri()))
    first = servers.at_current_addresses()
    assert servers.at_current_addresses() is first
    calls = [
        asyncio.ensure_future(servers.unless_moved(asyncio.Event().wait)) for _ in range(3)
    ]
    await asyncio.sleep(0)
    file.write_text("http://127.0.0.1:2")
    for call in calls:
        with pytest.raises(InferenceUnavailable, match="moved to http://127.0.0.1:2/v1"):
            await asyncio.wait_for(call, WAIT_S)
    assert servers.now() is not first and servers.at_current_addresses() is servers.now()
    await servers.close()


async def test_a_file_that_vanishes_keeps_the_connection(tmp_path):
    file = tmp_path / "teacher"
    file.write_text("http://127.0.0.1:1")
    servers = TeacherServers(TeacherSettings(base_url=file.as_uri()))
    first = servers.at_current_addresses()
    file.unlink()

    async def answer():
        await asyncio.sleep(0.1)
        return "answer"

    assert await servers.unless_moved(answer) == "answer" and servers.now() is first
    await servers.close()


def teacher_at(file, tokenizer_dir, **fields):
    student = Student(lambda: "env", lambda: None, char_tokenizer, lambda: tokenizer_dir)
    settings = TeacherSettings(base_url=file.as_uri(), tokenizer=tokenizer_dir, **fields)
    return Teacher(settings, student)


async def test_logprobs_come_from_the_address_to_which_a_silent_teacher_has_moved(
    tmp_path, tokenizer_dir
):
    old, new, file = FakeInference(), FakeInference(), tmp_path / "teacher"
    with old.running() as old_url, new.running() as new_url:
        file.write_text(old_url)
        teacher = teacher_at(file, tokenizer_dir)
        vocabulary = await teacher.prepare()
        old.hold = threading.Event()
        group = {"tokens": [[5, 6]], "masks": [[-100, 6]], "scores": [1.0]}
        asked = asyncio.ensure_future(teacher._rows_of(group, "item", vocabulary))
        while not old.requests:
            await asyncio.sleep(0.01)
        file.write_text(new_url)
        ((ids, _),) = await asyncio.wait_for(asked, WAIT_S)
        assert ids == [[], [6]] and len(new.requests) == 1
        old.hold.set()
        await teacher.close()


async def test_a_teacher_without_an_address_is_waited_for_within_its_bound(
    tmp_path, tokenizer_dir
):
    teacher = teacher_at(tmp_path / "none", tokenizer_dir, timeout_s=0.2)
    with pytest.raises(
        TeacherUnavailable, match=r"an answer did not come within 0.2 s.*no address"
    ):
        await teacher.prepare()
    await teacher.close()
