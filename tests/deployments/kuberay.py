"""Make kuberay.json of KubeRay's own CustomResourceDefinitions: python tests/deployments/kuberay.py VERSION FOLDER.

FOLDER is helm-chart/kuberay-operator/crds of KubeRay's repository at the tag VERSION, which no package carries. Kept is what
JSON schemas can check; a key that a definition does not know is an error, as for `kubectl create --validate=strict`. Equal
parts (each pod template, each container's probes) are written once.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

KINDS = {"RayJob": "ray.io_rayjobs.yaml", "RayCluster": "ray.io_rayclusters.yaml"}
KEPT = ("type", "required", "enum", "pattern", "minimum", "minLength", "maxLength", "minItems")
SHARED = 150  # characters from which an equal part is worth a definition
SOURCE = (
    "KubeRay {}, helm-chart/kuberay-operator/crds of github.com/ray-project/kuberay (Apache License 2.0), made by kuberay.py"
)
Schema = dict[str, Any]


def strict(node: Schema) -> Schema:
    """Return a structural schema as a JSON schema that refuses unknown keys."""
    found: Schema = {key: node[key] for key in KEPT if key in node}
    if node.get("nullable"):
        found["type"] = [found["type"], "null"]
    if node.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    if "items" in node:
        found["items"] = strict(node["items"])
    if "properties" in node:
        found["properties"] = {name: strict(value) for name, value in node["properties"].items()}
        found["additionalProperties"] = bool(node.get("x-kubernetes-preserve-unknown-fields"))
    elif isinstance(node.get("additionalProperties"), dict):
        found["additionalProperties"] = strict(node["additionalProperties"])
    return found


def kind(path: Path) -> Schema:
    """Return the schema of version v1 of one CustomResourceDefinition."""
    versions = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    (version,) = (one for one in versions if one["name"] == "v1")
    found = strict(version["schema"]["openAPIV3Schema"])
    del found["properties"]["status"]  # the operator's own
    return found


def parts(node: Schema) -> Iterator[Schema]:
    """Yield the schemas within a schema."""
    for value in (*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")):
        if isinstance(value, dict):
            yield value


def shared(schemas: dict[str, Schema]) -> dict[str, Schema]:
    """Return definitions in which no large schema stands twice."""
    counts: Counter[str] = Counter()

    def count(node: Schema) -> None:
        counts[json.dumps(node)] += 1
        if counts[json.dumps(node)] == 1:
            for part in parts(node):
                count(part)

    for schema in schemas.values():
        count(schema)
    definitions: dict[str, Schema] = {}
    names: dict[str, str] = {}

    def named(node: Schema) -> Schema:
        text = json.dumps(node)
        if counts[text] < 2 or len(text) < SHARED:
            return written(node)
        if text not in names:
            names[text] = f"part{len(names)}"
            definitions[names[text]] = written(node)
        return {"$ref": f"#/definitions/{names[text]}"}

    def written(node: Schema) -> Schema:
        found = dict(node)
        if "properties" in node:
            found["properties"] = {name: named(value) for name, value in node["properties"].items()}
        for key in ("items", "additionalProperties"):
            if isinstance(node.get(key), dict):
                found[key] = named(node[key])
        return found

    return {name: written(schema) for name, schema in schemas.items()} | definitions


def main() -> None:
    """Write the schemas beside this file."""
    version, folder = sys.argv[1], Path(sys.argv[2])
    definitions = shared({name: kind(folder / file) for name, file in KINDS.items()})
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(schema)}" for name, schema in definitions.items())
    text = f'{{"$comment": {json.dumps(SOURCE.format(version))}, "definitions": {{\n{lines}\n}}}}\n'
    Path(__file__).with_name("kuberay.json").write_text(text)


if __name__ == "__main__":
    main()
