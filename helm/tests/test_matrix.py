"""Values that must render to valid Kubernetes objects, and values that must fail, with their error messages."""

import json
import os
import re
import subprocess
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chart

SCHEMAS = Path(os.environ["KUBE_SCHEMAS"])
KUBECONFORM = os.environ.get("KUBECONFORM", "kubeconform")


def prepare(version, names):
    """Schemas of kubernetes-validate as kubeconform takes them: each in one file, with the definitions it needs."""
    source = SCHEMAS / f"v{version}-local-strict"
    target = Path(os.environ["TMPDIR"]) / f"v{version}"
    target.mkdir(exist_ok=True)
    shared = json.loads((source / "_definitions.json").read_text())["$defs"]
    for name in names:
        if (source / name).exists():
            schema = json.loads((source / name).read_text())
            needed, todo = {}, references(schema)
            while todo:
                key = todo.pop()
                if key not in needed:
                    needed[key] = shared[key]
                    todo |= references(shared[key])
            text = json.dumps({**schema, "definitions": needed})
            (target / name).write_text(re.sub(r'"[^"]*#/\$defs/', '"#/definitions/', text))
    return target


def references(node):
    return set(re.findall(r'#/\$defs/([^"]+)"', json.dumps(node)))


def schema_name(document):
    group, _, version = document["apiVersion"].rpartition("/")
    parts = [document["kind"].lower(), *([group.split(".")[0]] if group else []), version]
    return "-".join(parts) + ".json"


class Ok(unittest.TestCase):
    def test_each_renders_and_passes_kubeconform(self):
        rendered, kinds = {}, set()
        for case in chart.cases("ok"):
            for version in chart.VERSIONS:
                done = chart.template(case, version=version)
                self.assertEqual(done.returncode, 0, f"{case.name}: {done.stderr}")
                rendered[case.name, version] = done.stdout
            kinds |= {schema_name(d) for d in chart.objects(done)}
        self.assertGreaterEqual(len(kinds), 14, "the cases together make every kind there is")
        for version in chart.VERSIONS:
            schemas = prepare(version, kinds)
            streams = [text for (_, v), text in rendered.items() if v == version]
            arguments = ["-strict", "-summary", "-kubernetes-version", version]
            arguments += ["-schema-location", f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"]
            arguments += ["-schema-location", f"{chart.TESTS}/crds/{{{{.ResourceKind}}}}.json"]
            done = subprocess.run(
                [KUBECONFORM, *arguments], input="\n---\n".join(streams), capture_output=True, text=True, check=False
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("Invalid: 0, Errors: 0, Skipped: 0", done.stdout)

    def test_kubeconform_sees_mistakes(self):
        """The schemas do refuse: a wrong type, and a field that is not there, in a kind of each source."""
        statefulset = chart.one(chart.rendered("minimal"), "StatefulSet")
        monitor = chart.one(chart.rendered("eks"), "ServiceMonitor")
        wrong = [
            {**statefulset, "spec": {**statefulset["spec"], "replicas": "two"}},
            {**statefulset, "spec": {**statefulset["spec"], "replicaz": 2}},
            {**monitor, "spec": {**monitor["spec"], "endpoint": []}},
        ]
        schemas = prepare("1.34.0", {schema_name(statefulset)})
        for document in wrong:
            arguments = ["-strict", "-kubernetes-version", "1.34.0"]
            arguments += ["-schema-location", f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"]
            arguments += ["-schema-location", f"{chart.TESTS}/crds/{{{{.ResourceKind}}}}.json"]
            text = chart.yaml.safe_dump(document)
            done = subprocess.run(
                [KUBECONFORM, *arguments], input=text, capture_output=True, text=True, check=False
            )
            self.assertEqual(done.returncode, 1, done.stdout)

    def test_lint(self):
        for case in chart.cases("ok"):
            done = chart.helm("lint", chart.CHART, "--strict", "--kube-version", "1.34.0", "--values", case)
            self.assertEqual(done.returncode, 0, f"{case.name}: {done.stdout}{done.stderr}")
            self.assertNotIn("[WARNING]", done.stdout)


class Documents(unittest.TestCase):
    PAGES = ["helm/kvasir/README.md", "deploy/docs/kubernetes.md"]

    def test_values_in_documents_render(self):
        """Values behind `helm install --values -`, and blocks that begin with `image:`, can be installed as they stand."""
        seen = 0
        for page in self.PAGES:
            text = (chart.ROOT / page).read_text()
            blocks = re.findall(r"<<'VALUES'\n(.*?)\nVALUES", text, re.DOTALL)
            blocks += re.findall(r"```yaml\n(image: .*?)\n```", text, re.DOTALL)
            for block in blocks:
                done = chart.template(values=chart.yaml.safe_load(block))
                self.assertEqual(done.returncode, 0, f"{page}:\n{block}\n{done.stderr}")
                seen += 1
        self.assertGreaterEqual(seen, 2)

    def test_values_named_in_documents_are_there(self):
        schema = json.loads((chart.CHART / "values.schema.json").read_text())
        tops = "|".join(schema["properties"])
        sections = schema["properties"]["config"]["properties"].items()
        settings = {f"{section}.{key}" for section, keys in sections for key in keys["properties"]}
        for page in self.PAGES:
            text = (chart.ROOT / page).read_text()
            names = set(re.findall(rf"[` ]((?:{tops})\.[A-Za-z_.]+[A-Za-z])(?=[`=:])", text))
            for name in names - settings - {"tls.crt", "tls.key"}:
                node = schema
                for part in name.split("."):
                    node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node
                    inner = node.get("properties", {})
                    self.assertTrue(part in inner or node.get("additionalProperties", True) is not False, f"{page}: {name}")
                    node = inner.get(part, {})


class Fail(unittest.TestCase):
    @staticmethod
    def fail(case):
        version = "1.30.0" if case.stem == "kube-version" else "1.34.0"
        return case, chart.template(chart.TESTS / "base.yaml", case, version=version)

    def test_each_fails_with_its_sentence(self):
        with ThreadPoolExecutor(2) as pool:
            ends = list(pool.map(self.fail, chart.cases("fail")))
        for case, done in ends:
            sentence = case.read_text().splitlines()[0].removeprefix("# ")
            with self.subTest(case=case.name):
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(sentence, done.stderr)
        said = "\n".join(done.stderr for _, done in ends)
        source = (chart.CHART / "templates/_validate.tpl").read_text()
        for line in re.findall(r"^  (\S.*)$", source, re.MULTILINE):
            # The longest piece of a sentence that is the same whatever the values.
            piece = max(re.split(r"\{\{.*?\}\}", line), key=len).strip()
            with self.subTest(sentence=line):
                self.assertIn(piece, said, "no case of tests/fail makes the chart say this")

    def test_all_mistakes_are_told_at_once(self):
        done = chart.template(values={"autoscaling": {"enabled": True, "minReplicas": 9}})
        for part in ["store.s3.bucket is not set", "callers are not authenticated", "minReplicas=9"]:
            self.assertIn(part, done.stderr)
