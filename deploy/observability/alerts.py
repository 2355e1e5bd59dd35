"""Alerts and what they are computed from, each with series for which it fires and series for which it does not.

Every alert has a section of the same name in services/kvasir-server/docs/alerts.md: its cause, what to check, the remedy.
"""

from model import Alert, Series

PAGE, TICKET = "critical", "warning"
"""Somebody gets up; somebody looks tomorrow."""

KVASIR = {"job": "kvasir", "namespace": "ml"}
ONE = 'instance="a",job="kvasir",namespace="ml"'
TWO = 'instance="b",job="kvasir",namespace="ml"'
BY = "by (namespace, job)"


def one(name: str, values: str, labels: str = "") -> Series:
    """A series of the first replica."""
    return Series(f"{name}{{{ONE}{',' + labels if labels else ''}}}", values)


def two(name: str, values: str, labels: str = "") -> Series:
    """A series of the second."""
    return Series(f"{name}{{{TWO}{',' + labels if labels else ''}}}", values)


COUNTED = 'route!~"/readyz|/livez|s3:unknown"'
"""Requests that the error budget is for. `s3:unknown` are those that the S3 front refuses: with 503 over a tenant's rate limit."""
FAILED = f'status=~"5..",status!~"501|507",{COUNTED}'
"""Those that the service failed. 501 refuses an operation that is not implemented, 507 a tenant over its storage quota."""


def errors(window: str) -> str:
    """Share of requests that ended with a server error."""
    failed = f'sum {BY} (rate(kvasir_http_requests_total{{{FAILED}}}[{window}]))'
    return f"{failed}\n  / sum {BY} (rate(kvasir_http_requests_total{{{COUNTED}}}[{window}]))"


def answered(values: str, failed: str) -> list:
    """Requests of one replica, and those that failed."""
    route = 'route="/v1/lookup",method="POST"'
    return [one("kvasir_http_requests_total", values, f'{route},status="200"'),
            one("kvasir_http_requests_total", failed, f'{route},status="503"')]


def refused(values: str) -> list:
    """Requests that one replica refuses: a tenant over its storage quota, and one over its rate limit at the S3 front."""
    return [one("kvasir_http_requests_total", values, 'route="/v1/models/{model_id}/chunks/{seq_hash}",method="PUT",status="507"'),
            one("kvasir_http_requests_total", values, 'route="s3:unknown",method="PUT",status="503"')]


RECORDED = [(f"namespace_job:kvasir_http_errors:ratio_rate{window}", errors(window)) for window in ("5m", "30m", "1h", "6h")]
RECORDED += [
    # Nothing where nothing was asked: 0/0 would make a day's average NaN, which no alert compares with.
    ("namespace_job:kvasir_lookup_tokens_found:ratio_rate30m",
     f'sum {BY} (rate(kvasir_lookup_tokens_total{{result="matched"}}[30m]))\n'
     f'  / (sum {BY} (rate(kvasir_lookup_tokens_total{{result="asked"}}[30m])) > 0)'),
    ("namespace_job:kvasir_loads_in_slo:ratio_rate30m",
     f'sum {BY} (rate(kvasir_loads_total{{slo="met"}}[30m])) / sum {BY} (rate(kvasir_loads_total[30m]))'),
]


def burn(short: str, long: str, factor: float) -> str:
    """The budget of 1 request in 1,000 is spent `factor` times too fast, lately and for a while."""
    name = "namespace_job:kvasir_http_errors:ratio_rate"
    return f"{name}{long} > {factor} * 0.001\nand {name}{short} > {factor} * 0.001"


