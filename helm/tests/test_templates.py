"""The output of each template for given values."""

import json
import re
import tomllib
import unittest

import chart
from chart import all_of, config, container, of, one, pod, rendered


class Names(unittest.TestCase):
    def test_names_and_labels(self):
        for case, name in [("minimal", "rel-kvasir"), ("tokens", "kv"), ("hooks", "rel-cache")]:
            statefulset = one(rendered(case), "StatefulSet")
            self.assertEqual(statefulset["metadata"]["name"], name)
            selector = statefulset["spec"]["selector"]["matchLabels"]
            labels = statefulset["spec"]["template"]["metadata"]["labels"]
            self.assertEqual(set(selector), {f"app.kubernetes.io/{k}" for k in ("name", "instance", "component")})
            self.assertLessEqual(selector.items(), labels.items())
        for document in rendered("eks"):
            labels = document["metadata"]["labels"]
            self.assertEqual((labels["team"], labels["app.kubernetes.io/instance"]), ("inference", "rel"))
            self.assertEqual(document["metadata"]["namespace"], "ns")

    def test_long_names_still_fit(self):
        documents = chart.objects(chart.template(chart.TESTS / "ok/eks.yaml", release="r" * 53))
        for document in documents:
            self.assertLessEqual(len(document["metadata"]["name"]), 63)

    def test_image(self):
        self.assertEqual(container(rendered("minimal"))["image"], "kvasir:0.1.0")
        self.assertEqual(container(rendered("hooks"))["image"], "kvasir:1.2.3")
        self.assertTrue(container(rendered("eks"))["image"].startswith("registry.example.com/kvasir@sha256:"))
        self.assertEqual(pod(rendered("eks"))["imagePullSecrets"], [{"name": "registry"}])


