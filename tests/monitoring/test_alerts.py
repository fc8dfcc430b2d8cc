"""examples/prometheus.yml and alerts.yml: of the shapes that Prometheus reads, and of metrics that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.queries import ROOT, Reader
from tests.test_every_command import EVERY

EXAMPLES = ROOT / "examples"
ALERTS = yaml.safe_load((EXAMPLES / "alerts.yml").read_text())
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]}
DURATION = re.compile(r"([0-9]+(ms|[smhdwy]))+")
JOBS = {"llmgw", "llmgw-agents"}


def uncommented() -> dict[str, Any]:
    """prometheus.yml with its commented jobs in place of the first."""
    text = (EXAMPLES / "prometheus.yml").read_text()
    config: dict[str, Any] = yaml.safe_load(
        re.sub(r"^(\s*)# (?=(- | {2,})[\w\"-])", r"\1", text, flags=re.MULTILINE)
    )
    return config


def test_the_rules_have_the_shape_that_prometheus_reads() -> None:
    # https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/
    assert set(ALERTS) == {"groups"}
    names = [rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]]
    assert len(names) == len(set(names))
    for group in ALERTS["groups"]:
        assert set(group) <= {"name", "rules", "interval"}
    for rule in RULES.values():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert DURATION.fullmatch(rule.get("for", "1m"))
        assert re.fullmatch(r"Llmgw[A-Z]\w+", rule["alert"])


@pytest.mark.parametrize("name", sorted(RULES))
def test_an_alert_asks_for_what_there_is_and_says_what_is_wrong_why_and_what_to_type(name: str) -> None:
    rule = RULES[name]
    reader = Reader(rule["expr"], JOBS)
    assert reader.wrong == []
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "remedy"}
    for text in rule["annotations"].values():
        assert len(text) > 10
        for label in re.findall(r"\$labels\.(\w+)", text):
            assert label in reader.labels, f"{{{{ $labels.{label} }}}} is empty: {sorted(reader.labels)}"


def test_events_that_are_counted_are_rounded_since_increase_makes_more_than_one_of_one() -> None:
    # https://prometheus.io/docs/prometheus/latest/querying/functions/#increase: "it is possible to get a
    # non-integer result even if a counter increases only by integer increments".
    for name, rule in RULES.items():
        for over in re.findall(r"increase\(.+?\)+ > ([0-9.]+)", rule["expr"]):
            counted = float(over) > 0 or "$value" in rule["annotations"]["summary"]
            assert not counted or rule["expr"].startswith("round("), name


def test_whatever_wakes_an_operator_has_an_alert() -> None:
    text = " ".join(rule["expr"] for rule in RULES.values())
    for part in (
        *('up{job="llmgw"}', 'llmgw_node_state{state="lost"}', "llmgw_replicas_wanted", 'status_class="5xx"'),
        *("llmgw_time_to_first_token_seconds", "llmgw_queue_requests", "llmgw_engine_cache_used_ratio"),
        *("llmgw_certificate_seconds_left", 'state="standby"', "llmgw_fabric_problems", "llmgw_ib_port_active"),
        *("llmgw_ib_port_counter_total", "llmgw_gpu_ecc_errors_total", "llmgw_gpu_xid_errors_total"),
        *("llmgw_gpu_temperature_celsius", 'llmgw_router_state{state="silent"}', "llmgw_loop_pause_seconds"),
        *("llmgw_router_outcomes_dropped_total", "store-", "work-dir-full", "llmgw_fabric_managers_answer"),
    ):
        assert part in text, f"nothing alerts on {part}"


def test_the_commands_and_chapters_of_remedies_exist() -> None:
    operations = (ROOT / "docs" / "operations.md").read_text()
    for name, rule in RULES.items():
        for command in re.findall(r"llmgw (?:ctl [a-z-]+|doctor|server)", rule["annotations"]["remedy"]):
            assert any(known == command or known.startswith(f"{command} ") for known in EVERY), (
                f"{name}: {command}"
            )
        for title in re.findall(r"docs/operations\.md, \"([^\"]+)\"", rule["annotations"]["remedy"]):
            assert f"## {title}\n" in operations, f"{name}: {title}"


def test_a_query_that_asks_for_what_is_not_there_is_found() -> None:
    for text, part in (
        ("llmgw_nodes_total", "there is no"),
        ("llmgw_nodes{node='n1'}", "has no label node"),
        ("llmgw_nodes{state='broken'}", "never has state"),
        ("sum by (node) (llmgw_nodes)", "by node"),
        ("llmgw_requests_total", "is a counter"),
        ("rate(llmgw_nodes[5m])", "is no counter"),
        ("llmgw_turn_seconds", "is a histogram"),
        ("histogram_quantile(0.9, sum(rate(llmgw_turn_seconds_bucket[5m])))", "needs buckets"),
        ("llmgw_queue_requests / llmgw_nodes", "between series"),
        ("llmgw_gpu_usable == 0", "job says by whom"),
        ("up{job='other'} == 0", "no job"),
        ("llmgw_queue_requests or llmgw_nodes", "between series"),
        ("sum(", ""),
    ):
        wrong = Reader(text, JOBS).wrong
        assert wrong, text
        assert part in wrong[0], wrong


def test_the_scrape_s_configuration_has_the_jobs_that_alerts_know() -> None:
    config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
    assert set(config) == {"global", "rule_files", "alerting", "scrape_configs"}
    assert config["rule_files"] == ["alerts.yml"]
    assert [job["job_name"] for job in config["scrape_configs"]] == ["llmgw"]
    whole = uncommented()
    assert {job["job_name"] for job in whole["scrape_configs"]} == JOBS
    for job in whole["scrape_configs"]:
        loopback = all(
            target.startswith("127.0.0.1:") for each in job["static_configs"] for target in each["targets"]
        )
        secure = job.get("scheme") == "https" and "credentials_file" in job.get("authorization", {})
        assert loopback or secure, "a token never travels in the clear"


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


@needs_promtool
def test_promtool_takes_both_files() -> None:
    for arguments in (["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"]):
        done = subprocess.run(["promtool", *arguments], cwd=EXAMPLES, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stdout + done.stderr


def series(name: str, values: str, /, **labels: str) -> dict[str, str]:
    """One series of a test: a value a minute, in promtool's short form (`1x9` is ten times 1)."""
    labels = {"job": "llmgw", "instance": "gw:8081"} | labels
    return {
        "series": name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}",
        "values": values,
    }


