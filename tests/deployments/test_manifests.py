"""deployments/ agrees with the code, Prefect, KubeRay and the lock file; make validate checks the schemas that are not here."""

import copy
import itertools
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prefect.cli.deploy._models import DeploymentConfig, PrefectYamlModel, RawScheduleConfig, WorkPoolConfig
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.client.schemas.schedules import construct_schedule
from prefect.events.schemas.automations import AutomationCore, EventTrigger
from prefect.flows import load_flow_from_entrypoint
from prefect.server.api import collections_data
from prefect.settings.models.flows import FlowsSettings
from prefect.utilities.callables import parameter_schema
from prefect.utilities.templating import apply_values

import memlib
from flows.engine import TAG
from memlib.audits import AUDITS
from memlib.recipes.files import load_recipe, validate
from memlib.recipes.request import AuditRequest
from memlib.specs import Resources

ROOT = Path(__file__).parents[2]
DEPLOYMENTS = ROOT / "deployments"
STORE = "/srv/memlib"  # what MEMLIB_STORE might be


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOYMENTS / name).read_text())


def deployments() -> list[dict[str, Any]]:
    text = (DEPLOYMENTS / "prefect.yaml").read_text().replace("{{ $MEMLIB_STORE }}", STORE)
    assert "{{" not in text, "a variable that set-up.sh does not ask for"
    return yaml.safe_load(text)["deployments"]


def pinned(package: str) -> str:
    found = re.search(rf"^{package}==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE | re.IGNORECASE)
    assert found
    return found[1]


# -- prefect.yaml -------------------------------------------------------------------------------------


def test_prefect_yaml_is_valid_for_prefect() -> None:
    content = read("prefect.yaml")
    PrefectYamlModel.model_validate(content)
    assert set(content) <= {"name", "prefect-version", "pull", "definitions", "deployments"}
    assert content["prefect-version"] == pinned("prefect")
    assert content["pull"] == []  # and not left out, which would have Prefect look for the code in the folder of the deployer


@pytest.mark.parametrize("deployment", deployments(), ids=lambda deployment: deployment["name"])
def test_every_deployment_has_valid_parameters_schedules_and_job_variables(deployment: dict[str, Any]) -> None:
    assert set(deployment) <= set(DeploymentConfig.model_fields)  # Prefect passes over what it does not know
    assert set(deployment["work_pool"]) <= set(WorkPoolConfig.model_fields)
    flow = load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)
    given = deployment["parameters"]
    parameters = flow.validate_parameters(flow_defaults() | given)
    jsonschema.validate(given, parameter_schema(flow).model_dump_for_openapi())
    AuditRequest.read(parameters["recipe"], parameters["changes"], parameters["resources"])
    assert "://" in parameters["store"] or Path(parameters["store"]).is_absolute()
    limit = deployment["concurrency_limit"]
    ConcurrencyLimitConfig.model_validate(limit)
    assert (limit["limit"], limit["collision_strategy"]) == (1, "ENQUEUE")
    for schedule in deployment.get("schedules", ()):
        raw = RawScheduleConfig.model_validate(schedule)
        construct_schedule(cron=raw.cron, timezone=raw.timezone)
    refuses_unknown(deployment["work_pool"]["job_variables"], pool_variables(deployment["work_pool"]["name"]))


def flow_defaults() -> dict[str, Any]:
    return {"recipe": "smoke", "changes": {}, "store": STORE, "resources": Resources()}


def pool_variables(name: str) -> dict[str, Any]:
    if name == "kubernetes":
        return json.loads((DEPLOYMENTS / "kubernetes" / "work-pool.json").read_text())["variables"]
    return prefect_templates()["prefect"]["process"]["default_base_job_configuration"]["variables"]


def prefect_templates() -> dict[str, Any]:
    """Return the templates of all work pools, which Prefect's server carries: by package and type of worker."""
    path = Path(collections_data.__file__ or next(iter(collections_data.__path__))).parent
    return json.loads(next(path.rglob("aggregate-worker-metadata.json")).read_text())


def refuses_unknown(values: dict[str, Any], schema: dict[str, Any]) -> None:
    assert set(values) <= set(schema["properties"]), set(values) - set(schema["properties"])
    jsonschema.validate(values, schema)