AVAILABILITY = [
    Alert("KvasirAbsent", PAGE,
          # The second: one deployment of several is gone.
          f"absent(kvasir_ready)\nor (group {BY} (count_over_time(kvasir_ready[1h])) unless on (namespace, job) group {BY} (kvasir_ready))", "5m",
          "No replica of Kvasir is scraped.", "Prometheus has no metrics of any replica for 5 minutes.",
          at="10m", fires=[Series("up", "1x40")],
          also=(([one("kvasir_ready", "1x2 stale"), Series('kvasir_ready{instance="c",job="other",namespace="dev"}', "1x40")], KVASIR),),
          silent=[one("kvasir_ready", "1x40"), two("kvasir_ready", "1x2 stale")]),
    Alert("KvasirDown", PAGE, f"up == 0\nand on (namespace, job) group {BY} (count_over_time(kvasir_build_info[1d]))", "3m",
          "A replica of Kvasir does not answer.", "Prometheus cannot scrape it, while it or its neighbours were scraped within a day.",
          at="10m", labels={**KVASIR, "instance": "b"},
          fires=[one("up", "1x40"), two("up", "1x4 0x40"), one("kvasir_build_info", "1x40", 'version="1"')],
          silent=[one("up", "1x40"), two("up", "1x40"), Series('up{job="other"}', "0x40"), Series('up{job="kvasir",namespace="other"}', "0x40"),
                  one("kvasir_build_info", "1x40", 'version="1"')]),
    Alert("KvasirNotServing", PAGE, f"sum {BY} (kvasir_ready) == 0", "1m",
          "No replica of Kvasir takes traffic.",
          "Replicas run and none is ready: none has reached its store, or a background task that they need panics.",
          at="5m", labels=KVASIR, fires=[one("kvasir_ready", "1x2 0x20"), two("kvasir_ready", "0x20")],
          silent=[one("kvasir_ready", "0x20"), two("kvasir_ready", "1x20")]),
    Alert("KvasirNotReady", TICKET, "kvasir_ready == 0", "10m",
          "A replica of Kvasir runs and takes no traffic.",
          "It has not reached its store since it started, a background task that it needs panics, or its shutdown does not end.",
          at="15m", labels={**KVASIR, "instance": "a"}, fires=[one("kvasir_ready", "0x40"), two("kvasir_ready", "1x40")],
          silent=[one("kvasir_ready", "0x12 1x40"), two("kvasir_ready", "1x40")]),
    Alert("KvasirRestarts", TICKET, "changes(kvasir_start_time_seconds[30m]) > 2", "0m",
          "A replica of Kvasir starts again and again.", "It started {value} times within 30 minutes.",
          at="20m", labels={**KVASIR, "instance": "a"}, template="{{ $value }}", value="3",
          fires=[one("kvasir_start_time_seconds", "10x8 300x8 600x8 900x30")], silent=[one("kvasir_start_time_seconds", "10x20 700x40")]),
    Alert("KvasirVersionsDiffer", TICKET, f"count {BY} (count by (namespace, job, version) (kvasir_build_info)) > 1", "1h",
          "Replicas of Kvasir have run different versions for an hour.", "{value} versions run: a rollout is stuck, or was left half done.",
          at="80m", labels=KVASIR, template="{{ $value }}", value="2",
          fires=[one("kvasir_build_info", "1x200", 'version="1"'), two("kvasir_build_info", "1x200", 'version="2"')],
          silent=[one("kvasir_build_info", "1x200", 'version="1"'), two("kvasir_build_info", "1x40", 'version="2"'),
                  two("kvasir_build_info", "_x60 1x140", 'version="1"')]),
    Alert("KvasirErrorsFast", PAGE, burn("5m", "1h", 14.4), "2m",
          "Kvasir answers many requests with a server error.", "{value} of the last hour's requests failed; a month's budget of 0.1 % lasts two days.",
          at="62m", labels=KVASIR, template="{{ $value | humanizePercentage }}", value="4.762%",
          fires=answered("0+600x130", "0+30x130"), silent=[*answered("0+600x130", "0+6x130"), *refused("0+60x130")]),
    Alert("KvasirErrorsSlow", TICKET, burn("30m", "6h", 6), "15m",
          "Kvasir answers more requests with a server error than it should.", "{value} of the last 6 hours' requests failed; a month's budget of 0.1 % lasts five days.",
          at="400m", labels=KVASIR, template="{{ $value | humanizePercentage }}", value="0.9901%",
          fires=answered("0+600x900", "0+6x900"), silent=[*answered("0+6000x900", "0+6x900"), *refused("0+600x900")]),
]

