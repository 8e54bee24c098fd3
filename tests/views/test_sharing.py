"""What several ask is computed once, each address has its turn, and nobody computes for those who have left."""

import asyncio
import threading

import pytest

from qkv.views import sharing
from qkv.views.sharing import MOST_WAITING, THREADS, Busy, Shared, still_wanted


async def soon(said):
    """Until something is true."""
    for _ in range(400):
        if said():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come true within 2 s")


def never() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


def test_one_answer_is_computed_for_all_who_ask_at_the_same_time_and_anew_for_who_asks_later():
    made, go = [], threading.Event()

    def work():
        go.wait(5)
        made.append(len(made))
        return made[-1]

    async def ask():
        shared = Shared()
        asked = [asyncio.ensure_future(shared.get("page", f"10.0.0.{i}", work, never())) for i in range(50)]
        await asyncio.sleep(0.02)
        go.set()
        assert await asyncio.gather(*asked) == [0] * 50
        assert await shared.get("page", "10.0.0.1", work, never()) == 1

    asyncio.run(ask())


def test_the_last_answer_of_a_kind_is_given_again_for_a_while_and_no_other(monkeypatch):
    made, now = [], [0.0]
    monkeypatch.setattr(sharing.time, "monotonic", lambda: now[0])

    def work():
        made.append(len(made))
        return made[-1]

    async def ask():
        shared = Shared()
        given = lambda key, kind: shared.get(key, "me", work, never(), kind)  # noqa: E731
        assert [await given("a", "page"), await given("a", "page"), await given("a", "other")] == [0, 0, 1]
        assert [await given("b", "page"), await given("b", "page"), await given("a", "page")] == [2, 2, 3]
        assert [await given("a", None), await given("a", "page")] == [4, 3]
        now[0] += sharing.KEPT_SECONDS
        assert await given("a", "page") == 5
        shared.end()
        with pytest.raises(Busy):
            await given("a", "page")

    asyncio.run(ask())


def test_an_error_reaches_everybody_who_asked_and_is_not_kept():
    async def ask():
        shared = Shared()
        both = [shared.get("a", "me", lambda: 1 // 0, never()) for _ in range(2)]
        found = await asyncio.gather(*both, return_exceptions=True)
        assert [type(one) for one in found] == [ZeroDivisionError] * 2
        assert await shared.get("a", "me", lambda: 7, never()) == 7

    asyncio.run(ask())


def test_a_computation_ends_when_the_last_who_waited_has_left_and_not_before():
    told, ends = [], threading.Event()

    def work():
        told.append("begun")
        try:
            while not ends.wait(0.005):
                still_wanted()
        except BaseException as error:
            told.append(type(error).__name__)
            raise

    async def ask():
        shared, first, second = Shared(), never(), never()
        asked = [asyncio.ensure_future(shared.get("a", "me", work, left)) for left in (first, second)]
        await soon(lambda: told)
        first.set_result(None)
        await asyncio.sleep(0.05)
        assert told == ["begun"] and asked[0].done() and not asked[1].done()
        second.set_result(None)
        await soon(lambda: len(told) == 2)
        assert told[1] == "_Unwanted"
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in found] == [Busy, Busy]
        assert await shared.get("a", "me", lambda: 7, never()) == 7  # its thread serves the next

    asyncio.run(ask())


def test_addresses_take_turns_and_one_may_wait_for_so_much_only():
    order, go = [], threading.Event()

    def work(name):
        go.wait(5)
        order.append(name)

    async def ask():
        shared = Shared()
        loud = [
            asyncio.ensure_future(shared.get(i, "loud", lambda: work("loud"), never())) for i in range(MOST_WAITING)
        ]
        await asyncio.sleep(0)
        more = [asyncio.ensure_future(shared.get(100 + i, "loud", lambda: work("loud"), never())) for i in range(9)]
        await asyncio.sleep(0)
        quiet = asyncio.ensure_future(shared.get("one", "quiet", lambda: work("quiet"), never()))
        await asyncio.sleep(0)
        go.set()
        await quiet
        assert order.index("quiet") <= 2 * THREADS
        refused = [one for one in await asyncio.gather(*loud, *more, return_exceptions=True) if one is not None]
        assert len(refused) == 9 - THREADS and all(isinstance(one, Busy) for one in refused)

    asyncio.run(ask())


def test_the_end_of_the_server_lets_everybody_go_at_once():
    go = threading.Event()

    async def ask():
        shared = Shared()
        asked = [asyncio.ensure_future(shared.get(i, "me", lambda: go.wait(5), never())) for i in range(9)]
        await asyncio.sleep(0.02)
        shared.end()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(one, Busy) for one in found)
        with pytest.raises(Busy):
            await shared.get("later", "me", lambda: 1, never())

    asyncio.run(ask())
    go.set()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "answers")


def test_outside_a_server_nothing_is_unwanted():
    assert not hasattr(sharing._here, "job")
    still_wanted()