def test_deployments_include_smoke_nightly_and_large() -> None:
    found = {deployment["name"]: deployment for deployment in deployments()}
    assert {"smoke", "nightly", "large"} <= set(found)
    assert [schedule["cron"] for schedule in found["nightly"]["schedules"]] == ["0 2 * * *"]
    assert found["large"]["work_pool"]["name"] == "kubernetes"
    assert found["large"]["parameters"]["resources"]["ray_address"] == "auto"


def test_every_parameter_of_the_deployed_flow_has_a_description_and_default() -> None:
    schema = parameter_schema(load_flow_from_entrypoint("flows.deployed.audit", use_placeholder_flow=False))
    assert list(schema.properties) == ["recipe", "changes", "store", "resources"]
    assert all(len(field["description"]) > 20 for field in schema.properties.values())
    assert all("default" in field for field in schema.properties.values())


def test_the_kubernetes_work_pool_defines_every_variable_of_its_job() -> None:
    pool = json.loads((DEPLOYMENTS / "kubernetes" / "work-pool.json").read_text())
    named = set(re.findall(r"{{ (\w+) }}", json.dumps(pool["job_configuration"])))
    assert named == set(pool["variables"]["properties"])
    jsonschema.Draft7Validator.check_schema(pool["variables"])


def test_set_up_creates_every_work_pool_of_the_deployments() -> None:
    made = re.findall(r"work-pool create (\S+)", (DEPLOYMENTS / "set-up.sh").read_text())
    assert set(made) == {deployment["work_pool"]["name"] for deployment in deployments()}


# -- automations --------------------------------------------------------------------------------------


def test_alerts_are_valid_for_prefect() -> None:
    text = (DEPLOYMENTS / "alerts.yaml").read_text()
    block = "3f0e2a52-6b8f-4d0e-9d5b-0c7a1c2f4e11"
    assert "s/MEMLIB_ALERT_BLOCK/" in (DEPLOYMENTS / "set-up.sh").read_text()
    found = [
        AutomationCore.model_validate(one)
        for one in yaml.safe_load(text.replace(" MEMLIB_ALERT_BLOCK", f" {block}"))["automations"]
    ]
    expected = [{f"prefect.flow-run.{state}"} for state in ("Failed", "Crashed")]
    assert [one.trigger.expect for one in found[:2]] == expected
    assert found[2].trigger.after == {"prefect.flow-run.Late"}
    for one in found:
        assert [str(action.block_document_id) for action in one.actions] == [block]
        assert {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"} in [
            match.model_dump() for match in one.trigger.match_related
        ]


def test_automations_are_valid_for_prefect() -> None:
    triggers = []
    for content in read("automations.yaml")["automations"]:
        assert set(content) <= set(AutomationCore.model_fields)
        assert set(content["trigger"]) <= set(EventTrigger.model_fields)
        triggers.append(AutomationCore.model_validate(content).trigger)
    (zombie, _) = triggers
    tag = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}
    for trigger in triggers:  # other people's flows on the server are let alone
        related = trigger.match_related if isinstance(trigger.match_related, list) else [trigger.match_related]
        assert tag in [match.model_dump() for match in related]
    assert zombie.within.total_seconds() > 2 * FlowsSettings.model_fields["heartbeat_frequency"].default
    for deployment in deployments():
        assert TAG in deployment["tags"]
        assert "PREFECT_FLOWS_HEARTBEAT_FREQUENCY" not in deployment["work_pool"]["job_variables"]["env"]
    for file in ("automations.yaml", "alerts.yaml"):  # set-up.sh reads names by lines
        lines = (DEPLOYMENTS / file).read_text().splitlines()
        named = [line.removeprefix("  - name: ") for line in lines if line.startswith("  - name: ")]
        assert named == [content["name"] for content in read(file)["automations"]]


# -- Kubernetes ---------------------------------------------------------------------------------------