VALUE = [
    Alert("KvasirSloMissed", TICKET,
          f"namespace_job:kvasir_loads_in_slo:ratio_rate30m < 0.9\nand sum {BY} (increase(kvasir_loads_total[30m])) > 20", "10m",
          "Loads from Kvasir miss their time to first token.", "{value} of the last 30 minutes' loads met their SLO.",
          at="45m", labels=KVASIR, template="{{ $value | humanizePercentage }}", value="66.67%",
          fires=[one("kvasir_loads_total", "0+20x120", 'slo="met"'), one("kvasir_loads_total", "0+10x120", 'slo="missed"')],
          silent=[one("kvasir_loads_total", "0+20x120", 'slo="met"'), one("kvasir_loads_total", "0+1x120", 'slo="missed"')]),
    Alert("KvasirHitsCollapsed", TICKET,
          "namespace_job:kvasir_lookup_tokens_found:ratio_rate30m\n"
          "  < 0.5 * avg_over_time(namespace_job:kvasir_lookup_tokens_found:ratio_rate30m[1d] offset 1h)\n"
          f"and sum {BY} (rate(kvasir_lookup_tokens_total{{result=\"asked\"}}[30m])) > 100", "30m",
          "Kvasir finds less than half of what it found yesterday.", "Only {value} of the tokens that are looked up are stored.",
          at="5h", labels=KVASIR, template="{{ $value | humanizePercentage }}", value="10%",
          fires=[one("kvasir_lookup_tokens_total", "0+30000x700", 'result="asked"'),
                 one("kvasir_lookup_tokens_total", "0+24000x420 10080000+3000x280", 'result="matched"')],
          also=(([one("kvasir_lookup_tokens_total", "0+30000x100 3000000x100 3000000+30000x500", 'result="asked"'),
                  one("kvasir_lookup_tokens_total", "0+24000x100 2400000x100 2400000+24000x220 7680000+3000x280", 'result="matched"')], KVASIR),),
          silent=[one("kvasir_lookup_tokens_total", "0+30000x700", 'result="asked"'),
                  one("kvasir_lookup_tokens_total", "0+24000x420 10080000+15000x280", 'result="matched"')]),
    Alert("KvasirLookupsSlow", TICKET,
          f'histogram_quantile(0.99, sum by (namespace, job, le) (rate(kvasir_http_request_duration_seconds_bucket{{route="/v1/lookup"}}[10m]))) > 0.5',
          "15m", "Lookups in Kvasir are slow.", "1 in 100 takes longer than {value}.",
          at="30m", labels=KVASIR, template="{{ $value | humanizeDuration }}", value="995ms",
          fires=[one("kvasir_http_request_duration_seconds_bucket", "0+0x80", 'route="/v1/lookup",le="0.5"'),
                 one("kvasir_http_request_duration_seconds_bucket", "0+100x80", 'route="/v1/lookup",le="1"'),
                 one("kvasir_http_request_duration_seconds_bucket", "0+100x80", 'route="/v1/lookup",le="+Inf"')],
          silent=[one("kvasir_http_request_duration_seconds_bucket", "0+100x80", 'route="/v1/lookup",le="0.5"'),
                  one("kvasir_http_request_duration_seconds_bucket", "0+100x80", 'route="/v1/lookup",le="+Inf"')]),
]

