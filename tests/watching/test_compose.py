"""compose.yaml and the Dockerfile, as far as they can be checked where no container runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledger.settings import Settings
from tests.support.dashboards import GRAFANA

ROOT = GRAFANA.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PINNED = re.compile(r"^[a-z0-9./-]+:v?[0-9]+\.[0-9]+(\.[0-9]+)?(-[a-z]+)*$")
EVERY_SERVICE = pytest.mark.parametrize("name", SERVICES)


def _mounts(name: str) -> dict[str, str]:
    """Return the files and folders of the repository that a service sees, by where it sees them."""
    volumes = [volume.split(":") for volume in SERVICES[name].get("volumes", ())]
    for source, _, *options in volumes:
        assert not source.startswith("./") or options == ["ro"]
    return {target: source for source, target, *_ in volumes if source.startswith("./")}


def test_the_services_are_those_of_production() -> None:
    assert set(SERVICES) == {"ledger", "migrate", "database", "redis", "prometheus", "grafana"}


@EVERY_SERVICE
def test_every_image_is_pinned(name: str) -> None:
    image = SERVICES[name]["image"]
    assert PINNED.match(image), image
    if "build" in SERVICES[name]:
        assert image == f"gateway-ledger:{PROJECT['version']}"


@EVERY_SERVICE
def test_a_service_can_do_no_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    if name != "database":  # Its image changes to its own user by itself, and owns the folder of its data.
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


@EVERY_SERVICE
def test_every_service_says_whether_it_is_well_and_waits_for_what_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert ("healthcheck" in service) == (name != "migrate")
    for other, wanted in service.get("depends_on", {}).items():
        assert wanted["condition"] == ("service_completed_successfully" if other == "migrate" else "service_healthy")
        assert set(service["networks"]) & set(SERVICES[other]["networks"])


@EVERY_SERVICE
def test_every_file_and_volume_that_is_mounted_is_there(name: str) -> None:
    for source in _mounts(name).values():
        assert (ROOT / source).exists(), source
    for volume in SERVICES[name].get("volumes", ()):
        source = volume.split(":")[0]
        assert source.startswith("./") or source in COMPOSE["volumes"]
    for config in SERVICES[name].get("configs", ()):
        assert config["source"] in COMPOSE["configs"]
    assert set(SERVICES[name]["networks"]) <= set(COMPOSE["networks"])


def test_only_the_migration_knows_the_owner() -> None:
    for name, service in SERVICES.items():
        text = str(service)
        assert ("OWNER" in text) == (name in {"migrate", "database"})


def test_the_service_is_told_what_it_understands() -> None:
    known = {f"LEDGER_{field.upper()}" for field in Settings.__struct_fields__} | {"LEDGER_TOKEN_HASHES"}
    for name in ("ledger", "migrate"):
        assert set(SERVICES[name]["environment"]) <= known
    assert set(re.findall(r"\b(LEDGER_[A-Z_]+)=", DOCKERFILE)) <= known


def test_every_secret_is_required_and_said_where_to_come_from() -> None:
    text = (ROOT / "compose.yaml").read_text()
    wanted = set(re.findall(r"(?<!\$)\$\{([A-Z_]+):\?\}", text))
    assert wanted == set(re.findall(r"(?<!\$)\$\{?([A-Z_]+)", text)), "each fails where it is not set"
    assert not re.search(r"(?i)password: +[^$ ]", text)
    readme = (ROOT / "README.md").read_text()
    (names,) = re.findall(r"^for name in ([A-Z_ ]+); do\n +echo \"LEDGER_\$\{name\}_PASSWORD=", readme, re.MULTILINE)
    assert wanted == {f"LEDGER_{name}_PASSWORD" for name in names.split()} | {"LEDGER_TOKEN_HASHES"}
    assert ".env" in (ROOT / ".gitignore").read_text().split()


def test_prometheus_scrapes_the_service_and_reads_the_rules() -> None:
    mounts = _mounts("prometheus")
    assert f"--config.file={next(iter(mounts))}" in SERVICES["prometheus"]["command"]
    config = yaml.safe_load((ROOT / mounts["/etc/prometheus/prometheus.yml"]).read_text())
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in SERVICES
    assert f"LEDGER_PORT={port}" in DOCKERFILE
    assert f"EXPOSE {port}" in DOCKERFILE
    assert SERVICES[host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    (rules,) = config["rule_files"]
    folder = mounts[str(Path("/etc/prometheus") / Path(rules).parent)]
    assert {path.name for path in (ROOT / folder).glob(Path(rules).name)} == {"alerts.yaml", "recording.yaml"}
    alerts = (ROOT / folder / "alerts.yaml").read_text()
    assert f'up{{job="{job["job_name"]}"}}' in alerts


def test_grafana_is_provisioned_with_the_data_sources_and_the_dashboards() -> None:
    mounts = _mounts("grafana")
    provisioning = ROOT / mounts["/etc/grafana/provisioning"]
    (provider,) = yaml.safe_load((provisioning / "dashboards/ledger.yaml").read_text())["providers"]
    assert len(list((ROOT / mounts[provider["options"]["path"]]).glob("*.json"))) == 3
    sources = (provisioning / "datasources/ledger.yaml").read_text()
    assert set(re.findall(r"\$\{([A-Z_]+)\}", sources)) <= set(SERVICES["grafana"]["environment"])
    environment = SERVICES["grafana"]["environment"]
    assert environment["LEDGER_PROMETHEUS_URL"] == "http://prometheus:9090"
    assert environment["LEDGER_GRAFANA_DATABASE_HOST"].split(":")[0] in SERVICES


def test_grafana_is_the_one_that_the_dashboards_are_written_for() -> None:
    sdk = next(text for text in PROJECT["optional-dependencies"]["dev"] if text.startswith("grafana-foundation-sdk"))
    assert sdk.rpartition("!")[2] == SERVICES["grafana"]["image"].rpartition(":")[2]


def test_each_role_of_the_database_has_a_password_of_its_own() -> None:
    script = COMPOSE["configs"]["roles"]["content"]
    given = re.findall(r'--set (\w+)="\$\$(\w+)"', script)
    assert {variable for _, variable in given} == set(SERVICES["database"]["environment"]) - {"POSTGRES_PASSWORD"}
    assert set(re.findall(r"password :'(\w+)'", script)) == {name for name, _ in given}
    assert "in role ledger_reader" in script
    assert "default_transaction_read_only = on" in script


def test_the_image_is_made_of_what_is_pinned_and_there() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert PINNED.match(bases[0])
    assert "--require-hashes" in DOCKERFILE
    sources = re.findall(r"^COPY (?!--from)(\S+)", DOCKERFILE, re.MULTILINE)
    assert all((ROOT / source).exists() for source in sources)
    let_in = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    assert let_in == set(sources)


def test_the_image_runs_the_program_as_nobody_in_particular() -> None:
    assert re.search(r"^USER (?!0\b|root\b)\d+$", DOCKERFILE, re.MULTILINE)
    (program,) = re.findall(r'^ENTRYPOINT \["(\S+)"\]$', DOCKERFILE, re.MULTILINE)
    assert program in PROJECT["scripts"]
    assert SERVICES["migrate"]["command"] == ["migrate"]
    assert 'CMD ["serve"]' in DOCKERFILE
