"""The dashboards. A query's `@` is the choice of replicas; `quiet` queries have no series while there are no problems."""

from model import Dashboard, Panel, Query

R = "[$__rate_interval]"


def rate(metric: str, by: str = "", labels: str = "") -> str:
    """Sum of rates, by some labels, of the series with some labels."""
    chosen = "{@," + labels + "}" if labels else "{@}"
    return f"sum{' by (' + by + ')' if by else ''} (rate({metric}{chosen}{R}))"


def quantile(q: float, metric: str, by: str = "") -> str:
    """A quantile of a histogram over all replicas, by some labels."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{@}}{R})))"


def share(part: str, whole: str) -> str:
    """A quotient that is 0 while the part has no series."""
    return f"({part} or vector(0)) / {whole}"


def mean_level() -> str:
    """Mean over tokens of the level they were loaded at; a profile has at most 8 levels."""
    tokens = "kvasir_load_level_tokens_total"
    terms = [f"{level} * (" + rate(tokens, labels=f'level="{level}"') + " or vector(0))" for level in range(1, 8)]
    return f"({' + '.join(terms)}) / {rate(tokens)}"


UP = [
    Panel("Replicas ready", "Replicas that accept traffic: they have reached the store, and no shutdown has begun.",
          [Query("ready", "sum(kvasir_ready{@})"), Query("running", "count(kvasir_build_info{@})")],
          kind="stat", width=4, height=4, steps=((None, "red"), (1, "green"))),
    Panel("Requests answered without a server error", "All responses except 5xx, over the rate window.",
          [Query("", "1 - " + share(rate("kvasir_http_requests_total", labels='status=~"5.."'), rate("kvasir_http_requests_total")))],
          unit="percentunit", kind="stat", width=4, height=4, ceiling=1, steps=((None, "red"), (0.99, "orange"), (0.999, "green"))),
    Panel("Open store breakers", "Reads and writes of each replica that fail immediately because the store failed 16 times in a row.",
          [Query("", "sum(kvasir_store_breaker_open{@})")], kind="stat", width=4, height=4, steps=((None, "green"), (1, "red"))),
    Panel("Running for", "Time since each replica started: short if it restarts often.",
          [Query("{{instance}}", "time() - kvasir_start_time_seconds{@}")], unit="s", kind="stat", width=6, height=4),
    Panel("Versions", "Replicas by version: two versions during a rollout, one otherwise.",
          [Query("{{version}}", "count by (version) (kvasir_build_info{@})")], kind="stat", width=6, height=4),
    Panel("Requests per second, by status", "All routes.", [Query("{{status}}", rate("kvasir_http_requests_total", "status"))],
          unit="reqps", width=12, stacked=True),
    Panel("Time to response headers", "99th percentile of lookups; 99th and 50th percentile of all requests.",
          [Query("lookup p99", 'histogram_quantile(0.99, sum by (le) (rate(kvasir_http_request_duration_seconds_bucket{@,route="/v1/lookup"}' + R + ")))"),
           Query("all p99", quantile(0.99, "kvasir_http_request_duration_seconds")),
           Query("all p50", quantile(0.5, "kvasir_http_request_duration_seconds"))], unit="s", width=12),
]

HELPS = [
    Panel("Tokens found", "Share of the looked-up tokens that are stored.",
          [Query("", share(rate("kvasir_lookup_tokens_total", labels='result="matched"'), rate("kvasir_lookup_tokens_total", labels='result="asked"')))],
          unit="percentunit", kind="stat", width=4, height=7, ceiling=1),
    Panel("GPU-seconds saved in this window", "GPU time that computing the loaded tokens would have taken, as predicted by the engines that loaded them.",
          [Query("", "sum(increase(kvasir_load_saved_gpu_seconds_total{@}[$__range]))")], unit="s", kind="stat", width=4, height=7),
    Panel("Loads within their SLO", "Time to first token, as clients report it.",
          [Query("", share(rate("kvasir_loads_total", labels='slo="met"'), rate("kvasir_loads_total")))],
          unit="percentunit", kind="stat", width=4, height=7, ceiling=1, steps=((None, "red"), (0.9, "orange"), (0.95, "green"))),
    Panel("Tokens per second", "Looked up, found, loaded, and left to the engine to compute.",
          [Query("asked", rate("kvasir_lookup_tokens_total", labels='result="asked"')),
           Query("found", rate("kvasir_lookup_tokens_total", labels='result="matched"')),
           Query("{{result}}", rate("kvasir_load_tokens_total", "result"))], width=12),
    Panel("GPUs' worth of work saved", "GPU-seconds saved per second: the number of GPUs that this work would occupy fully.",
          [Query("GPUs", rate("kvasir_load_saved_gpu_seconds_total"))], width=12),
    Panel("Loads per second, by SLO", "Met or missed; the rows below show the causes.",
          [Query("{{slo}}", rate("kvasir_loads_total", "slo"))], width=12, stacked=True),
]

COSTS = [
    Panel("Store requests per second", "S3 bills these per thousand: put, multipart and list cost about 12 times as much as a get.",
          [Query("{{op}}", rate("kvasir_store_requests_total", "op"))], unit="reqps", width=8, stacked=True),
    Panel("Bytes to and from the store per second", "Requested bytes, by kind of request.",
          [Query("{{op}}", rate("kvasir_store_bytes_total", "op"))], unit="Bps", width=8),
    Panel("Bytes to and from clients per second", "Through the service, and directly from the store by presigned URL.",
          [Query("sent", rate("kvasir_http_sent_bytes_total")), Query("received", rate("kvasir_http_received_bytes_total")),
           Query("direct", rate("kvasir_load_direct_bytes_total"))], unit="Bps", width=8),
    Panel("Stored bytes", "Chunk objects, as counted by the collector's last pass; the limit is gc.capacity, or 0 if there is none.",
          [Query("stored", "max(kvasir_stored_bytes{@})"), Query("limit", "max(kvasir_stored_capacity_bytes{@})")], unit="bytes", width=8),
    Panel("New chunks per second", "Acknowledged uploads: created, or already known (not stored again).",
          [Query("{{result}}", rate("kvasir_chunks_stored_total", "result"))], width=8),
    Panel("Read from memory and disk instead of the store", "Share of bytes by source; object is the store.",
          [Query("{{medium}}", "sum by (medium) (rate(kvasir_hot_served_bytes_total{@}" + R + ")) / on () group_left () "
                 + rate("kvasir_hot_served_bytes_total"))], unit="percentunit", width=8, ceiling=1, stacked=True),
]

WRONG = [
    Panel("Server errors per second, by route", "5xx. 503: store failure or drain; 502: corruption; 500: a bug.",
          [Query("{{status}} {{route}}", rate("kvasir_http_requests_total", "status, route", 'status=~"5.."'), quiet=True)], unit="reqps", width=8),
    Panel("Corruption", "Frames and objects whose checksums did not match, in the last hour. Always 0 on healthy hardware.",
          [Query("scrub: {{result}}", 'sum by (result) (increase(kvasir_scrub_objects_total{@,result=~"misread|quarantined"}[1h]))', quiet=True),
           Query("hot tier", 'sum(increase(kvasir_hot_evictions_total{@,reason="corrupt"}[1h]))', quiet=True),
           Query("refused reads", 'sum(increase(kvasir_http_requests_total{@,status="502"}[1h]))', quiet=True),
           Query("indexes replaced", "sum(kvasir_index_replaced{@})")], width=8),
    Panel("Replicas with problems", "Panics of background tasks in the last hour, and replicas without a usable disk.",
          [Query("panics of {{task}}", "sum by (task) (increase(kvasir_background_panics_total{@}[1h]))", quiet=True),
           Query("no disk for {{part}}", "sum by (part) (kvasir_cache_unusable{@})", quiet=True)], width=8),
    Panel("Store problems per second", "Actions of the retry layer, and failed requests.",
          [Query("{{event}}", rate("kvasir_store_events_total", "event"), quiet=True),
           Query("failed {{op}}", rate("kvasir_store_requests_total", "op", 'outcome="error"'), quiet=True)], width=8),
    Panel("Throttled and rejected requests per second", "By quota, by credential, or because the service is overloaded.",
          [Query("quota {{limit}}", rate("kvasir_quota_throttled_total", "limit"), quiet=True),
           Query("credential {{reason}}", rate("kvasir_auth_refused_total", "reason", 'reason!="braked"'), quiet=True),
           Query("other {{status}}", rate("kvasir_http_requests_total", "status", 'status=~"4..",status!~"401|403|404|412|416"'), quiet=True)], width=8),
    Panel("Queue", "Requests without a response so far, and open connections, by replica.",
          [Query("in flight {{instance}}", "kvasir_http_requests_in_flight{@}"),
           Query("connections {{instance}}", "kvasir_http_connections{@}")], width=8),
    Panel("Store response time", "99th percentile, by kind of request.",
          [Query("{{op}}", quantile(0.99, "kvasir_store_request_duration_seconds", "op"))], unit="s", width=8),
    Panel("What more memory would have", "Estimated hit ratio over the last hour with 0.5 to 4 times the memory, from a sample.",
          [Query("{{memory}} x", "avg by (memory) (kvasir_hot_estimated_hit_ratio{@})")], unit="percentunit", width=8, ceiling=1),
    Panel("Age of evicted frames", "Median age of frames evicted from memory or disk for lack of space. If it is minutes, the hot tier is too small.",
          [Query("{{medium}}", "histogram_quantile(0.5, sum by (le, medium) (rate(kvasir_hot_eviction_age_seconds_bucket{@,reason=~\"capacity|not_admitted\"}"
                 + R + ")))", quiet=True)], unit="s", width=8),
    Panel("Collector", "Actions of its passes per second: removals by reason, and deletions of bytes.",
          [Query("{{action}}", rate("kvasir_gc_actions_total", "action"))], width=8),
    Panel("Hours since the last collector pass", "Over all replicas: one replica runs each pass.",
          [Query("hours", "min(time() - (kvasir_gc_last_pass_time_seconds{@} > 0)) / 3600")], width=8),
]

QUALITY = [
    Panel("Tokens per second, by level served", "0 is the coarsest. Lower levels than usual mean that links are slower than usual.",
          [Query("level {{level}}", rate("kvasir_load_level_tokens_total", "level"))], width=12, stacked=True),
    Panel("Mean level served", "Over loaded tokens.", [Query("level", mean_level())], width=6),
    Panel("Left to the engine to compute", "Share of the tokens of loads that the client left to the engine: too slow, damaged or missing.",
          [Query("", share(rate("kvasir_load_tokens_total", labels='result="recomputed"'), rate("kvasir_load_tokens_total")))],
          unit="percentunit", width=6, ceiling=1),
    Panel("Bytes per second, by level", "Bytes read of each level; a token at level 2 has bytes of levels 0, 1 and 2.",
          [Query("level {{level}}", rate("kvasir_load_bytes_total", "level"))], unit="Bps", width=12, stacked=True),
    Panel("In memory and on disk, by level", "Bytes in memory and on disk. Coarse levels stay longest.",
          [Query("{{medium}} level {{level}}", "sum by (medium, level) (kvasir_hot_bytes{@}) > 0")], unit="bytes", width=12, stacked=True),
]

DASHBOARDS = [
    Dashboard("kvasir", "Kvasir", "An operator's questions, in order. Each question is a row.", [
        ("Is it up?", UP), ("Does it help?", HELPS), ("What does it cost?", COSTS), ("What is wrong?", WRONG),
        ("How good is what it serves?", QUALITY),
    ]),
]