STORE = [
    Alert("KvasirStoreBreakerOpen", PAGE, "kvasir_store_breaker_open > 0", "2m",
          "A replica of Kvasir has given up on its store for now.", "It fails reads or writes at once and tries one request at a time.",
          at="5m", labels={**KVASIR, "instance": "a"}, fires=[one("kvasir_store_breaker_open", "0 1x20")],
          silent=[one("kvasir_store_breaker_open", "0 1 1 0x20")]),
    Alert("KvasirStoreFailing", TICKET,
          # A request given up at its deadline is an event only. The two metrics have other labels, so `or` keeps all series of both.
          f'sum {BY} (rate(kvasir_store_requests_total{{outcome="error"}}[10m]) or rate(kvasir_store_events_total{{event="deadline_passed"}}[10m]))\n'
          f'  / sum {BY} (rate(kvasir_store_requests_total[10m]) or rate(kvasir_store_events_total{{event="deadline_passed"}}[10m])) > 0.05', "10m",
          "The object store fails many of Kvasir's requests.", "{value} of the requests of the last 10 minutes failed.",
          at="25m", labels=KVASIR, template="{{ $value | humanizePercentage }}", value="10%",
          fires=[one("kvasir_store_requests_total", "0+90x60", 'op="get",outcome="ok"'), one("kvasir_store_requests_total", "0+10x60", 'op="get",outcome="error"')],
          also=(([one("kvasir_store_requests_total", "0+90x60", 'op="get",outcome="ok"'), one("kvasir_store_events_total", "0+10x60", 'event="deadline_passed"')], KVASIR),),
          silent=[one("kvasir_store_requests_total", "0+90x60", 'op="get",outcome="refused"'), one("kvasir_store_requests_total", "0+1x60", 'op="get",outcome="error"'),
                  one("kvasir_store_events_total", "0+1x60", 'event="deadline_passed"'), one("kvasir_store_events_total", "0+90x60", 'event="retried"')]),
    Alert("KvasirStoreSlow", TICKET,
          'histogram_quantile(0.9, sum by (namespace, job, le) (rate(kvasir_store_request_duration_seconds_bucket{op="get"}[10m]))) > 1', "15m",
          "The object store answers Kvasir's reads slowly.", "1 read in 10 waits longer than {value} for the head of its answer.",
          at="30m", labels=KVASIR, template="{{ $value | humanizeDuration }}", value="2.35s",
          fires=[one("kvasir_store_request_duration_seconds_bucket", "0+0x80", 'op="get",le="1"'),
                 one("kvasir_store_request_duration_seconds_bucket", "0+100x80", 'op="get",le="2.5"'),
                 one("kvasir_store_request_duration_seconds_bucket", "0+100x80", 'op="get",le="+Inf"')],
          silent=[one("kvasir_store_request_duration_seconds_bucket", "0+95x80", 'op="get",le="1"'),
                  one("kvasir_store_request_duration_seconds_bucket", "0+100x80", 'op="get",le="+Inf"')]),
    Alert("KvasirStoreBusy", TICKET, f'sum {BY} (increase(kvasir_store_events_total{{event=~"busy|budget_spent"}}[15m])) > 10', "5m",
          "Kvasir refuses store requests because too many wait or fail.", "{value} within 15 minutes.",
          at="25m", labels=KVASIR, template="{{ $value | humanize }}", value="60",
          fires=[one("kvasir_store_events_total", "0+2x60", 'event="busy"')], silent=[one("kvasir_store_events_total", "0+2x60", 'event="retried"')]),
    Alert("KvasirOverCapacity", TICKET,
          f"max {BY} (kvasir_stored_bytes) > 1.05 * max {BY} (kvasir_stored_capacity_bytes)\nand max {BY} (kvasir_stored_capacity_bytes) > 0", "1h",
          "Kvasir's store holds more than gc.capacity.", "{value} of chunk objects: the collector does not keep up with what is stored, or most is pinned.",
          at="90m", labels=KVASIR, template="{{ $value | humanize1024 }}B", value="2GiB",
          fires=[one("kvasir_stored_bytes", "2147483648x200"), one("kvasir_stored_capacity_bytes", "1073741824x200")],
          silent=[one("kvasir_stored_bytes", "1073741824x200"), one("kvasir_stored_capacity_bytes", "1073741824x200")]),
    Alert("KvasirBackgroundPanics", TICKET, "increase(kvasir_background_panics_total[1h]) > 0", "0m",
          "A background task of a Kvasir replica panics.", "It runs again, unless it is a job, which has failed; a replica that needs the task leaves the traffic.",
          at="20m", labels={**KVASIR, "instance": "a", "task": "gc"}, fires=[one("kvasir_background_panics_total", "0x10 1x40", 'task="gc"')],
          silent=[one("kvasir_background_panics_total", "1x60", 'task="gc"')]),
    Alert("KvasirCacheUnusable", TICKET, "kvasir_cache_unusable == 1", "5m",
          "A Kvasir replica runs without its disk.", "The disk was full or read-only at start: what should lie there is in memory or off, and is gone with the process.",
          at="20m", labels={**KVASIR, "instance": "a", "part": "index"}, fires=[one("kvasir_cache_unusable", "1x60", 'part="index"')],
          silent=[one("kvasir_cache_unusable", "0x60", 'part="index"')]),
    Alert("KvasirFilesRejected", TICKET, "kvasir_files_rejected == 1", "5m",
          "A Kvasir replica cannot use a changed file.", "The previous contents of the files of {value} stay in force: a revoked credential still works, and a replica that starts now refuses to.",
          at="20m", labels={**KVASIR, "instance": "a", "setting": "auth.tenants_file"}, template="{{ $labels.setting }}", value="auth.tenants_file",
          fires=[one("kvasir_files_rejected", "1x60", 'setting="auth.tenants_file"')],
          silent=[one("kvasir_files_rejected", "0x60", 'setting="auth.tenants_file"')]),
    Alert("KvasirCollectorStalled", TICKET,
          # A replica that starts anew has made no pass: what it said before counts. An interval of 0 is a collector that is off.
          # Where no pass ever ended, the first start counts at which the collector was on.
          "time() - (\n"
          f"  max {BY} (max_over_time(kvasir_gc_last_pass_time_seconds[7d]) > 0)\n"
          f"  or min {BY} (min_over_time((kvasir_start_time_seconds and kvasir_gc_interval_seconds > 0)[7d:30m]))\n"
          ")\n"
          f"  > clamp_min(3 * max {BY} (kvasir_gc_interval_seconds > 0), 6 * 3600)", "10m",
          "Kvasir's collector has not run for hours.", "The last pass was {value} ago, or the first start if there was no pass: deleted and expired chunks keep their space, and gc.capacity is not kept.",
          at="10h", labels=KVASIR, template="{{ $value | humanizeDuration }}", value="9h 55m 0s",
          fires=[one("kvasir_gc_last_pass_time_seconds", "0x10 300x1190"), one("kvasir_gc_interval_seconds", "600x1200"),
                 two("kvasir_gc_last_pass_time_seconds", "0x1200"), two("kvasir_gc_interval_seconds", "600x1200")],
          also=(([one("kvasir_gc_last_pass_time_seconds", "0x10 300x600 0x590"), one("kvasir_gc_interval_seconds", "600x1200")], KVASIR),
                ([one("kvasir_gc_last_pass_time_seconds", "0x1200"), one("kvasir_gc_interval_seconds", "600x1200"),
                  one("kvasir_start_time_seconds", "300x900 27300x300")], KVASIR)),
          silent=[one("kvasir_gc_last_pass_time_seconds", "0x10 300x1190"), one("kvasir_gc_interval_seconds", "14400x1200"),
                  two("kvasir_gc_last_pass_time_seconds", "0x1200"), two("kvasir_gc_interval_seconds", "14400x1200"),
                  Series('kvasir_gc_last_pass_time_seconds{instance="a",job="off",namespace="ml"}', "300x1200"),
                  Series('kvasir_gc_interval_seconds{instance="a",job="off",namespace="ml"}', "0x1200"),
                  Series('kvasir_gc_last_pass_time_seconds{instance="a",job="works",namespace="ml"}', "300x800 24300x400"),
                  Series('kvasir_gc_interval_seconds{instance="a",job="works",namespace="ml"}', "600x1200"),
                  *(Series(f'{name}{{instance="a",job="{job}",namespace="ml"}}', values) for job, name, values in (
                      ("new", "kvasir_gc_last_pass_time_seconds", "_x700 0x500"), ("new", "kvasir_gc_interval_seconds", "_x700 600x500"),
                      ("new", "kvasir_start_time_seconds", "_x700 21000x500"),
                      ("turned-on", "kvasir_gc_last_pass_time_seconds", "0x1200"), ("turned-on", "kvasir_gc_interval_seconds", "0x1100 600x100"),
                      ("turned-on", "kvasir_start_time_seconds", "300x1100 33000x100")))]),
]