class Config(unittest.TestCase):
    def test_a_change_of_the_configuration_restarts_and_nothing_else_does(self):
        def checksum(values):
            template = one(of(values), "StatefulSet")["spec"]["template"]
            return template["metadata"]["annotations"]["checksum/config"]

        same = checksum({})
        self.assertEqual(checksum({"podLabels": {"a": "b"}}), same)
        self.assertNotEqual(checksum({"config": {"gc": {"ttl": "1h"}}}), same)

    def test_values_of_every_type_arrive(self):
        values = {"lookup": {"parallel": 1234567, "negative_ttl": "0s"}}
        values |= {"direct": {"enabled": False}, "log": {"filter": 'a<b>&"c"\\ é'}, "upload": {"memory": 10_000_000_000}}
        parsed = tomllib.loads(config(of({"config": values, "resources": {"limits": {"memory": "64Gi"}}})))
        for section, settings in values.items():
            for key, value in settings.items():
                self.assertEqual(parsed[section][key], value)

    def test_store(self):
        self.assertEqual(tomllib.loads(config(rendered("eks")))["store"]["url"], "s3://acme-kv-cache/prod/eu")
        store = tomllib.loads(config(rendered("emptydir")))["store"]
        self.assertEqual(store["endpoint"], "https://kv-cache.s3.internal.example:9443")
        self.assertEqual(store["public_endpoint"], "https://kv-cache.s3.example.com")
        self.assertEqual(tomllib.loads(config(rendered("file")))["store"], {"url": "file:///var/lib/kvasir-store/data"})

    def test_tenants_in_values(self):
        secret = one(rendered("tokens"), "Secret", "kv-tenants")
        tenants = tomllib.loads(secret["stringData"]["tenants.toml"])
        self.assertEqual([t["name"] for t in tenants["token"]], ['ci "quoted"', "ops"])
        self.assertEqual(tenants["tenant"]["team.a"], {"requests_per_second": 500})
        volumes = {v["name"]: v for v in pod(rendered("tokens"))["volumes"]}
        self.assertEqual(volumes["tenants"]["secret"]["secretName"], "kv-tenants")
        self.assertFalse(all_of(rendered("eks"), "Secret"), "an existing Secret is not made again")

    def test_files_that_the_configuration_names_are_mounted(self):
        for case in chart.cases("ok"):
            documents = rendered(case.stem)
            settings = tomllib.loads(config(documents))
            folders = [m["mountPath"] for m in container(documents)["volumeMounts"]]
            volumes = {v["name"]: v for v in pod(documents)["volumes"]}
            mounted = {}
            for mount in container(documents)["volumeMounts"]:
                self.assertNotIn("subPath", mount, "changes would not arrive")
                volume = volumes.get(mount["name"], {})
                source = volume.get("secret", volume.get("configMap", {}))
                mounted |= {f"{mount['mountPath']}/{item['path']}": mount for item in source.get("items", [])}
            for section, keys in settings.items():
                for key, value in keys.items():
                    if key.endswith("_file"):
                        self.assertIn(value, mounted, f"{case.stem}: {section}.{key}")
            self.assertEqual(len(folders), len(set(folders)))
            nested = [(a, b) for a in folders for b in folders if a != b and b.startswith(a + "/")]
            self.assertFalse([n for n in nested if n[0].startswith("/etc")], "a read-only folder takes no mounts")


    def test_replicas_know_each_other(self):
        """Members by DNS, and each pod its own name; one replica over a volume has no others."""
        documents = rendered("minimal")
        self.assertEqual(tomllib.loads(config(documents))["cluster"]["members"], "dns+srv://_api._tcp.rel-kvasir-headless")
        server = container(documents)
        self.assertIn("--cluster.advertise=http://$(POD_NAME).rel-kvasir-headless:7480", server["args"])
        fields = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in server["env"] if "fieldRef" in e.get("valueFrom", {})}
        self.assertEqual(fields, {"POD_NAME": "metadata.name", "POD_ZONE": "metadata.labels['topology.kubernetes.io/zone']"})
        self.assertIn("--cluster.zone=$(POD_ZONE)", server["args"])
        documents = rendered("file")
        self.assertNotIn("cluster", tomllib.loads(config(documents)))

    def test_variables_of_the_image_do_not_win(self):
        """The environment goes before kvasir.toml: what the image sets there must be set here again."""
        dockerfile = (chart.ROOT / "deploy/Dockerfile").read_text()
        images = set(re.findall(r"^ENV (KVASIR_[A-Z_]+)=", dockerfile, re.MULTILINE))
        documents = rendered("minimal")
        ours = {e["name"]: e.get("value") for e in container(documents)["env"] if e["name"].startswith("KVASIR_")}
        self.assertLessEqual(images, ours.keys())
        settings = tomllib.loads(config(documents))
        for name, value in ours.items():
            section, _, key = name.removeprefix("KVASIR_").lower().partition("_")
            self.assertEqual(settings[section][key], value)
        entrypoint = re.search(r'^ENTRYPOINT \["([^"]+)"\]$', dockerfile, re.MULTILINE)[1]
        self.assertTrue(entrypoint.endswith("/kvasir"), "arguments begin with a command of kvasir")


class Credentials(unittest.TestCase):
    def test_by_reference_only(self):
        env = {e["name"]: e for e in container(rendered("emptydir"))["env"]}
        reference = {"secretKeyRef": {"name": "store-keys", "key": "password"}}
        self.assertEqual(env["AWS_SECRET_ACCESS_KEY"]["valueFrom"], reference)
        self.assertEqual(env["AWS_SESSION_TOKEN"]["valueFrom"]["secretKeyRef"]["key"], "session")
        self.assertEqual(env["SSL_CERT_FILE"]["value"], "/etc/kvasir/store-ca/ca.crt")
        self.assertEqual(env["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"]["value"], "true")

    def test_the_pods_own_identity(self):
        documents = rendered("eks")
        self.assertFalse([e for e in container(documents)["env"] if e["name"].startswith("AWS_")])
        account = one(documents, "ServiceAccount")
        self.assertIn("eks.amazonaws.com/role-arn", account["metadata"]["annotations"])
        self.assertEqual(pod(documents)["serviceAccountName"], account["metadata"]["name"])
        self.assertFalse(all_of(rendered("hooks"), "ServiceAccount"))
        self.assertEqual(pod(rendered("hooks"))["serviceAccountName"], "kvasir")


