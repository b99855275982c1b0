"""Prometheus and Grafana: every expression names metrics that exist, every target a port that is served."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docker.conftest import DOCKER, PORTS, known_metrics, metrics_of
from tests.docker.test_compose import BASE

PROMETHEUS, GRAFANA = DOCKER / "prometheus", DOCKER / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "triton-speech.json").read_text(encoding="utf-8"))
ALERTS: dict[str, Any] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]


def check(expression: str) -> None:
    known = known_metrics() | {"up"}
    known |= {f"{name}_bucket" for name in known if name.endswith(("_seconds", "_factor"))}
    names = metrics_of(expression)
    assert names
    assert names <= known, names - known


def test_the_metrics_document_names_what_the_server_and_the_gateway_tell() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    from triton_speech.serve.health import Health, _metrics
    from triton_speech.stage import catalogue
    from triton_speech_client.gateway.metrics import Metrics

    stages = {text for text in vars(catalogue).values() if isinstance(text, str) and text.startswith("triton_speech_")}
    launcher = {sample.name for sample in samples(text_string_to_metric_families(_metrics(Health().report()) + "\n"))}
    families = text_string_to_metric_families(Metrics().response().body.decode())
    gateway = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in families
        if not family.name.endswith("_created")
    }
    assert len(launcher) == 5
    assert stages | launcher | gateway == {name for name in known_metrics() if name.startswith("triton_speech_")}


def samples(families: Any) -> Iterator[Any]:
    for family in families:
        yield from family.samples


def test_every_panel_asks_for_metrics_that_exist() -> None:
    targets = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert len(targets) > 30
    for target in targets:
        check(target["expr"])


def test_the_dashboard_shows_what_runs_the_service() -> None:
    shown = {
        name for panel in DASHBOARD["panels"] for target in panel["targets"] for name in metrics_of(target["expr"])
    }
    assert shown >= {
        "triton_speech_time_to_first_audio_seconds_bucket",
        "triton_speech_real_time_factor_bucket",
        "triton_speech_live_requests",
        "triton_speech_queue_depth",
        "triton_speech_batch_streams_total",
        "triton_speech_requests_total",
        "triton_speech_launcher_ready",
        "nv_gpu_utilization",
    }
    variable = DASHBOARD["templating"]["list"][0]["query"]["query"]
    assert variable.partition("(")[2].partition(",")[0] in known_metrics()


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        own = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not own & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= own
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_asks_for_metrics_that_exist(rule: dict[str, Any]) -> None:
    check(rule["expr"])
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in ("page", "warn", "info")


def test_an_expression_with_an_unknown_metric_is_found() -> None:
    with pytest.raises(AssertionError, match="triton_speech_ttfa"):
        check("histogram_quantile(0.9, sum by (le) (rate(triton_speech_ttfa_bucket[5m])))")


def test_prometheus_scrapes_ports_that_are_served_and_reads_files_that_exist() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert targets == {
        "triton": [f"server:{PORTS['metrics']}"],
        "launcher": [f"server:{PORTS['health']}"],
        "gateway": [f"gateway:{PORTS['gateway']}"],
    }
    assert {target.partition(":")[0] for hosts in targets.values() for target in hosts} <= set(BASE["services"])
    assert all((PROMETHEUS / file).is_file() for file in config["rule_files"])
    assert all(f'job="{job}"' not in str(RULES) or job in targets for job in ("triton", "launcher", "gateway"))


def test_grafana_finds_its_data_and_its_dashboard() -> None:
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text(encoding="utf-8"))
    datasource = source["datasources"][0]
    assert datasource["url"] == "http://prometheus:9090"
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {datasource["uid"]}
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/triton-speech.yaml").read_text(encoding="utf-8"))
    folder = provider["providers"][0]["options"]["path"]
    mounts = dict(volume.split(":")[:2][::-1] for volume in BASE["services"]["grafana"]["volumes"])
    home = Path(BASE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == folder
    assert (DOCKER / mounts[folder] / home.name).is_file()


def test_alerts_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not there")
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        said = subprocess.run(
            [promtool, *command], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60, check=False
        )
        assert said.returncode == 0, said.stdout + said.stderr