def kubernetes() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((DEPLOYMENTS / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def kuberay(document: dict[str, Any]) -> None:
    """Validate a document against KubeRay's own definitions, see kuberay.py."""
    definitions = KUBERAY["definitions"]
    jsonschema.Draft7Validator({**definitions[document["kind"]], "definitions": definitions}).validate(document)


KUBERAY = json.loads(Path(__file__).with_name("kuberay.json").read_text())
RAY = [document for _, document in kubernetes() if document.get("apiVersion") == "ray.io/v1"]


@pytest.mark.parametrize("document", RAY, ids=lambda document: document["kind"])
def test_ray_objects_are_valid_for_kuberay(document: dict[str, Any]) -> None:
    kuberay(document)
    assert document["apiVersion"] == "ray.io/v1"
    name = document["metadata"].get("name") or document["metadata"]["generateName"] + "12345"  # the server's five characters
    assert len(name) <= 47  # what KubeRay's validation.go allows a RayJob, and more a RayCluster
    cluster = document["spec"].get("rayClusterSpec", document["spec"])
    assert cluster["rayVersion"] == pinned("ray")
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    for container in containers(document):
        assert container["image"] == f"memlib:{memlib.__version__}-gpu"


def containers(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield from node.get("containers", ())
        for value in node.values():
            yield from containers(value)
    elif isinstance(node, list):
        for value in node:
            yield from containers(value)


def test_the_ray_job_has_a_deadline_retries_and_a_valid_command() -> None:
    (job,) = (document["spec"] for document in RAY if document["kind"] == "RayJob")
    assert job["shutdownAfterJobFinishes"] is True
    assert job["activeDeadlineSeconds"] > 0
    assert job["backoffLimit"] > 0
    command = re.fullmatch(r"memlib run (\S+) --recipe (\S+) --store s3://\S+((?: --set \S+)+)", job["entrypoint"].strip())
    assert command
    content, machines = load_recipe(command[2], re.findall(r"--set (\S+)", command[3]))
    validate(AUDITS[command[1]].recipe, content)
    assert validate(Resources, machines).ray_address == "auto"


def the_job() -> dict[str, Any]:
    (job,) = (copy.deepcopy(document) for document in RAY if document["kind"] == "RayJob")
    return job


def head_pod(job: dict[str, Any]) -> dict[str, Any]:
    return job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]


def gpu_group(job: dict[str, Any]) -> dict[str, Any]:
    return job["spec"]["rayClusterSpec"]["workerGroupSpecs"][-1]


BREAKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a key with a typo": lambda job: job["spec"].update(backofLimit=3),
    "no head": lambda job: job["spec"]["rayClusterSpec"].pop("headGroupSpec"),
    "a number for a text": lambda job: job["spec"]["rayClusterSpec"].update(rayVersion=2.6),
    "an unknown mode": lambda job: job["spec"]["rayClusterSpec"]["authOptions"].update(mode="password"),
    "no pods": lambda job: gpu_group(job).pop("template"),
    "a text for a number": lambda job: gpu_group(job).update(replicas="2"),
    "a parameter of ray start that is no text": lambda job: gpu_group(job)["rayStartParams"].update({"num-cpus": 0}),
    "a typo in a pod": lambda job: head_pod(job).update(serviceAcountName="memlib"),
    "a typo in a container": lambda job: head_pod(job)["containers"][0].update(volumeMount=[]),
    "no containers": lambda job: head_pod(job).pop("containers"),
    "a wrong unit": lambda job: head_pod(job)["containers"][0]["resources"]["limits"].update(memory="16GB"),
    "a wrong unit of disk": lambda job: gpu_group(job)["template"]["spec"]["volumes"][1]["emptyDir"].update(
        sizeLimit="400 Gi"
    ),
    "a variable that is no text": lambda job: gpu_group(job)["template"]["spec"]["containers"][0]["env"][2].update(value=300),
    "a time limit that is no number": lambda job: job["spec"].update(activeDeadlineSeconds="2w"),
}


@pytest.mark.parametrize("break_it", BREAKS.values(), ids=BREAKS)
def test_a_broken_ray_job_violates_the_schema(break_it: Callable[[dict[str, Any]], Any]) -> None:
    job = the_job()
    break_it(job)
    with pytest.raises(jsonschema.ValidationError):
        kuberay(job)


# -- every recipe, dry --------------------------------------------------------------------------------

RECIPES = sorted((path.parent.name.replace("_", "-"), path.stem) for path in (DEPLOYMENTS / "recipes").glob("*/*.yaml"))
"""Audit and name of every shipped recipe."""


def rendered(audit: str, recipe: str) -> dict[str, Any]:
    """Return the shipped RayJob with another recipe in its entry point, and none of the paths of the shipped one's data."""
    job = the_job()
    entrypoint = re.sub(
        r"--set data\.\S+ ", "", job["spec"]["entrypoint"].replace("deja-vu", audit).replace("deja_vu_imagenet", recipe)
    )
    job["spec"]["entrypoint"] = entrypoint
    return job


def test_a_ray_job_of_every_recipe_is_valid() -> None:
    for audit, recipe in RECIPES:
        job = rendered(audit, recipe)
        entrypoint = job["spec"]["entrypoint"]
        words = shlex.split(entrypoint)
        assert words == entrypoint.split()  # KubeRay puts it into a shell command as it is
        assert words[:5] == ["memlib", "run", audit, "--recipe", recipe]
        changes = [word for option, word in itertools.pairwise(words) if option == "--set"]
        request = AuditRequest.read(recipe, changes, expected=audit)
        assert (request.resources.ray_address, request.resources.workers_per_model) == ("auto", 8), recipe


def test_the_ray_job_of_another_recipe_is_valid_for_kuberay() -> None:
    job = rendered("exposure", "exposure_smoke")
    kuberay(job)
    assert "deja" not in str(job)


def test_the_large_deployment_takes_every_recipe() -> None:
    (large,) = (deployment for deployment in deployments() if deployment["name"] == "large")
    for audit, recipe in RECIPES:
        request = AuditRequest.read(recipe, {}, Resources.model_validate(large["parameters"]["resources"]), expected=audit)
        assert request.resources.ray_address == "auto", recipe


def prefect_job(variables: dict[str, Any]) -> dict[str, Any]:
    """Return the Job of the work pool's template, filled in by Prefect with defaults and variables of a deployment."""
    pool = json.loads((DEPLOYMENTS / "kubernetes" / "work-pool.json").read_text())
    defaults = {name: field["default"] for name, field in pool["variables"]["properties"].items() if "default" in field}
    values = defaults | {"name": "a-run", "command": ["prefect", "flow-run", "execute"], "labels": {}} | variables
    values["env"] = [{"name": name, "value": value} for name, value in values["env"].items()]  # as the worker does
    filled = apply_values(pool["job_configuration"]["job_manifest"], values)
    assert "{{" not in json.dumps(filled)
    return filled


def pod_schema() -> dict[str, Any]:
    head = KUBERAY["definitions"]["RayCluster"]["properties"]["spec"]
    for name in ("headGroupSpec", "template"):
        head = resolved_schema(head)["properties"][name]
    return {**resolved_schema(head), "definitions": KUBERAY["definitions"]}


def resolved_schema(node: dict[str, Any]) -> dict[str, Any]:
    return KUBERAY["definitions"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node


def validate_job(job: dict[str, Any]) -> None:
    template = copy.deepcopy(job["spec"]["template"])
    for name in IGNORED:
        del template["spec"][name]
    jsonschema.Draft7Validator(pod_schema()).validate(template)


IGNORED = ("parallelism", "completions")  # keys of a Job that Prefect's worker requires in its pods; Kubernetes drops them


@pytest.mark.parametrize("name", [one["name"] for one in deployments() if one["work_pool"]["name"] == "kubernetes"])
def test_the_job_of_a_deployment_has_valid_pods(name: str) -> None:
    (found,) = (deployment for deployment in deployments() if deployment["name"] == name)
    job = prefect_job(found["work_pool"]["job_variables"])
    validate_job(job)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][2] == found["work_pool"]["job_variables"]["ray_head"]
    assert container["args"] == ["prefect", "flow-run", "execute"]


WRONG = {
    "a wrong unit": {"memory": "8 GB"},
    "a text for a list": {"command": "prefect flow-run execute"},
    "a variable that is no text": {"env": {"OMP_NUM_THREADS": 1}},
    "a secret that is no name": {"secret": {"name": "memlib"}},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_job_variable_makes_invalid_pods(wrong: dict[str, Any]) -> None:
    (large,) = (deployment for deployment in deployments() if deployment["name"] == "large")
    with pytest.raises(jsonschema.ValidationError):
        validate_job(prefect_job(large["work_pool"]["job_variables"] | wrong))


def test_quantities_outside_pods_have_units_of_kubernetes() -> None:
    (pattern,) = {leaf for _, leaf in leaves(KUBERAY) if "KMGTPE" in str(leaf)}
    (quota,) = (document for _, document in kubernetes() if document.get("kind") == "ResourceQuota")
    variables = pool_variables("kubernetes")["properties"]
    quantities = [*quota["spec"]["hard"].values(), variables["cpu"]["default"], variables["memory"]["default"]]
    assert all(re.match(pattern, quantity) for quantity in quantities)
    assert not re.match(pattern, "4TB")


def test_the_job_has_every_fixed_value_of_prefects_own_template() -> None:
    """Prefect's worker refuses a Job that lacks what its own template fixes (completions in pods, too)."""
    own = prefect_templates()["prefect-kubernetes"]["kubernetes"]["default_base_job_configuration"]["job_configuration"]
    ours = json.loads((DEPLOYMENTS / "kubernetes" / "work-pool.json").read_text())["job_configuration"]
    fixed = {place: value for place, value in leaves(own["job_manifest"]) if "{{" not in str(value)}
    assert len(fixed) >= 6
    assert fixed.items() <= dict(leaves(ours["job_manifest"])).items()
    assert set(ours) <= set(own)


def leaves(node: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inside:
        yield from leaves(value, (*place, key))
    if not isinstance(node, dict | list):
        yield place, node


def test_secrets_named_in_manifests_are_those_of_the_example() -> None:
    documents = list(kubernetes())
    there = {document["metadata"]["name"] for _, document in documents if document.get("kind") == "Secret"}
    there |= {document["metadata"]["name"] for document in RAY if "name" in document["metadata"]}  # KubeRay makes its token's
    variables = pool_variables("kubernetes")["properties"]
    named = {variables[name]["default"] for name in ("secret", "ray_secret", "canary_secret")}
    for name, document in documents:
        named |= set(re.findall(r"'(?:secretRef': {'name|secretName)': '(.+?)'", str(document)))
        named |= set(re.findall(r"'existingSecret': '(.+?)'", str(document)))
        if name.startswith("prefect-server"):
            named.add(document["secret"]["name"])
    assert named == there


def test_image_versions_are_those_of_the_lock_file() -> None:
    server, worker = read("kubernetes/prefect-server-values.yaml"), read("kubernetes/prefect-worker-values.yaml")
    tags = [server["global"]["prefect"]["image"]["prefectTag"], worker["worker"]["image"]["prefectTag"]]
    assert all(tag.startswith(f"{pinned('prefect')}-python3.") for tag in tags)
    assert worker["worker"]["config"]["workPool"] in {deployment["work_pool"]["name"] for deployment in deployments()}
    (large,) = (deployment for deployment in deployments() if deployment["name"] == "large")
    assert large["work_pool"]["job_variables"]["image"] == f"memlib:{memlib.__version__}-gpu"


# -- images, compose, scripts -------------------------------------------------------------------------


def test_dockerfile_copies_only_existing_files_that_dockerignore_allows() -> None:
    text = (DEPLOYMENTS / "Dockerfile").read_text()
    assert set(re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)) == {"base", "cpu", "gpu"}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists(), source
            assert source in allowed, source
    for target in text.split("\nFROM ")[2:]:
        assert "\nUSER 1000\n" in target


def test_compose_publishes_only_on_loopback_and_contains_no_secret() -> None:
    content = read("compose.yaml")
    for name, service in content["services"].items():
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ())), name
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN$|AUTH_STRING|CONNECTION_URL", variable):
                assert "${" in value or variable.endswith("_FILE"), variable
        assert set(service.get("depends_on", ())) <= set(content["services"])
        for script in re.findall(r"/opt/memlib/(\S+\.sh)", str(service.get("command", ""))):
            assert (ROOT / script).exists()
    asked = set(re.findall(r"\${(\w+):\?", (DEPLOYMENTS / "compose.yaml").read_text()))
    asked |= {secret["environment"] for secret in content["secrets"].values()}
    worker = content["services"]["worker"]
    assert worker["environment"]["MEMLIB_SECRET_FILE"] == f"/run/secrets/{worker['secrets'][0]}"
    assert asked == set(re.findall(r"^(\w+)=$", (DEPLOYMENTS / "example.env").read_text(), re.MULTILINE))
    pools = {deployment["work_pool"]["name"] for deployment in deployments()}
    assert worker["command"][-1].removeprefix("--pool=") in pools