DATA = [
    Alert("KvasirCorruption", PAGE,
          f'sum {BY} (increase(kvasir_scrub_objects_total{{result="quarantined"}}[1h])) > 0\n'
          f"or sum {BY} (increase(kvasir_corrupt_reads_total[1h])) > 0", "0m",
          "The object store gave Kvasir other bytes than were stored.", "No wrong byte was handed out: each is checked before, and clients compute instead.",
          at="20m", labels=KVASIR, fires=[one("kvasir_scrub_objects_total", "0x20 1x40", 'result="quarantined"')],
          also=(([one("kvasir_corrupt_reads_total", "0x20 1x40")], KVASIR),),
          # A lost key is answered with 502 too.
          silent=[one("kvasir_scrub_objects_total", "0+50x60", 'result="sound"'), one("kvasir_corrupt_reads_total", "1x60"),
                  one("kvasir_http_requests_total", "0x20 5x40", 'status="502",route="/v1/chunks/{id}",method="GET"')]),
    Alert("KvasirDiskCorruption", TICKET,
          # A process that replaces its index as it opens it never showed another number.
          # An index in memory, where the disk was unusable at start, is replaced whenever it is full.
          'increase(kvasir_hot_evictions_total{reason="corrupt"}[1h]) > 0\nor (\n'
          "  delta(kvasir_index_replaced[1h]) > 0\n"
          "  or (kvasir_index_replaced > 0 and time() - kvasir_start_time_seconds < 3600)\n"
          ') unless on (namespace, job, instance) kvasir_cache_unusable{part="index"} == 1', "0m",
          "A disk or the memory of a Kvasir replica gives other bytes than were written.", "Frames of the hot tier or the index were thrown away; the store has them all.",
          at="20m", labels={**KVASIR, "instance": "a", "medium": "disk", "reason": "corrupt"},
          fires=[one("kvasir_hot_evictions_total", "0x20 3x40", 'medium="disk",reason="corrupt"')],
          also=(([one("kvasir_hot_evictions_total", "0x20 1x40", 'medium="cpu",reason="corrupt"')],
                 {**KVASIR, "instance": "a", "medium": "cpu", "reason": "corrupt"}),
                ([one("kvasir_index_replaced", "0x20 1x40")], {**KVASIR, "instance": "a"}),
                ([one("kvasir_index_replaced", "_x10 1x50"), one("kvasir_start_time_seconds", "_x10 300x50")], {**KVASIR, "instance": "a"})),
          silent=[one("kvasir_hot_evictions_total", "0+9x60", 'medium="disk",reason="capacity"'),
                  one("kvasir_index_replaced", "1x60"), one("kvasir_start_time_seconds", "-3000x60"),
                  two("kvasir_index_replaced", "0x60"), two("kvasir_start_time_seconds", "0x60"),
                  Series('kvasir_index_replaced{instance="c",job="kvasir",namespace="ml"}', "0x20 1x40"),
                  Series('kvasir_cache_unusable{instance="c",job="kvasir",namespace="ml",part="index"}', "1x60")]),
    Alert("KvasirBadUploads", TICKET, f'sum {BY} (rate(kvasir_http_requests_total{{method="PUT",status="422"}}[15m])) > 0.1', "15m",
          "A client sends Kvasir damaged or misnamed chunks.", "{value} uploads a second are refused.",
          at="40m", labels=KVASIR, template="{{ $value | humanize }}", value="1",
          fires=[one("kvasir_http_requests_total", "0+30x100", 'method="PUT",status="422",route="/v1/chunks"')],
          silent=[one("kvasir_http_requests_total", "0+30x100", 'method="PUT",status="201",route="/v1/chunks"')]),
    Alert("KvasirJournalStuck", TICKET,
          f'sum {BY} (increase(kvasir_journal_entries_total{{direction="appended"}}[30m])) > 0\n'
          f'unless sum {BY} (increase(kvasir_journal_entries_total{{direction="applied"}}[30m])) > 0\n'
          f"unless count {BY} (kvasir_ready) < 2\n"
          # A large cluster reads removals alone, of which there may be none, and stays a large one until it has four members.
          f"unless max {BY} (max_over_time(kvasir_cluster_members[7d])) > 8", "15m",
          "Replicas of Kvasir do not learn of each other.", "Chunks are journalled and no replica takes the others' entries in: matches inside chunks and removals stay unknown.",
          at="50m", labels=KVASIR,
          fires=[one("kvasir_ready", "1x120"), two("kvasir_ready", "1x120"), one("kvasir_journal_entries_total", "0+3x120", 'direction="appended"'),
                 two("kvasir_journal_entries_total", "7x120", 'direction="applied"')],
          silent=[one("kvasir_ready", "1x120"), one("kvasir_journal_entries_total", "0+3x120", 'direction="appended"'),
                  *(Series(f'{name}{{instance="{replica}",job="shrunk",namespace="ml"{label}}}', values) for replica in "ab" for name, label, values in (
                      ("kvasir_ready", "", "1x120"), ("kvasir_cluster_members", "", "9x20 6x100"),
                      ("kvasir_journal_entries_total", ',direction="appended"', "0+3x120")))]),
    Alert("KvasirStoreNotConditional", TICKET, "kvasir_store_conditional_create == 0 and kvasir_ready == 1", "30m",
          "Kvasir's store ignores conditional writes.", "It works, with a slower first request of each tenant; is this the store you meant?",
          at="40m", labels={**KVASIR, "instance": "a"}, fires=[one("kvasir_store_conditional_create", "0x120"), one("kvasir_ready", "1x120")],
          silent=[one("kvasir_store_conditional_create", "0x10 1x120"), one("kvasir_ready", "1x120")]),
]

