"""Everything that can be wrong with the state folder gets a sentence, and the folder stays as it was."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from llmgw.server.store.errors import StoreError
from llmgw.server.store.lock import StateLock
from llmgw.server.store.store import DATABASE_NAME, Store
from tests.store.running import finish, on_a_loop, start

OPEN = """
    import asyncio, sys
    from pathlib import Path
    from llmgw.server.store.errors import StoreError
    from llmgw.server.store.store import Store

    async def main(state):
        store = await Store.open(state, 1.0)
        print("open", flush=True)
        await store.close()

    for path in sys.argv[1:]:
        try:
            asyncio.run(main(Path(path)))
        except StoreError as error:
            print(f"refused: {error}")
"""


async def refusal(state: Path) -> str:
    with pytest.raises(StoreError) as caught:
        await Store.open(state, 1.0)
    return str(caught.value)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@on_a_loop
async def test_folder_database_and_copies_are_the_owners_alone(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    umask = os.umask(0)
    try:
        store = await Store.open(state, 1.0)
        store.record("node", "n", "e", 1.0)
        await store.flush()
        modes = {path.name: mode(path) for path in state.iterdir()}
        await store.close()
    finally:
        os.umask(umask)
    assert mode(state) == 0o700
    assert set(modes.values()) == {0o600}
    assert {DATABASE_NAME, f"{DATABASE_NAME}-wal", "lock"} <= set(modes)


@on_a_loop
async def test_a_database_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    await (await Store.open(tmp_path, 1.0)).close()
    (tmp_path / DATABASE_NAME).chmod(0o644)
    await (await Store.open(tmp_path, 2.0)).close()
    assert mode(tmp_path / DATABASE_NAME) == 0o600


@on_a_loop
async def test_a_second_server_is_refused_and_told_who_has_the_folder(tmp_path: Path) -> None:
    first = await Store.open(tmp_path, 1.0)
    said = finish(OPEN, tmp_path)
    assert f"another llmgw server (process {os.getpid()}) uses the state folder {tmp_path}" in said
    assert "stop that one first" in said
    first.record("node", "n", "e", 1.0)
    await first.close()
    await (await Store.open(tmp_path, 2.0)).close()


def test_the_lock_is_free_as_soon_as_its_holder_is_killed(tmp_path: Path) -> None:
    holder = start(
        """
        import signal, sys
        from pathlib import Path
        from llmgw.server.store.lock import StateLock

        lock = StateLock(Path(sys.argv[1]))
        print("locked", flush=True)
        signal.pause()
        """,
        tmp_path,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "locked"
    with pytest.raises(StoreError, match=f"process {holder.pid}"):
        StateLock(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    StateLock(tmp_path).release()


def test_a_child_that_outlives_the_server_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    child = start("input()")
    lock.release()
    StateLock(tmp_path).release()
    child.kill()
    child.communicate()


@on_a_loop
async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    path.write_text("models: []\n" * 1_000)
    before = path.read_bytes()
    assert f"{path} is not an SQLite database; move it away" in await refusal(tmp_path)
    assert path.read_bytes() == before


@on_a_loop
async def test_another_programs_database_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    said = await refusal(tmp_path)
    assert "is an SQLite database of some other program (it has a table recipes)" in said
    with closing(sqlite3.connect(path)) as other:
        assert [row[0] for row in other.execute("SELECT name FROM sqlite_master")] == ["recipes"]


@on_a_loop
async def test_a_folder_in_the_databases_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).mkdir()
    assert f"{tmp_path / DATABASE_NAME} is a folder" in await refusal(tmp_path)


@on_a_loop
async def test_a_pipe_in_the_databases_place_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / DATABASE_NAME)
    assert "is not an ordinary file" in await refusal(tmp_path)


@on_a_loop
async def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("")
    assert f"{state} is in the way: a folder is needed there and it is a file" in await refusal(state)
    assert "a folder is needed there" in await refusal(state / "below")


@on_a_loop
async def test_a_damaged_database_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    for number in range(5_000):
        store.record("node", f"n{number}", "e", 1.0, reason="x" * 100)
    await store.close()
    path = tmp_path / DATABASE_NAME
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(os.urandom(8192))
    before = path.read_bytes()
    said = await refusal(tmp_path)
    assert f"{path} is damaged: " in said
    assert "restore one of llmgw.db.backup-*" in said
    assert path.read_bytes() == before


@on_a_loop
async def test_a_database_cut_short_is_refused(tmp_path: Path) -> None:
    await (await Store.open(tmp_path, 1.0)).close()
    path = tmp_path / DATABASE_NAME
    os.truncate(path, 5_000)
    assert f"{path} is damaged: " in await refusal(tmp_path)


@on_a_loop
async def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    state, database, later = tmp_path / "state", tmp_path / "database", tmp_path / "later"
    state.mkdir(mode=0o500)
    for folder in (database, later):
        await (await Store.open(folder, 1.0)).close()
    (database / DATABASE_NAME).chmod(0o400)
    later.chmod(0o500)
    said = finish(OPEN, state, state / "below", database, later).splitlines()
    for folder in (state, later):
        folder.chmod(0o700)
    assert len(said) == 4
    assert said[0].startswith(f"refused: {state / 'lock'} cannot be opened for writing by user id")
    assert said[1].startswith(f"refused: {state / 'below'} cannot be opened for writing by user id")
    assert said[2].startswith(f"refused: {database / DATABASE_NAME} cannot be opened for writing by user id")
    assert said[3].startswith(f"refused: {later / DATABASE_NAME} cannot be ")
    assert f"make {later / DATABASE_NAME}" in said[3]


@on_a_loop
async def test_a_disk_without_space_is_refused_and_can_be_tried_again(tmp_path: Path) -> None:
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
    said = finish(limited + textwrap.dedent(OPEN), tmp_path)
    assert f"refused: {tmp_path / DATABASE_NAME} cannot be read or written" in said
    assert "has space" in said
    await (await Store.open(tmp_path, 2.0)).close()


@on_a_loop
async def test_a_refused_start_leaves_the_folder_unlocked(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    path.write_text("x" * 100)
    await refusal(tmp_path)
    path.unlink()
    await (await Store.open(tmp_path, 2.0)).close()


@on_a_loop
async def test_a_path_with_any_characters_works(tmp_path: Path) -> None:
    state = tmp_path / "a %s b?c#d ü"
    await (await Store.open(state, 1.0)).close()
    assert (state / DATABASE_NAME).is_file()


def test_a_server_that_dies_of_an_error_does_not_hang_on_the_stores_threads(tmp_path: Path) -> None:
    process = start(
        """
        import asyncio, sys
        from pathlib import Path
        from llmgw.server.store.store import Store

        async def main():
            store = await Store.open(Path(sys.argv[1]), 1.0)
            await store.history()
            raise SystemExit(3)

        asyncio.run(main())
        """,
        tmp_path,
    )
    process.communicate(timeout=20)
    assert process.returncode == 3
