"""Upgrades from the chart's previous versions: values are still accepted, and no immutable field of Kubernetes changes.

tests/previous/VERSION holds values and what that version made of them; `helm/check keep` writes the present one's.
"""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import chart
from api import Api

# What the API server lets change in a StatefulSet's spec; anything else needs the StatefulSet deleted first.
CHANGEABLE = {
    "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit", "minReadySeconds",
    "persistentVolumeClaimRetentionPolicy",
}


def identity(document):
    return document["apiVersion"].split("/")[0], document["kind"], document["metadata"]["name"]


class Helm(unittest.TestCase):
    """helm itself, from a release of the old version's very manifests, against an API that records what it is sent."""

    def helm(self, *arguments):
        environment = {"PATH": os.environ["PATH"], "HOME": self.home, "HELM_KUBEAPISERVER": self.api.url}
        command = [chart.HELM, *map(str, arguments), "--namespace", "ns"]
        if arguments[0] != "rollback":
            command.append("--disable-openapi-validation")
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        return done.stdout

    def old_chart(self, version, manifests):
        """A chart that renders what the old version did; the file has no template left in it but what alerts quote."""
        folder = Path(self.home) / "old"
        (folder / "templates").mkdir(parents=True)
        (folder / "Chart.yaml").write_text(f"{{apiVersion: v2, name: kvasir, version: {version}}}")
        (folder / "files").mkdir()
        (folder / "files/manifests").write_text(manifests.read_text())
        (folder / "templates/all.yaml").write_text('{{ .Files.Get "files/manifests" }}')
        return folder

    def test_dry_run_and_upgrade(self):
        for version in sorted(path for path in (chart.TESTS / "previous").iterdir() if path.is_dir()):
            for values in sorted((version / "values").glob("*.yaml")):
                with self.subTest(version=version.name, values=values.name), Api() as self.api:
                    with tempfile.TemporaryDirectory() as self.home:
                        old = self.old_chart(version.name, version / "manifests" / values.name)
                        self.helm("install", "rel", old)
                        before = set(self.api.objects)
                        said = self.helm("upgrade", "rel", chart.CHART, "--values", values, "--dry-run=server")
                        self.assertIn("STATUS: pending-upgrade", said)
                        self.assertIn("Kvasir", said.partition("NOTES:")[2])
                        self.assertEqual((set(self.api.objects), self.api.patches), (before, {}), "a dry run changes nothing")
                        self.helm("upgrade", "rel", chart.CHART, "--values", values)
                        self.assertFalse(self.api.deleted)
                        self.check_patches()
                        self.helm("rollback", "rel")
                        self.check_patches()

    def test_switching_the_autoscaler_on_keeps_the_replicas(self):
        """Without the field, the API server would set 1, and the claims of the others would be deleted."""
        with Api() as self.api, tempfile.TemporaryDirectory() as self.home:
            values = ["--values", chart.TESTS / "ok/minimal.yaml"]
            self.helm("install", "rel", chart.CHART, *values)
            live = self.api.objects["StatefulSet", "rel-kvasir"]["spec"]
            self.assertEqual(live["replicas"], 2)
            live["replicas"] = 5
            self.helm("upgrade", "rel", chart.CHART, *values, "--set", "autoscaling.enabled=true")
            patch = self.api.patches.get(("StatefulSet", "rel-kvasir"), {})
            self.assertEqual(patch.get("spec", {}).get("replicas", 5), 5)
            self.assertIn(("HorizontalPodAutoscaler", "rel-kvasir"), self.api.objects)

    def check_patches(self):
        self.assertTrue(self.api.patches)
        for (kind, name), patch in self.api.patches.items():
            spec = patch.get("spec", {}).keys()
            if kind == "StatefulSet":
                self.assertLessEqual({k for k in spec if not k.startswith("$")}, CHANGEABLE, f"{name}: {patch}")
            if kind == "Service":
                self.assertFalse(spec & {"clusterIP", "selector"}, f"{name}: {patch}")
            if kind == "Deployment":
                self.assertNotIn("selector", spec)


class Upgrade(unittest.TestCase):
    def pairs(self):
        versions = sorted(path for path in (chart.TESTS / "previous").iterdir() if path.is_dir())
        self.assertTrue(versions)
        for version in versions:
            for values in sorted((version / "values").glob("*.yaml")):
                old = (version / "manifests" / values.name).read_text()
                old = {identity(d): d for d in chart.yaml.safe_load_all(old) if d}
                done = chart.template(values)
                with self.subTest(version=version.name, values=values.name):
                    self.assertEqual(done.returncode, 0, "values of an older version are still taken:\n" + done.stderr)
                    yield old, {identity(d): d for d in chart.objects(done)}

    def test_nothing_immutable_changes(self):
        for old, new in self.pairs():
            for key in old.keys() & new.keys():
                before, after = old[key]["spec"] if "spec" in old[key] else {}, new[key].get("spec", {})
                kind = key[1]
                if kind == "StatefulSet":
                    frozen = (before.keys() | after.keys()) - CHANGEABLE
                    self.assertEqual({k: before.get(k) for k in frozen}, {k: after.get(k) for k in frozen})
                elif kind == "Deployment":
                    self.assertEqual(before["selector"], after["selector"])
                elif kind == "Service":
                    self.assertEqual(before.get("clusterIP"), after.get("clusterIP"))
                elif kind in {"Secret", "ConfigMap"}:
                    self.assertFalse(old[key].get("immutable"))
                    self.assertEqual(old[key].get("type"), new[key].get("type"))
                elif kind == "Certificate":
                    self.assertEqual(before["secretName"], after["secretName"])

    def test_what_others_hold_on_to_stays(self):
        """Names that clients, claims, scrapers and dashboards use; no object that held something goes away."""
        for old, new in self.pairs():
            gone = {key for key in old.keys() - new.keys() if key[1] not in {"Pod", "ConfigMap"}}
            self.assertFalse(gone, "objects of the old version that the new one would delete")
            for key in old.keys() & new.keys():
                if key[1] == "Service":
                    ports = {(p["name"], p["port"]) for p in old[key]["spec"]["ports"]}
                    self.assertLessEqual(ports, {(p["name"], p["port"]) for p in new[key]["spec"]["ports"]})
                    self.assertEqual(old[key]["spec"]["selector"], new[key]["spec"]["selector"])
                if key[1] == "StatefulSet":
                    mounts = [{m["name"]: m["mountPath"] for m in chart.container([d[key]])["volumeMounts"]} for d in (old, new)]
                    self.assertEqual(mounts[0]["cache"], mounts[1]["cache"], "a warm cache stays where it is")

    def test_the_comparison_sees_changes(self):
        old = chart.one(chart.rendered("minimal"), "StatefulSet")["spec"]
        self.assertFalse({"serviceName", "selector", "volumeClaimTemplates", "podManagementPolicy"} & CHANGEABLE)
        self.assertLessEqual({"serviceName", "selector", "volumeClaimTemplates", "podManagementPolicy"}, old.keys())