PORT = {"node": "n1", "adapter": "mlx5_0", "port": "1"}
XID = {"node": "n1", "gpu": "3", "xid": "79"}
FIRING: list[tuple[str, list[dict[str, str]], list[str]]] = [
    (
        "a healthy hour",
        [series("up", "1x60"), series("llmgw_router_state", "1x60", router="r0", state="serving")],
        [],
    ),
    ("the server is down", [series("up", "1x10 0x50")], ["LlmgwServerDown"]),
    ("it is not scraped at all", [series("up", "1x60", job="other")], ["LlmgwServerDown"]),
    (
        "all routers are gone",
        [series("up", "1x60"), series("llmgw_router_state", "1x5 _x55", router="r0", state="serving")],
        ["LlmgwNoRouter"],
    ),
    (
        "a port that was up goes down, and another was never up",
        [
            series("llmgw_ib_port_active", "1x20 _x40", **PORT, state="ACTIVE", phys_state="LinkUp"),
            series("llmgw_ib_port_active", "_x20 0x40", **PORT, state="DOWN", phys_state="Polling"),
            series(
                "llmgw_ib_port_active",
                "0x60",
                **PORT | {"adapter": "mlx5_9"},
                state="DOWN",
                phys_state="Disabled",
            ),
        ],
        ["LlmgwPortDown"],
    ),
    (
        "a GPU has its first Xid",
        [
            series("llmgw_gpu_usable", "1x60", node="n1", gpu="3"),
            series("llmgw_gpu_xid_errors_total", "_x50 1x10", **XID),
        ],
        ["LlmgwGpuXid"],
    ),
    (
        "an Xid of long ago",
        [
            series("llmgw_gpu_usable", "1x60", node="n1", gpu="3"),
            series("llmgw_gpu_xid_errors_total", "1x60", **XID),
        ],
        [],
    ),
    (
        "a model that is wanted has nothing, and one that is scaled to 0 has nothing either",
        [
            series("llmgw_endpoints", "0x60", model="a"),
            series("llmgw_endpoints", "0x60", model="b"),
            series("llmgw_replicas_wanted", "2x60", model="a", profile="default"),
            series("llmgw_replicas_wanted", "0x60", model="b", profile="default"),
            series("llmgw_replicas", "0x60", model="a", profile="default", state="ready"),
        ],
        ["LlmgwModelDown", "LlmgwReplicasMissing"],
    ),
    (
        "one request in ten fails",
        [
            series("llmgw_requests_total", "0+54x60", model="a", status_class="2xx"),
            series("llmgw_requests_total", "0+6x60", model="a", status_class="5xx"),
        ],
        ["LlmgwErrorRate"],
    ),
    (
        "streams wait long for their first token",
        [
            series("llmgw_time_to_first_token_seconds_bucket", "0+1x60", model="a", le="5"),
            series("llmgw_time_to_first_token_seconds_bucket", "0+60x60", model="a", le="30"),
            series("llmgw_time_to_first_token_seconds_bucket", "0+60x60", model="a", le="+Inf"),
        ],
        ["LlmgwSlowFirstToken"],
    ),
    (
        "a certificate has a day left",
        [series("llmgw_certificate_seconds_left", "86400x90", name="s", kind="server")],
        ["LlmgwCertificateEndsSoon"],
    ),
]


@needs_promtool
@pytest.mark.parametrize(("told", "alerts"), [case[1:] for case in FIRING], ids=[case[0] for case in FIRING])
def test_alerts_fire_when_they_should_and_only_then(
    tmp_path: Path, told: list[dict[str, str]], alerts: list[str]
) -> None:
    wanted = [
        *alerts,
        *(["LlmgwServerDown"] if not any(each["series"].startswith("up{") for each in told) else []),
    ]
    query = {
        "expr": "count by (alertname) (ALERTS{alertstate='firing'})",
        "eval_time": "59m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(wanted)],
    }
    test = {
        "rule_files": [str(EXAMPLES / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": told, "promql_expr_test": [query]}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