@pytest.mark.parametrize("name", ["set-up.sh", "in-ray-cluster.sh", "check-image.sh", "slurm/audit.sbatch"])
def test_deployment_scripts_are_valid_bash(name: str) -> None:
    done = subprocess.run(["bash", "-n", str(DEPLOYMENTS / name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("there", [(), ("buildah",)], ids=["nothing", "no stand-in"])
def test_the_check_of_the_image_names_the_program_that_is_missing(tmp_path: Path, there: tuple[str, ...]) -> None:
    for program in ("bash", "dirname", "mktemp", "rm", "sed"):
        (tmp_path / program).symlink_to(shutil.which(program) or "")
    for program in there:  # pulls nothing
        (tmp_path / program).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / program).chmod(0o755)
    images = tmp_path / "images"
    images.mkdir()
    done = subprocess.run(
        [tmp_path / "bash", DEPLOYMENTS / "check-image.sh"],
        env={"PATH": str(tmp_path), "IMAGE_FOLDER": str(images)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{'mmdebstrap' if there else 'buildah'} is missing")
    assert list(images.iterdir()) == []


def test_the_slurm_job_is_requeued_and_uses_a_ray_token() -> None:
    text = (DEPLOYMENTS / "slurm" / "audit.sbatch").read_text()
    options = re.findall(r"^#SBATCH (--[a-z-]+)", text, re.MULTILINE)
    assert {"--requeue", "--signal", "--open-mode", "--time"} <= set(options)
    assert text.index("#SBATCH --output") < text.index("set -euo")  # Slurm stops reading options at the first command
    assert "RAY_AUTH_MODE=token" in text
    assert "--signal=B:USR1@" in text  # scancel sends TERM, and a cancelled job must not be queued again
    assert '--cell "$SLURM_ARRAY_TASK_ID"' in text


def test_the_deployment_readme_names_every_file() -> None:
    readme = (DEPLOYMENTS / "README.md").read_text()
    for path in DEPLOYMENTS.rglob("*"):
        inside = path.relative_to(DEPLOYMENTS)
        if (
            path.is_file()
            and inside.parts[0] not in ("recipes", "starters")
            and path.suffix in {".yaml", ".json", ".sh", ".sbatch", ".env"}
        ):
            assert str(inside) in readme, inside


def test_commands_of_the_deployment_readme_have_valid_parameters() -> None:
    readme = (DEPLOYMENTS / "README.md").read_text()
    found = re.findall(r"prefect deployment run audit/(\w+)((?: --param (?:'[^']+'|\S+))*)", readme)
    defaults = {deployment["name"]: deployment["parameters"] for deployment in deployments()}
    assert len(found) >= 4
    for name, options in found:
        given = [shlex.split(option)[0].partition("=") for option in re.findall(r"--param ('[^']+'|\S+)", options)]
        parameters = flow_defaults() | defaults[name] | {key: yaml.safe_load(value) for key, _, value in given}
        AuditRequest.read(parameters["recipe"], parameters["changes"], Resources.model_validate(parameters["resources"]))
    jobs = re.findall(r"audit\.sbatch (\S+) --recipe (\S+) --store \S+((?: +(?:\\\n *)?--set \S+)*)", readme)
    assert [audit for audit, _, _ in jobs] == ["deja-vu", "sweep", "sweep"]
    for audit, recipe, options in jobs:
        AuditRequest.read(recipe, re.findall(r"--set (\S+)", options), expected=audit)


def test_deployments_allow_no_user_code() -> None:
    pools = [deployment["work_pool"] for deployment in deployments()]
    assert [pool["job_variables"]["env"]["MEMLIB_CODE"] for pool in pools] == [""] * len(pools)