class Replica(unittest.TestCase):
    def test_hardened(self):
        for case in chart.cases("ok"):
            for document in rendered(case.stem):
                for spec in pods(document):
                    self.assertFalse(spec["automountServiceAccountToken"])
                    self.assertTrue(spec["securityContext"]["runAsNonRoot"])
                    self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                    for each in [c for c in spec["containers"] if c["name"] != "sidecar"]:
                        context = each["securityContext"]
                        self.assertFalse(context["allowPrivilegeEscalation"])
                        self.assertTrue(context["readOnlyRootFilesystem"])
                        self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                        self.assertIn("/tmp", [m["mountPath"] for m in each["volumeMounts"]])
                        self.assertIn("memory", each["resources"]["requests"])

    def test_liveness_never_asks_the_store(self):
        probes = container(rendered("minimal"))
        self.assertEqual(probes["livenessProbe"]["httpGet"]["path"], "/livez")
        self.assertEqual(probes["startupProbe"]["httpGet"]["path"], "/livez")
        self.assertEqual(probes["readinessProbe"]["httpGet"]["path"], "/readyz")
        ports = {p["name"] for p in probes["ports"]}
        for probe in ["livenessProbe", "startupProbe", "readinessProbe"]:
            self.assertIn(probes[probe]["httpGet"]["port"], ports)

    def test_the_drain_fits_into_the_grace(self):
        for case in chart.cases("ok"):
            documents = rendered(case.stem)
            grace = pod(documents)["terminationGracePeriodSeconds"]
            drain = tomllib.loads(config(documents))["server"]["drain_grace"]
            sleep = container(documents)["lifecycle"]["preStop"]["sleep"]["seconds"]
            self.assertGreaterEqual(grace, sleep + int(drain.removesuffix("s")) + 10)
        self.assertEqual(pod(of({"drain": {"preStopSeconds": 30, "graceSeconds": 60}}))["terminationGracePeriodSeconds"], 100)

    def test_disk(self):
        statefulset = one(rendered("eks"), "StatefulSet")["spec"]
        claim = statefulset["volumeClaimTemplates"][0]
        self.assertEqual(claim["spec"]["resources"]["requests"]["storage"], "500Gi")
        self.assertEqual(statefulset["persistentVolumeClaimRetentionPolicy"]["whenScaled"], "Delete")
        self.assertFalse({k for k in claim["metadata"]["labels"] if "version" in k or "chart" in k})
        bare = one(rendered("emptydir"), "StatefulSet")["spec"]
        self.assertNotIn("volumeClaimTemplates", bare)
        volumes = {v["name"]: v for v in bare["template"]["spec"]["volumes"]}
        self.assertEqual(volumes["cache"], {"name": "cache", "emptyDir": {"sizeLimit": "20Gi"}})
        both = one(rendered("file"), "StatefulSet")["spec"]
        self.assertEqual([c["metadata"]["name"] for c in both["volumeClaimTemplates"]], ["cache", "store"])
        self.assertEqual(both["persistentVolumeClaimRetentionPolicy"]["whenDeleted"], "Retain")

    def test_spread(self):
        constraints = pod(rendered("eks"))["topologySpreadConstraints"]
        when = {c["topologyKey"]: c["whenUnsatisfiable"] for c in constraints}
        self.assertEqual(when["topology.kubernetes.io/zone"], "DoNotSchedule")
        self.assertEqual(when["kubernetes.io/hostname"], "ScheduleAnyway")
        selector = one(rendered("eks"), "StatefulSet")["spec"]["selector"]
        self.assertTrue(all(c["labelSelector"] == selector for c in constraints))
        self.assertNotIn("topologySpreadConstraints", pod(of({"topologySpread": {"zone": "", "node": ""}})))

    def test_hooks(self):
        documents = rendered("hooks")
        spec, first = pod(documents), container(documents)
        self.assertEqual(first["command"], ["/usr/local/bin/kvasir"])
        self.assertEqual(first["args"][-2:], ["--log.filter", "info,kvasir_storage=debug"])
        self.assertEqual(first["lifecycle"], {"preStop": {"sleep": {"seconds": 20}}})
        self.assertIn({"name": "RUST_BACKTRACE", "value": "1"}, first["env"])
        self.assertEqual(first["envFrom"], [{"configMapRef": {"name": "env"}}])
        self.assertEqual([c["name"] for c in spec["containers"]], ["kvasir", "sidecar"])
        self.assertEqual([c["name"] for c in spec["initContainers"]], ["wait"])
        self.assertEqual(spec["hostAliases"], [{"ip": "10.0.0.1", "hostnames": ["s3"]}])
        self.assertEqual((spec["priorityClassName"], spec["nodeSelector"]), ("high", {"kubernetes.io/os": "linux"}))
        self.assertEqual(spec["topologySpreadConstraints"][0]["topologyKey"], "rack")
        names = {d["metadata"]["name"] for d in all_of(documents, "ConfigMap")}
        self.assertEqual(names, {"rel-cache", "rel-cache-extra", "from-text"})


