"""The Helm chart, rendered by Helm's own code and checked against Kubernetes' schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.docker.conftest import DOCKER, PORTS, ROOT, known_metrics, metrics_of, parse_container
from tests.docker.test_monitoring import ALERTS, DASHBOARD

helm = pytest.importorskip("helm_python")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

CHART = DOCKER / "k8s" / "triton-speech"
VERSIONS = ("1.25", "1.29", "1.33", "1.37")
MANIFEST = '{"revision": "r1", "files": {"config.json": {"sha256": "%s", "bytes": 2}}}' % ("0" * 64)
EVERYTHING: dict[str, Any] = {
    "checkpoints": [
        {"name": "VoxCPM2", "source": "https://models.example/VoxCPM2/{revision}", "revision": "r1"},
        {"name": "Other.1", "source": "hub:owner/Other", "revision": "r1", "manifest": MANIFEST},
    ],
    "tokenSecret": "hub-token",
    "imagePullSecrets": [{"name": "registry"}],
    "cache": {"existingClaim": "models", "prune": True},
    "server": {
        "voicesClaim": "voices",
        "args": ["--trace-otlp=http://otel:4318/v1/traces"],
        "nodeSelector": {"gpu": "h200"},
        "runtimeClassName": "nvidia",
    },
    "gateway": {
        "keysSecret": "keys",
        "args": ["--max-characters=1000"],
        "image": {"tag": "cpu"},
        "nodeSelector": {"gpu": "none"},
        "tolerations": [{"key": "speech", "operator": "Exists"}],
        "ingress": {"enabled": True, "tlsSecret": "tls"},
    },
    "autoscaling": {"enabled": True},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
}
ADAPTER: dict[str, Any] = yaml.safe_load((DOCKER / "k8s" / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "cpu": yaml.safe_load((CHART / "values-cpu.yaml").read_text(encoding="utf-8")),
    "everything": EVERYTHING,
    "a shared claim and nothing else": {
        "cache": {"existingClaim": "models"},
        "gateway": {"enabled": False},
        "networkPolicy": {"enabled": False},
    },
}


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    with helm.Chart.load(str(CHART)) as chart:
        rendered = chart.render(values, name="speech", namespace="voice")
    files = [text for name, text in rendered.items() if not name.endswith("NOTES.txt")]
    return [document for text in files for document in yaml.safe_load_all(text) if document]


@pytest.fixture(params=VALUES.values(), ids=VALUES)
def resources(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(request.param)


def named(resources: list[dict[str, Any]], kind: str, part: str = "server") -> dict[str, Any]:
    return next(r for r in resources if r["kind"] == kind and r["metadata"]["name"] == f"speech-{part}")


def pods(resources: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for resource in resources:
        if resource["kind"] in ("StatefulSet", "Deployment"):
            yield resource["spec"]["template"]["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def test_helm_has_nothing_to_say_but_that_an_icon_is_missing() -> None:
    messages = [message["error"] for message in helm.lint(str(CHART))["messages"]]
    assert messages == ["icon is recommended"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_resource_is_one_that_kubernetes_takes(resources: list[dict[str, Any]], version: str) -> None:
    for resource in resources:
        if not resource["apiVersion"].startswith("monitoring.coreos.com/"):  # The Prometheus operator's.
            kubernetes_validate.validate(resource, version, strict=True)


def test_a_resource_that_is_wrong_is_found() -> None:
    service = named(render({}), "Service")
    service["spec"]["ports"][0]["targetPorts"] = "http"
    with pytest.raises(kubernetes_validate.ValidationError, match="targetPorts"):
        kubernetes_validate.validate(service, "1.33", strict=True)


def test_containers_get_commands_that_the_image_takes(resources: list[dict[str, Any]]) -> None:
    for pod in pods(resources):
        for container in containers(pod):
            parse_container(container["args"])


def test_mounts_and_ports_and_selectors_meet_what_they_name(resources: list[dict[str, Any]]) -> None:
    for resource in resources:
        if resource["kind"] not in ("StatefulSet", "Deployment"):
            continue
        spec, template = resource["spec"], resource["spec"]["template"]
        assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
        volumes = {volume["name"] for volume in template["spec"]["volumes"]} | claims
        for container in containers(template["spec"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            ports = {port["name"] for port in container.get("ports", ())}
            probes = [container[name] for name in container if name.endswith("Probe")]
            assert {probe["httpGet"]["port"] for probe in probes} <= ports
    for service in (resource for resource in resources if resource["kind"] == "Service"):
        selected = [
            resource["spec"]["template"]
            for resource in resources
            if resource["kind"] in ("StatefulSet", "Deployment")
            and service["spec"]["selector"].items() <= resource["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert len(selected) == 1
        open_ports = {port["name"] for port in selected[0]["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= open_ports


def test_no_container_is_root_or_may_become_it(resources: list[dict[str, Any]]) -> None:
    for pod in pods(resources):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        for container in containers(pod):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_the_server_alone_may_be_let_at_its_connections() -> None:
    def capabilities(server: dict[str, Any]) -> list[Any]:
        resources = render({"server": server, "checkpoints": EVERYTHING["checkpoints"]})
        return [c["securityContext"]["capabilities"] for pod in pods(resources) for c in containers(pod)]

    asked = capabilities({"ptrace": True})
    assert asked.count({"drop": ["ALL"], "add": ["SYS_PTRACE"]}) == 1
    assert asked.count({"drop": ["ALL"]}) == len(asked) - 1 == 3
    assert capabilities({}) == [{"drop": ["ALL"]}] * 4


def test_probes_ask_the_launcher_and_the_grace_outlasts_the_streams(resources: list[dict[str, Any]]) -> None:
    pod = named(resources, "StatefulSet")["spec"]["template"]["spec"]
    server = pod["containers"][0]
    assert {port["name"]: port["containerPort"] for port in server["ports"]} == {
        name: port for name, port in PORTS.items() if name != "gateway"
    }
    probes = {name: server[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/ready",
        "liveness": "/live",
        "readiness": "/ready",
    }
    assert {probe["port"] for probe in probes.values()} == {"health"}
    serve = parse_container(server["args"])
    startup = server["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= serve.ready_timeout
    waits = float(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert waits > 1.1 * serve.connection_seconds + 5, "clients have not moved on when the drain begins"
    assert pod["terminationGracePeriodSeconds"] > waits + serve.drain_seconds + 10


def test_a_gateway_that_goes_lets_its_speeches_end() -> None:
    """It had ten seconds, whatever the server granted."""
    pod = named(render({"gateway": {"drainSeconds": 90}}), "Deployment", "gateway")["spec"]["template"]["spec"]
    gateway = pod["containers"][0]
    drain = parse_container(gateway["args"]).drain_seconds
    assert drain == 90
    assert pod["terminationGracePeriodSeconds"] > float(gateway["lifecycle"]["preStop"]["exec"]["command"][1]) + drain


def test_checkpoints_come_before_the_server_and_by_revision() -> None:
    resources = render(EVERYTHING)
    pod = named(resources, "StatefulSet")["spec"]["template"]["spec"]
    pulls = [parse_container(container["args"]) for container in pod["initContainers"]]
    assert [(pull.name, pull.revision) for pull in pulls] == [("VoxCPM2", "r1"), ("Other.1", "r1")]
    assert parse_container(pod["containers"][0]["args"]).checkpoints == pulls[0].to
    manifests = named(resources, "ConfigMap", "manifests")["data"]
    assert manifests == {pulls[1].manifest.name: MANIFEST}
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["models"]["readOnly"]


def test_a_checkpoint_without_a_revision_is_refused() -> None:
    with pytest.raises(helm.HelmError, match="revision"):
        render({"checkpoints": [{"name": "VoxCPM2", "source": "hub:owner/VoxCPM2"}]})


def test_each_server_has_a_gpu_and_the_cpu_values_ask_for_none() -> None:
    def limits(values: dict[str, Any]) -> Any:
        pod = named(render(values), "StatefulSet")["spec"]["template"]["spec"]
        return pod["containers"][0]["resources"]["limits"]

    assert limits({})["nvidia.com/gpu"] == 1
    assert limits(VALUES["cpu"]).get("nvidia.com/gpu") is None
    pod = named(render(EVERYTHING), "StatefulSet")["spec"]["template"]["spec"]
    assert pod["runtimeClassName"] == "nvidia"


def test_every_container_says_what_it_needs(resources: list[dict[str, Any]]) -> None:
    """A namespace with a quota takes no pod that does not."""
    for pod in pods(resources):
        for container in containers(pod):
            needs = container["resources"]
            assert {"cpu", "memory"} <= set(needs["requests"])
            assert "memory" in needs["limits"]


def test_a_gateway_may_have_an_image_and_nodes_of_its_own() -> None:
    def pod(part: str, kind: str) -> Any:
        return named(render(EVERYTHING), kind, part)["spec"]["template"]["spec"]

    gateway, server = pod("gateway", "Deployment"), pod("server", "StatefulSet")
    assert gateway["containers"][0]["image"] == "triton-speech:cpu"
    assert gateway["nodeSelector"] == {"gpu": "none"}
    assert {container["image"] for container in containers(server)} == {"triton-speech:gpu"}
    assert server["nodeSelector"] == {"gpu": "h200"}
    usual = named(render({}), "Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0]
    assert usual["image"] == "triton-speech:gpu"


@pytest.mark.parametrize(("part", "kind"), [("server", "StatefulSet"), ("gateway", "Deployment")])
def test_a_node_that_is_emptied_takes_one_pod_at_a_time(part: str, kind: str) -> None:
    resources = render({})
    budget = named(resources, "PodDisruptionBudget", part)["spec"]
    assert budget["maxUnavailable"] == 1
    labels = named(resources, kind, part)["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert budget["selector"]["matchLabels"]["app.kubernetes.io/component"] == part


def test_the_gateway_reaches_the_headless_service() -> None:
    resources = render({})
    service = named(resources, "Service")
    assert service["spec"]["clusterIP"] == "None"
    gateway = named(resources, "Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert parse_container(gateway["args"]).triton == f"{service['metadata']['name']}:{ports['grpc']}"


def test_the_autoscaler_asks_for_what_the_adapter_offers() -> None:
    scaler = named(render(EVERYTHING), "HorizontalPodAutoscaler")
    asked = {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}
    assert asked == {rule["name"]["as"] for rule in ADAPTER["rules"]["custom"]}
    assert named(render(EVERYTHING), "StatefulSet")["spec"].get("replicas") is None


def test_the_adapter_asks_for_metrics_that_exist() -> None:
    for rule in ADAPTER["rules"]["custom"]:
        query = rule["metricsQuery"].replace("<<.GroupBy>>", "pod").replace("<<.LabelMatchers>>", 'namespace="voice"')
        names = metrics_of(query) | metrics_of(rule["seriesQuery"])
        assert {"triton_speech_slots_in_use", "triton_speech_queue_depth"} <= names <= known_metrics()


@pytest.mark.parametrize("values", ["defaults", "cpu"])
def test_another_server_is_started_before_streams_wait(values: str) -> None:
    with helm.Chart.load(str(CHART)) as chart:
        merged = chart.merge_values(VALUES[values])
    config = ROOT / "model_repository" / "voxcpm2_talker" / "configs" / f"{merged['server']['profile']}.pbtxt"
    slots = re.search(r'"max_num_seqs" value: { string_value: "(\d+)"', config.read_text(encoding="utf-8"))
    assert slots is not None
    assert merged["autoscaling"]["streamsPerServer"] < int(slots[1])


def test_tritons_ports_are_closed_to_all_but_the_gateway_and_named_clients() -> None:
    rules = named(render({}), "NetworkPolicy")["spec"]["ingress"]
    closed = [rule for rule in rules if {port["port"] for port in rule["ports"]} & {"http", "grpc"}]
    assert len(closed) == 1
    assert [next(iter(source)) for source in closed[0]["from"]] == ["podSelector", "podSelector"]


def test_the_cluster_has_the_same_alerts_jobs_and_dashboard() -> None:
    resources = render(EVERYTHING)
    monitoring = {r["kind"]: r["spec"] for r in resources if r["apiVersion"].startswith("monitoring.coreos.com/")}
    assert monitoring["PrometheusRule"] == ALERTS
    jobs = {
        endpoint["port"]: relabeling["replacement"]
        for endpoint in monitoring["PodMonitor"]["podMetricsEndpoints"]
        for relabeling in endpoint["relabelings"]
        if relabeling.get("targetLabel") == "job"
    }
    assert jobs == {"metrics": "triton", "health": "launcher", "http": "gateway"}
    dashboard = named(resources, "ConfigMap", "dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["triton-speech.json"]) == DASHBOARD