PRESSURE = [
    Alert("KvasirHotTierSmall", TICKET,
          'histogram_quantile(0.5, sum by (namespace, job, le) (rate(kvasir_hot_eviction_idle_seconds_bucket{reason="capacity"}[30m]))) < 60\n'
          f'and sum {BY} (rate(kvasir_hot_served_bytes_total{{medium="object"}}[30m])) > 0.5 * sum {BY} (rate(kvasir_hot_served_bytes_total[30m]))', "30m",
          "Kvasir's memory and disk are too small for what is read.", "Half of what is evicted was used within {value}, and most bytes are read from the store.",
          at="90m", labels=KVASIR, template="{{ $value | humanizeDuration }}", value="7.5s",
          fires=[one("kvasir_hot_eviction_idle_seconds_bucket", "0+0x200", 'medium="disk",reason="capacity",le="5"'),
                 one("kvasir_hot_eviction_idle_seconds_bucket", "0+20x200", 'medium="disk",reason="capacity",le="10"'),
                 one("kvasir_hot_eviction_idle_seconds_bucket", "0+20x200", 'medium="disk",reason="capacity",le="+Inf"'),
                 one("kvasir_hot_served_bytes_total", "0+900x200", 'type="",turn="1",medium="object"'), one("kvasir_hot_served_bytes_total", "0+100x200", 'type="",turn="1",medium="cpu"')],
          silent=[one("kvasir_hot_eviction_idle_seconds_bucket", "0+20x200", 'medium="disk",reason="capacity",le="10"'),
                  one("kvasir_hot_eviction_idle_seconds_bucket", "0+20x200", 'medium="disk",reason="capacity",le="+Inf"'),
                  one("kvasir_hot_served_bytes_total", "0+100x200", 'type="",turn="1",medium="object"'), one("kvasir_hot_served_bytes_total", "0+900x200", 'type="",turn="1",medium="cpu"')]),
    Alert("KvasirTenantThrottled", TICKET, "sum by (namespace, job, limit) (rate(kvasir_quota_throttled_total[15m])) > 1", "15m",
          "A tenant of Kvasir runs into its quota.", "{value} requests a second are refused with a Retry-After.",
          at="40m", labels={**KVASIR, "limit": "requests_per_second"}, template="{{ $value | humanize }}", value="2",
          fires=[one("kvasir_quota_throttled_total", "0+60x100", 'limit="requests_per_second"')], silent=[one("kvasir_quota_throttled_total", "0+3x100", 'limit="requests_per_second"')]),
    Alert("KvasirCredentialsRefused", TICKET, f"sum {BY} (rate(kvasir_auth_refused_total[10m])) > 1", "10m",
          "Kvasir refuses many credentials.", "{value} a second: a token expired or was rotated on one side only, or an address guesses.",
          at="25m", labels=KVASIR, template="{{ $value | humanize }}", value="2",
          fires=[one("kvasir_auth_refused_total", "0+60x60", 'reason="invalid"')],
          silent=[one("kvasir_auth_refused_total", "0+6x60", 'reason="invalid"'), one("kvasir_auth_refused_total", "0+18x60", 'reason="rate_limited"')]),
]

ALERTS = AVAILABILITY + VALUE + STORE + DATA + PRESSURE