class Services(unittest.TestCase):
    def test_both(self):
        documents = rendered("eks")
        selector = one(documents, "StatefulSet")["spec"]["selector"]["matchLabels"]
        service, headless = one(documents, "Service", "rel-kvasir"), one(documents, "Service", "rel-kvasir-headless")
        self.assertEqual((service["spec"]["selector"], headless["spec"]["selector"]), (selector, selector))
        self.assertEqual([p["name"] for p in service["spec"]["ports"]], ["api"], "metrics are not for everybody")
        self.assertEqual(service["spec"]["trafficDistribution"], "PreferClose")
        self.assertEqual(one(documents, "StatefulSet")["spec"]["serviceName"], headless["metadata"]["name"])
        self.assertTrue(headless["spec"]["publishNotReadyAddresses"])

    def test_load_balancer(self):
        spec = one(rendered("hooks"), "Service", "rel-cache")["spec"]
        self.assertEqual((spec["type"], spec["ports"][0]["port"]), ("LoadBalancer", 80))
        self.assertEqual((spec["externalTrafficPolicy"], spec["ipFamilies"]), ("Local", ["IPv6", "IPv4"]))

    def test_s3_front(self):
        documents = rendered("s3-front")
        self.assertIn({"name": "s3", "containerPort": 9000, "protocol": "TCP"}, container(documents)["ports"])
        self.assertTrue(tomllib.loads(config(documents))["s3"]["listen"].endswith(":9000"))
        for name, port in [("kv", 80), ("kv-headless", 9000)]:
            ports = {p["name"]: (p["port"], p["targetPort"]) for p in one(documents, "Service", name)["spec"]["ports"]}
            self.assertEqual(ports["s3"], (port, "s3"))
        clients = one(documents, "NetworkPolicy")["spec"]["ingress"][0]
        self.assertIn({"port": "s3", "protocol": "TCP"}, clients["ports"])


