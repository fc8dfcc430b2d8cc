"""What memory in use on a GPU means, from readings alone."""

from __future__ import annotations

from collections.abc import Mapping

from llmgw.agent.gpu_holders import Holder
from llmgw.agent.gpu_judgement import Judgement, Leftover, judge_gpus, why_not_released
from llmgw.hardware.gpu_processes import GpuHolders, GpuProcess, GpuProcesses
from llmgw.messages.agent import Gpu

GPU = "GPU-0"


def gpu(total: int | None = 80000, used: int | None = 0, **more: object) -> Gpu:
    return Gpu(index=0, uuid=GPU, name="x", memory_total_mib=total, memory_used_mib=used, **more)  # type: ignore[arg-type]


def identify(pid: int) -> Holder:
    """Pids below 10 are of shard r1-0, from 90 on invisible; a process began at its pid in seconds since boot."""
    if pid >= 90:
        return Holder(pid, "not visible to this agent")
    return Holder(pid, "python train.py", float(pid), "r1-0" if pid < 10 else None)


def judge(
    one: Gpu,
    *sizes: tuple[int, int | None],
    claims: Mapping[str, str] | None = None,
    leftover: Leftover | None = None,
    whole: bool = True,
) -> Judgement:
    listed = GpuProcesses([GpuProcess(GPU, pid, mib) for pid, mib in sizes], whole=whole)
    leftovers = {GPU: leftover} if leftover is not None else {}
    return judge_gpus([one], listed, claims=claims or {}, leftovers=leftovers, identify=identify)


def test_a_stranger_above_the_limit_takes_a_gpu_and_is_named() -> None:
    judgement = judge(gpu(used=20480), (42, 20480))
    (taken,) = judgement.gpus
    assert (taken.usable, taken.unusable_kind) == (False, "held")
    assert taken.reason == "its memory is held by process 42 (python train.py) with 20480 MiB"
    assert judgement.occupied == {GPU: taken.reason}
    (finding,) = judgement.findings
    assert (finding.check, finding.severity, finding.where) == ("gpu-taken", "warning", "GPU 0")
    assert "ps -fp 42" in finding.remedy
    assert "discovery.skip_gpus" in finding.remedy


def test_a_little_is_tolerated_and_the_limit_grows_with_the_gpu() -> None:
    assert judge(gpu(used=4000), (42, 4000)).gpus[0].usable
    assert not judge(gpu(used=4001), (42, 4001)).gpus[0].usable
    assert judge(gpu(total=8192, used=1024), (42, 1024)).gpus[0].usable
    assert not judge(gpu(total=8192, used=1025), (42, 1025)).gpus[0].usable


def test_strangers_are_added_up_and_the_largest_named_first() -> None:
    judgement = judge(gpu(used=9000), *((40 + n, 1000 + n) for n in range(5)))
    assert judgement.gpus[0].reason is not None
    assert judgement.gpus[0].reason.startswith("its memory is held by process 44 (")
    assert judgement.gpus[0].reason.endswith(" and 2 more")


def test_what_is_unknown_never_takes_a_gpu() -> None:
    assert judge(gpu(total=None, used=None), (42, 96073)).gpus[0].usable
    assert judge(gpu(used=None), (42, None)).gpus[0].usable
    assert judge(gpu(used=40000), whole=False).gpus[0].usable


def test_a_stranger_of_unknown_size_has_all_that_is_in_use() -> None:
    assert not judge(gpu(used=40000), (42, None)).gpus[0].usable


def test_a_gpu_of_a_shard_stays_usable_and_a_stranger_beside_it_is_a_finding_only() -> None:
    alone = judge(gpu(used=70000), (5, 70000), claims={GPU: "r1-0"})
    assert (alone.gpus[0].usable, alone.findings) == (True, [])
    beside = judge(gpu(used=75000), (5, 60000), (42, 15000), claims={GPU: "r1-0"})
    assert beside.gpus[0].usable
    (finding,) = beside.findings
    assert finding.check == "gpu-shared"
    assert "process 42 (python train.py) with 15000 MiB" in finding.what
    # In a container with pids of its own nobody can tell whose these are.
    assert judge(gpu(used=70000), (95, 70000), claims={GPU: "r1-0"}).findings == []


def test_a_broken_or_skipped_gpu_keeps_its_own_reason() -> None:
    broken = gpu(used=20480, usable=False, reason="skipped by discovery.skip_gpus")
    judgement = judge(broken, (42, 20480))
    assert judgement.gpus == [broken]
    assert (judgement.findings, judgement.occupied) == ([], {})


def test_memory_left_by_a_shard_takes_the_gpu_until_it_is_gone_also_when_nobody_is_named() -> None:
    leftover = Leftover("r1-0", 500)
    judgement = judge(gpu(used=30000), leftover=leftover)
    assert judgement.gpus[0].reason == (
        "30000 MiB of its memory are in use since shard r1-0 ended, and no process is named for them"
    )
    assert judge(gpu(used=900), leftover=leftover).gpus[0].usable
    # Without knowing what was in use before, it is not known to have been left.
    assert judge(gpu(used=30000), leftover=Leftover("r1-0", None)).gpus[0].usable


def remains(one: Gpu, *sizes: tuple[int, int | None], before: int | None = 0) -> str | None:
    holders = GpuHolders(tuple(GpuProcess(GPU, pid, mib) for pid, mib in sizes), complete=True)
    return why_not_released(one, holders, shard_began_boot_s=50.0, used_before_mib=before, identify=identify)


def test_a_process_that_began_after_the_shard_is_waited_for_and_an_older_one_is_not() -> None:
    assert remains(gpu(used=0)) is None
    held = remains(gpu(used=20000), (60, 20000))
    assert held == "GPU 0 is held by process 60 (python train.py) with 20000 MiB"
    assert remains(gpu(used=20000), (40, 20000)) is None
    assert remains(gpu(used=200), (60, 200)) is None
    assert remains(gpu(used=None), (60, None)) is not None


def test_memory_of_nobody_is_compared_with_what_was_in_use_before() -> None:
    held = remains(gpu(used=30000), before=2000)
    assert held == "GPU 0 has 30000 MiB in use, 2000 before the shard began"
    assert remains(gpu(used=5000), before=2000) is None
    assert remains(gpu(used=30000), before=None) is None
    assert remains(gpu(total=None, used=None), before=None) is None


def test_of_unified_memory_only_what_processes_on_the_gpu_hold_counts() -> None:
    busy_machine = gpu(total=122_570, used=60_000, unified_memory=True)
    assert judge(busy_machine).gpus[0].usable
    assert judge(busy_machine, leftover=Leftover("r1-0", 0)).gpus[0].usable
    assert judge(busy_machine, (42, None)).gpus[0].usable
    taken = judge(busy_machine, (42, 20_480)).gpus[0]
    assert taken.reason == "its memory is held by process 42 (python train.py) with 20480 MiB"
    after = why_not_released(
        busy_machine, GpuHolders(), shard_began_boot_s=10, used_before_mib=1000, identify=identify
    )
    assert after is None
