"""Signals of a process and of its forked children, in real processes."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

CHILDREN = {
    "a pool that ends": """
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
    """,
    "a process that is ended": """
        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
        child.terminate()
        child.join()
        assert child.exitcode == -signal.SIGTERM, child.exitcode
    """,
    "a process pool that is interrupted": """
        fork = multiprocessing.get_context("fork")
        with concurrent.futures.ProcessPoolExecutor(3, fork) as pool:
            running = pool.submit(interrupted)
            assert isinstance(running.exception(), KeyboardInterrupt)
    """,
    "a fork that ends itself at once": """
        for _ in range(20):
            if not (child := os.fork()):
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
            assert os.waitpid(child, 0)[1] == signal.SIGTERM
    """,
    "a handler of the child's own": """
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        if not (child := os.fork()):
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        assert os.waitpid(child, 0)[1] == 7 << 8
        signal.signal(signal.SIGTERM, ours)
    """,
}
PARENTS = {
    "without a loop": "work()",
    "asyncio": "asyncio.run(on_the_loop())",
    "asyncio, in a thread": "asyncio.run(asyncio.wait_for(in_a_thread(), 600))",
    "uvloop": "__import__('uvloop').run(on_the_loop())",
}
PROGRAM = """
import asyncio, concurrent.futures, multiprocessing, os, signal, warnings
from atroposlib.utils.command.signals import on_signals

warnings.simplefilter("ignore")  # of forks beside threads, which is what users do
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
received = []

def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()

def work():
    ours = signal.getsignal(signal.SIGTERM)
    {work}

async def on_the_loop():
    on_signals(received.append, signal.SIGTERM, signal.SIGINT)  # asyncio.run() has its own
    work()
    await asyncio.sleep(0.01)

async def in_a_thread():
    on_signals(received.append, signal.SIGTERM, signal.SIGINT)
    await asyncio.to_thread(work)

on_signals(received.append, signal.SIGTERM, signal.SIGINT)
{run}
assert not received, received
os.kill(os.getpid(), signal.SIGTERM)
assert received == [signal.SIGTERM]
"""


@pytest.mark.slow
@pytest.mark.parametrize("parent", PARENTS)
@pytest.mark.parametrize("children", CHILDREN)
def test_a_signal_to_a_forked_child_is_none_to_its_parent(children, parent):
    if parent == "uvloop":
        pytest.importorskip("uvloop")
    if "own" in children and "thread" in parent:
        pytest.skip("Python sets handlers in the main thread only")
    work = dedent(CHILDREN[children]).strip().replace("\n", "\n    ")
    program = PROGRAM.replace("{work}", work).replace("{run}", PARENTS[parent])
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
