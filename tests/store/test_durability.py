"""What was acknowledged survives kill -9, and what cannot be written yet is kept and written later."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from llmgw.server.store.errors import StoreError
from llmgw.server.store.store import DATABASE_NAME, Store
from tests.store.running import finish, on_a_loop, start

WRITE_FOR_EVER = """
    import asyncio, sys
    from pathlib import Path
    from llmgw.server.store.store import Store

    async def main():
        store = await Store.open(Path(sys.argv[1]), 1.0)
        store.put_node("node01", 1.0)
        number = 0
        while True:
            for _ in range(20):
                store.record("replica", f"r{number}", "ready", float(number))
                number += 1
            store.put_cordoned("node01", (number // 20) % 2 == 1, float(number))
            await store.flush()
            print(number, flush=True)

    asyncio.run(main())
"""


@on_a_loop
async def test_everything_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    acknowledged = 0
    for life in range(2):
        writer = start(WRITE_FOR_EVER, tmp_path)
        assert writer.stdout is not None
        lines = 0
        while lines < 10 + 7 * life:
            line = writer.stdout.readline().strip()
            assert line or writer.poll() is None
            lines += line.isdigit()
        writer.send_signal(signal.SIGKILL)
        out, _ = writer.communicate()
        acknowledged = int(([line] + [more for more in out.split("\n") if more.isdigit()])[-1])

        store = await Store.open(tmp_path, 2.0)
        entries = await store.history(limit=1000)
        cordoned = store.nodes()["node01"].cordoned
        stored = {int(entry.subject[1:]) for entry in entries if entry.subject.startswith("r")}
        assert set(range(acknowledged)) <= stored
        assert stored == set(range(len(stored))), "a later transition without an earlier one"
        if len(stored) == acknowledged:
            assert cordoned == ((acknowledged // 20) % 2 == 1)
        await store.remove_node("node01", 2.0)
        await store.flush()
        await store._commit(lambda connection: connection.exec_driver_sql("DELETE FROM history"), lambda _: None)
        await store.close()


FULL_DISK = """
    import asyncio, json, os, resource, sys
    from pathlib import Path
    from llmgw.config.catalog import Catalog
    from llmgw.server.store.errors import StoreError
    from llmgw.server.store.store import Store

    async def until(condition):
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)

    async def main():
        said = {}
        store = await Store.open(Path(sys.argv[1]), 1.0)
        store.put_node("node01", 1.0)
        await store.create_token("old", "0" * 64, 1.0)
        await store.flush()
        # No file may grow any more: what a full disk does, for this process alone.
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        for number in range(3000):
            store.record("replica", f"r{number}", "ready", float(number), reason="x" * 50)
        store.put_draining("node01", True, 2.0)
        await until(store.findings)
        said["findings"] = [[finding.check, finding.what, finding.remedy] for finding in store.findings()]
        said["draining_meanwhile"] = store.nodes()["node01"].draining
        said["history_meanwhile"] = len(await store.history())
        for name, ask in {
            "flush": store.flush(0.05),
            "catalog": store.add_catalog_revision(Catalog(), "me", "", 3.0),
            "token": store.create_token("new", "1" * 64, 3.0),
        }.items():
            try:
                await ask
            except StoreError as error:
                said[name] = str(error)
        said["tokens_meanwhile"] = sorted(store.token_hashes())
        store.record("replica", "last", "ready", 9.0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await store.flush(20)
        said["findings_after"] = [finding.check for finding in store.findings()]
        await store.close()
        print("said:" + json.dumps(said))

    asyncio.run(main())
"""


@on_a_loop
async def test_a_full_disk_loses_nothing_and_says_so_and_operators_are_told_at_once(tmp_path: Path) -> None:
    said = json.loads(finish(FULL_DISK, tmp_path).split("said:")[1])
    assert said["findings"][0][0] == "store-write-failing"
    assert "changes wait to be stored" in said["findings"][0][1]
    assert "has space" in said["findings"][0][2]
    assert said["draining_meanwhile"] is True
    assert said["history_meanwhile"] == 0
    assert "are not stored yet" in said["flush"]
    for refused in ("catalog", "token"):
        assert f"{tmp_path / DATABASE_NAME} cannot be read or written" in said[refused]
    assert said["tokens_meanwhile"] == ["old"]
    assert said["findings_after"] == []

    store = await Store.open(tmp_path, 10.0)
    subjects = []
    before = None
    while page := await store.history(before=before, limit=1000):
        subjects += [entry.subject for entry in page]
        before = page[-1].id
    assert subjects[::-1] == [*(f"r{number}" for number in range(3000)), "last"]
    assert store.nodes()["node01"].draining
    assert list(store.token_hashes()) == ["old"]
    assert await store.latest_catalog() is None
    await store.close()


def test_closing_with_a_full_disk_ends_in_time_and_says_what_is_lost(tmp_path: Path) -> None:
    said = finish(
        """
        import asyncio, resource, sys
        from pathlib import Path
        from llmgw.server.store.errors import StoreError
        from llmgw.server.store.lock import StateLock
        from llmgw.server.store.store import Store

        async def main():
            store = await Store.open(Path(sys.argv[1]), 1.0)
            await store.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            store.record("replica", "r1", "ready", 1.0)
            flush = asyncio.create_task(store.flush())
            try:
                await store.close(0.3)
            except StoreError as error:
                print(f"refused: {error}")
            print("flush:", repr((await asyncio.wait_for(asyncio.gather(flush, return_exceptions=True), 5))[0]))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            StateLock(Path(sys.argv[1]))
            print("unlocked")

        asyncio.run(main())
        """,
        tmp_path,
    )
    assert "refused: the store was closed with 1 changes unstored: " in said
    assert "flush: StoreError(" in said
    assert said.splitlines()[-1] == "unlocked"


LOG_REMOVED = """
    import asyncio, os, sys
    from pathlib import Path
    from llmgw.server.store.store import DATABASE_NAME, Store

    async def main():
        state = Path(sys.argv[1])
        store = await Store.open(state, 1.0)
        for number, garbage in enumerate([None, b"not a log"]):
            store.record("replica", f"before-{number}", "ready", 2.0)
            await store.flush()
            log = state / f"{DATABASE_NAME}-wal"
            log.unlink()
            if garbage is not None:
                log.write_bytes(garbage)
            store.record("replica", f"after-{number}", "ready", 3.0)
            await store.flush()
            read = [entry.subject for entry in await store.history(limit=10)]
            assert read[:2] == [f"after-{number}", f"before-{number}"], read
        os._exit(0)  # as kill -9 would end it

    asyncio.run(main())
"""


@on_a_loop
async def test_a_log_removed_under_the_store_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    process = start(LOG_REMOVED, tmp_path)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert "Traceback" not in out + err
    store = await Store.open(tmp_path, 4.0)
    kept = {entry.subject for entry in await store.history(limit=10)}
    assert {"before-0", "after-0", "before-1", "after-1"} <= kept
    await store.close()


@on_a_loop
async def test_nothing_is_said_to_be_stored_in_a_database_that_was_replaced(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    database = tmp_path / DATABASE_NAME
    database.rename(tmp_path / "elsewhere")
    store.record("replica", "r1", "ready", 2.0)
    with pytest.raises(StoreError, match="removed or replaced"):
        await store.flush(0.5)
    assert any("removed or replaced" in finding.what for finding in store.findings())
    (tmp_path / "elsewhere").rename(database)
    await store.flush(10.0)
    await store.close()