class Availability(unittest.TestCase):
    def test_disruption_budget(self):
        self.assertEqual(one(rendered("minimal"), "PodDisruptionBudget")["spec"]["maxUnavailable"], 1)
        spec = one(rendered("gc-none"), "PodDisruptionBudget")["spec"]
        self.assertEqual((spec["minAvailable"], "maxUnavailable" in spec), (1, False))
        self.assertFalse(all_of(rendered("file"), "PodDisruptionBudget"), "one replica must go when its node goes")

    def test_a_budget_follows_the_most_replicas(self):
        scaled = {"enabled": True, "minReplicas": 1, "maxReplicas": 8}
        spec = one(of({"autoscaling": scaled}), "PodDisruptionBudget")["spec"]
        self.assertEqual(spec["maxUnavailable"], 1)
        least = {"autoscaling": scaled, "podDisruptionBudget": {"minAvailable": 1}}
        self.assertFalse(all_of(of(least), "PodDisruptionBudget"), "it would block the drain of the only replica")
        self.assertFalse(all_of(of({"replicas": 1}), "PodDisruptionBudget"))

    def test_a_budget_in_percent_that_leaves_a_replica_to_drain(self):
        spec = one(of({"podDisruptionBudget": {"minAvailable": "50%"}}), "PodDisruptionBudget")["spec"]
        self.assertEqual(spec["minAvailable"], "50%")

    def test_autoscaler(self):
        documents = rendered("eks")
        # With a cluster it is as many as there are: test_upgrade.py.
        self.assertNotIn("replicas", one(documents, "StatefulSet")["spec"], "the autoscaler decides")
        spec = one(documents, "HorizontalPodAutoscaler")["spec"]
        self.assertEqual((spec["minReplicas"], spec["maxReplicas"]), (3, 12))
        self.assertEqual([m["type"] for m in spec["metrics"]], ["Resource", "Pods"])
        self.assertEqual(spec["metrics"][1]["pods"]["target"], {"type": "AverageValue", "averageValue": "800M"})
        target = spec["scaleTargetRef"]
        self.assertEqual((target["kind"], target["name"]), ("StatefulSet", "rel-kvasir"))
        down = spec["behavior"]["scaleDown"]
        self.assertEqual(down["stabilizationWindowSeconds"], 600)
        self.assertEqual(down["policies"], [{"type": "Pods", "value": 1, "periodSeconds": 300}])

    def test_garbage_collector(self):
        self.assertEqual(tomllib.loads(config(rendered("gc-cronjob")))["gc"], {"interval": "0s", "ttl": "24h"})
        job = one(rendered("gc-cronjob"), "CronJob")["spec"]
        first = job["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
        self.assertEqual(first["args"][:5], ["admin", "gc", "--direct", "--json", "--dry-run"])
        self.assertIn("AWS_ACCESS_KEY_ID", [e["name"] for e in first["env"]])
        self.assertEqual(job["concurrencyPolicy"], "Forbid")
        self.assertFalse(all_of(rendered("minimal"), "CronJob"), "replicas collect")
        self.assertNotIn("gc", tomllib.loads(config(rendered("minimal"))))

    def test_the_garbage_collectors_pod_has_what_is_added(self):
        """Variables that are added may name files of volumes that are added."""
        volume, mount = {"name": "keys", "secret": {"secretName": "keys"}}, {"name": "keys", "mountPath": "/etc/keys"}
        documents = of({"gc": {"mode": "cronJob"}, "extraVolumes": [volume], "extraVolumeMounts": [mount]})
        job = one(documents, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        for spec in (pod(documents), job):
            self.assertIn(volume, spec["volumes"])
            self.assertIn(mount, spec["containers"][0]["volumeMounts"])


class Retraining(unittest.TestCase):
    def test_calls_the_service_as_an_admin(self):
        job = one(rendered("retrain"), "CronJob")["spec"]
        self.assertEqual((job["schedule"], job["suspend"], job["concurrencyPolicy"]), ("5 3 * * *", False, "Forbid"))
        spec = job["jobTemplate"]["spec"]["template"]["spec"]
        first = spec["containers"][0]
        self.assertEqual(first["args"][:5], ["profile", "retrain", "--all", "--bandwidth", "2.5gbit"])
        self.assertEqual(first["args"][5:7], ["--url", "https://rel-kvasir.ns.svc:7480"])
        self.assertLessEqual({"--token-file", "--ca-file"}, set(first["args"]))
        self.assertEqual([e["name"] for e in first["env"]], ["TMPDIR"], "no credentials of the store")
        secrets = {v["name"]: v["secret"] for v in spec["volumes"] if "secret" in v}
        self.assertEqual(secrets["token"]["secretName"], "kvasir-retrain")
        self.assertEqual(secrets["token"]["items"], [{"key": "admin", "path": "token"}])
        self.assertEqual(first["resources"]["requests"], {"cpu": "1", "memory": "10Gi"})

    def test_off_by_default(self):
        self.assertFalse(all_of(rendered("eks"), "CronJob"))
        self.assertEqual(len(one(rendered("eks"), "NetworkPolicy")["spec"]["ingress"][0]["from"]), 2)

    def test_without_credentials(self):
        job = one(of({"profiles": {"retrain": {"enabled": True}}}), "CronJob")["spec"]["jobTemplate"]["spec"]
        arguments = job["template"]["spec"]["containers"][0]["args"]
        self.assertEqual(arguments[5:], ["--url", "http://rel-kvasir.ns.svc:7480"])

    def test_is_let_in(self):
        documents = rendered("retrain")
        labels = one(documents, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
        peer = one(documents, "NetworkPolicy")["spec"]["ingress"][0]["from"][-1]["podSelector"]["matchLabels"]
        self.assertLessEqual(peer.items(), labels.items())


class Network(unittest.TestCase):
    def test_policy(self):
        spec = one(rendered("eks"), "NetworkPolicy")["spec"]
        api, ops = spec["ingress"]
        self.assertEqual(api["from"][0]["podSelector"], {"matchLabels": {"app": "vllm"}})
        test = one(rendered("eks"), "Pod")["metadata"]["labels"]
        self.assertLessEqual(api["from"][1]["podSelector"]["matchLabels"].items(), test.items())
        self.assertEqual((api["ports"][0]["port"], ops["ports"][0]["port"]), ("api", "ops"))
        self.assertEqual([p["port"] for rule in spec["egress"] for p in rule["ports"]], [53, 53, 443])

    def test_the_stores_port(self):
        def ports(case):
            egress = one(rendered(case), "NetworkPolicy")["spec"]["egress"]
            return [p["port"] for rule in egress[1:] for p in rule["ports"]]

        self.assertEqual([ports(c) for c in ("emptydir", "kind-minio", "file")], [[9443], [9000], []])

    def test_certificate(self):
        certificate = one(rendered("eks"), "Certificate")["spec"]
        for name in ["rel-kvasir.ns.svc", "*.rel-kvasir-headless.ns.svc.cluster.local", "kvasir.example.com"]:
            self.assertIn(name, certificate["dnsNames"])
        volumes = {v["name"]: v for v in pod(rendered("eks"))["volumes"]}
        self.assertEqual(volumes["tls"]["secret"]["secretName"], certificate["secretName"])


class Watching(unittest.TestCase):
    def test_service_monitor_finds_the_headless_service_alone(self):
        monitor = one(rendered("eks"), "ServiceMonitor")
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        found = [s for s in all_of(rendered("eks"), "Service") if wanted <= s["metadata"]["labels"].items()]
        self.assertEqual([s["metadata"]["name"] for s in found], ["rel-kvasir-headless"])
        self.assertIn(monitor["spec"]["endpoints"][0]["port"], [p["name"] for p in found[0]["spec"]["ports"]])
        self.assertEqual(monitor["metadata"]["labels"]["release"], "prometheus")

    def test_rules_are_the_files(self):
        files = sorted((chart.CHART / "files/rules").glob("*.yaml"))
        groups = [g for f in files for g in chart.yaml.safe_load(f.read_text())["groups"]]
        own = {"name": "own", "rules": [{"alert": "Own", "expr": "up == 0"}]}
        made = one(rendered("hooks"), "PrometheusRule")["spec"]["groups"]
        by_name = lambda group: group["name"]  # noqa: E731
        self.assertEqual(sorted(made, key=by_name), sorted([*groups, own], key=by_name))
        names = [r["alert"] for g in groups for r in g["rules"] if "alert" in r]
        if names:
            values = {"metrics": {"prometheusRule": {"enabled": True, "disabled": names[:1]}}}
            left = one(of(values), "PrometheusRule")["spec"]["groups"]
            self.assertEqual([r["alert"] for g in left for r in g["rules"] if "alert" in r], names[1:])

    def test_dashboards_are_the_files(self):
        files = sorted((chart.CHART / "files/dashboards").glob("*.json"))
        made = [d for d in all_of(rendered("eks"), "ConfigMap") if "grafana_dashboard" in d["metadata"]["labels"]]
        self.assertEqual(len(made), len(files))
        for document in made:
            ((name, text),) = document["data"].items()
            source = json.loads((chart.CHART / "files/dashboards" / name).read_text())
            self.assertEqual(json.loads(text), source)
            self.assertEqual(document["metadata"]["annotations"]["grafana_folder"], "Kvasir")


class SelfTest(unittest.TestCase):
    def test_calls_the_service(self):
        test = one(rendered("eks"), "Pod")
        self.assertEqual(test["metadata"]["annotations"]["helm.sh/hook"], "test")
        arguments = test["spec"]["containers"][0]["args"]
        self.assertEqual(arguments[:3], ["selftest", "--url", "https://rel-kvasir.ns.svc:7480"])
        self.assertIn("--token-file", arguments)
        self.assertIn("--ca-file", arguments)
        self.assertNotIn("--token-file", one(rendered("minimal"), "Pod")["spec"]["containers"][0]["args"])
        self.assertNotIn("--ca-file", one(rendered("tokens"), "Pod")["spec"]["containers"][0]["args"])

    def test_is_left_out_where_it_could_not_call(self):
        self.assertFalse(all_of(rendered("mtls"), "Pod"))
        self.assertFalse(all_of(of({"selfTest": {"enabled": False}}), "Pod"))


class Minio(unittest.TestCase):
    def test_off_by_default(self):
        self.assertFalse(all_of(rendered("minimal"), "Deployment"))

    def test_beside_the_service(self):
        documents = rendered("kind-minio")
        secret = one(documents, "Secret")
        self.assertEqual(set(secret["data"]), {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"})
        env = {e["name"]: e for e in container(documents)["env"]}
        self.assertEqual(env["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"]["name"], secret["metadata"]["name"])
        endpoint = tomllib.loads(config(documents))["store"]["endpoint"]
        service = one(documents, "Service", "rel-kvasir-minio")
        self.assertEqual(endpoint, f"http://{service['metadata']['name']}.ns.svc:{service['spec']['ports'][0]['port']}")


class Notes(unittest.TestCase):
    def test_say_how_to_connect(self):
        def notes(case):
            # helm prints notes only with a cluster; extra objects are templates too.
            text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata:\n  text: |-\n"
            text += '    {{ include "kvasir.notes" . | nindent 4 }}'
            done = chart.template(chart.TESTS / f"ok/{case}.yaml", values={"extraObjects": [text]})
            return one(chart.objects(done), "ConfigMap", "notes")["data"]["text"]

        for case, parts in {
            "minimal": ["http://rel-kvasir.ns.svc:7480", "helm test", "Callers are not authenticated", "Kvasir::builder"],
            "eks": ["https://rel-kvasir.ns.svc:7480", ".token(", "ca_certificates", "statefulset/rel-kvasir 7481:7481"],
            "mtls": ["helm test is left out: it has no client certificate"],
            "file": ["on the volume of one pod"],
            "kind-minio": ["MinIO is for development"],
        }.items():
            text = notes(case)
            for part in parts:
                self.assertIn(part, text)
        self.assertNotIn("Callers are not authenticated", notes("eks"))
        self.assertNotIn("https://127.0.0.1", notes("eks"), "the certificate does not have that name")


def pods(document):
    """The pod specs in an object."""
    spec = document.get("spec", {})
    if document["kind"] == "Pod":
        return [spec]
    template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
    return [template["spec"]] if template else []
