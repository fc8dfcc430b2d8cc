"""Two keys at one queue: who sends ten times as much is served no more often, over all routers together."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

from tests.endtoend.test_shared_concurrency import Busy, two_routers
from tests.router.support import Client, Engine, RouterProcess, post, until


class Keyed:
    """So many clients of each of the routers, all with one key, each with one request after the other."""

    def __init__(self, key: str, routers: list[RouterProcess], clients: int) -> None:
        self.answers: Counter[str] = Counter()
        """By status, or the code of an error."""
        self._request = post(headers=b"authorization: Bearer %b\r\n" % key.encode())
        self._stopping = False
        self._tasks = [asyncio.create_task(self._ask(each)) for each in routers for _ in range(clients)]

    @property
    def served(self) -> int:
        return self.answers["200"]

    async def _ask(self, router: RouterProcess) -> None:
        client = Client(*await asyncio.open_connection(router.host, router.port))
        try:
            while not self._stopping:
                client.send(self._request)
                answer = await client.answer()
                good = answer.status == 200
                self.answers["200" if good else json.loads(answer.body)["error"]["code"]] += 1
                if not good:
                    await asyncio.sleep(0.02)  # a client that minds no Retry-After, but breathes
        finally:
            client.close()

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


async def served_while(keyed: list[Keyed], *, least: int) -> list[int]:
    """How many of each were served until the last had so many more."""
    before = [each.served for each in keyed]
    await until(lambda: keyed[-1].served - before[-1] >= least, f"{least} more are served", 30)
    return [each.served - count for each, count in zip(keyed, before, strict=True)]


def test_keys_that_share_a_queue_get_the_same_whoever_sends_more_and_higher_ones_ten_times_that(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        engine = await Engine(Busy(0.05).script).start()
        with two_routers(tmp_path, engine, queue={"requests_max": 40}) as (running, routers):
            for router in routers:
                await router.serving()
            await asyncio.to_thread(running.wait_serving)
            keys = {}
            for name, *options in (("greedy",), ("modest",), ("high", "--priority", "5")):
                created = await asyncio.to_thread(running.ctl, "keys", "create", name, *options)
                keys[name] = created.strip()
            greedy = Keyed(keys["greedy"], routers, 100)
            await until(
                lambda: greedy.served > 100 and greedy.answers["queue_full"] > 100, "its queue is full", 20
            )
            modest = Keyed(keys["modest"], routers, 10)
            await until(lambda: modest.served > 20, "the other is served as well", 20)
            more, less = await served_while([greedy, modest], least=300)
            assert abs(more - less) <= 0.15 * (more + less), (more, less)
            assert set(modest.answers) <= {"200", "queue_full"}

            high = Keyed(keys["high"], routers, 20)
            await until(lambda: high.served > 20, "the higher one is served", 20)
            higher, *others = await served_while([high, greedy, modest], least=20)
            assert 7 <= higher / sum(others) <= 14, (higher, others)
            assert set(high.answers) == {"200"}

            for each in (greedy, modest, high):
                await each.stop()
        engine.kill()

    asyncio.run(main())
