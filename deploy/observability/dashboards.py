"""The dashboards. A query's `@` is the choice of replicas; `quiet` queries have no series while all is well."""

from alerts import COUNTED, FAILED
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
    """A quotient that is 0 where the part has no series yet."""
    return f"({part} or vector(0)) / {whole}"


def mean_level() -> str:
    """Mean over tokens of the level they were loaded at; a profile has at most 8 levels."""
    tokens = "kvasir_load_level_tokens_total"
    terms = [f"{level} * (" + rate(tokens, labels=f'level="{level}"') + " or vector(0))" for level in range(1, 8)]
    return f"({' + '.join(terms)}) / {rate(tokens)}"


UP = [
    Panel("Replicas ready", "Replicas that take traffic: the store was reached and no shutdown has begun.",
          [Query("ready", "sum(kvasir_ready{@})"), Query("running", "count(kvasir_build_info{@})")],
          kind="stat", width=4, height=4, steps=((None, "red"), (1, "green"))),
    Panel("Requests answered without a server error", "Everything but 5xx, over the window of a rate. 501 and 507 refuse a caller and are no errors; requests without an S3 operation are left out.",
          [Query("", "1 - " + share(rate("kvasir_http_requests_total", labels=FAILED), rate("kvasir_http_requests_total", labels=COUNTED)))],
          unit="percentunit", kind="stat", width=4, height=4, ceiling=1, steps=((None, "red"), (0.99, "orange"), (0.999, "green"))),
    Panel("Open breakers of the store", "Reads and writes, of each replica, that fail at once because the store failed 16 times in a row.",
          [Query("", "sum(kvasir_store_breaker_open{@})")], kind="stat", width=4, height=4, steps=((None, "green"), (1, "red"))),
    Panel("Running for", "Time since each replica started: what restarts often is young.",
          [Query("{{instance}}", "time() - kvasir_start_time_seconds{@}")], unit="s", kind="stat", width=6, height=4),
    Panel("Versions", "Replicas by version: two of them in a rollout, one otherwise.",
          [Query("{{version}}", "count by (version) (kvasir_build_info{@})")], kind="stat", width=6, height=4),
    Panel("Requests a second, by status", "All routes.", [Query("{{status}}", rate("kvasir_http_requests_total", "status"))],
          unit="reqps", width=12, stacked=True),
    Panel("Time to the head of the answer", "Lookups, and everything: 99 and 50 of 100 requests are faster.",
          [Query("lookup p99", 'histogram_quantile(0.99, sum by (le) (rate(kvasir_http_request_duration_seconds_bucket{@,route="/v1/lookup"}' + R + ")))"),
           Query("all p99", quantile(0.99, "kvasir_http_request_duration_seconds")),
           Query("all p50", quantile(0.5, "kvasir_http_request_duration_seconds"))], unit="s", width=12),
]

HELPS = [
    Panel("Tokens found", "Of the tokens that were looked up, how many are stored.",
          [Query("", share(rate("kvasir_lookup_tokens_total", labels='result="matched"'), rate("kvasir_lookup_tokens_total", labels='result="asked"')))],
          unit="percentunit", kind="stat", width=4, height=7, ceiling=1),
    Panel("GPU-seconds saved in this window", "What computing the loaded tokens would have taken on all GPUs of the engines that loaded them, by their own prediction.",
          [Query("", "sum(increase(kvasir_load_saved_gpu_seconds_total{@}[$__range]))")], unit="s", kind="stat", width=4, height=7),
    Panel("Loads within their SLO", "Time to first token, as clients report it.",
          [Query("", share(rate("kvasir_loads_total", labels='slo="met"'), rate("kvasir_loads_total")))],
          unit="percentunit", kind="stat", width=4, height=7, ceiling=1, steps=((None, "red"), (0.9, "orange"), (0.95, "green"))),
    Panel("Tokens a second", "Looked up, found, loaded, and computed instead of loaded.",
          [Query("asked", rate("kvasir_lookup_tokens_total", labels='result="asked"')),
           Query("found", rate("kvasir_lookup_tokens_total", labels='result="matched"')),
           Query("{{result}}", rate("kvasir_load_tokens_total", "result"))], width=12),
    Panel("GPUs' worth of work saved", "GPU-seconds saved a second: how many GPUs would do nothing else.",
          [Query("GPUs", rate("kvasir_load_saved_gpu_seconds_total"))], width=12),
    Panel("Loads a second, by SLO", "Met, or missed: what was missing then is in the rows below.",
          [Query("{{slo}}", rate("kvasir_loads_total", "slo"))], width=12, stacked=True),
]

COSTS = [
    Panel("Requests to the store a second", "What S3 bills by the thousand: put, multipart and list cost about 12 times a get.",
          [Query("{{op}}", rate("kvasir_store_requests_total", "op"))], unit="reqps", width=8, stacked=True),
    Panel("Bytes to and from the store a second", "Asked to be moved, by kind of request.",
          [Query("{{op}}", rate("kvasir_store_bytes_total", "op"))], unit="Bps", width=8),
    Panel("Bytes to and from clients a second", "Through the service, and directly from the store by presigned URL.",
          [Query("sent", rate("kvasir_http_sent_bytes_total")), Query("received", rate("kvasir_http_received_bytes_total")),
           Query("direct", rate("kvasir_load_direct_bytes_total"))], unit="Bps", width=8),
    Panel("Stored bytes", "Chunk objects, as the collector's last pass met them; the limit is gc.capacity, 0 without one.",
          [Query("stored", "max(kvasir_stored_bytes{@})"), Query("limit", "max(kvasir_stored_capacity_bytes{@})")], unit="bytes", width=8),
    Panel("New chunks a second", "Acknowledged: created, or known before (bytes that were not stored twice).",
          [Query("{{result}}", rate("kvasir_chunks_stored_total", "result"))], width=8),
    Panel("Read from memory and disk instead of the store", "Share of bytes by where they were; object is the store.",
          [Query("{{medium}}", "sum by (medium) (rate(kvasir_hot_served_bytes_total{@}" + R + ")) / on () group_left () "
                 + rate("kvasir_hot_served_bytes_total"))], unit="percentunit", width=8, ceiling=1, stacked=True),
]

WRONG = [
    Panel("Server errors a second, by route", "5xx but 501 and 507, which refuse a caller. 503 is the store's trouble or a drain, of s3:unknown a tenant's rate limit; 502 corruption or a lost key, 500 a bug.",
          [Query("{{status}} {{route}}", rate("kvasir_http_requests_total", "status, route", 'status=~"5..",status!~"501|507"'), quiet=True)], unit="reqps", width=8),
    Panel("Corruption", "Frames and objects whose bytes were not what their checksums say, in the last hour. Above 0 on sound hardware only if an index is replaced because it is full in memory, or its disk is full.",
          [Query("scrub: {{result}}", 'sum by (result) (increase(kvasir_scrub_objects_total{@,result=~"misread|quarantined"}[1h]))', quiet=True),
           Query("hot tier", 'sum(increase(kvasir_hot_evictions_total{@,reason="corrupt"}[1h]))', quiet=True),
           Query("reads of the store", "sum(increase(kvasir_corrupt_reads_total{@}[1h]))"),
           Query("indexes replaced", "sum(clamp_min(delta(kvasir_index_replaced{@}[1h]), 0))")], width=8),
    Panel("Replicas in trouble", "Panics of background tasks in the last hour, and replicas without a usable disk.",
          [Query("panics of {{task}}", "sum by (task) (increase(kvasir_background_panics_total{@}[1h]))", quiet=True),
           Query("no disk for {{part}}", "sum by (part) (kvasir_cache_unusable{@})", quiet=True)], width=8),
    Panel("Store trouble a second", "What the layer that retries did, and requests that failed.",
          [Query("{{event}}", rate("kvasir_store_events_total", "event"), quiet=True),
           Query("failed {{op}}", rate("kvasir_store_requests_total", "op", 'outcome="error"'), quiet=True)], width=8),
    Panel("Throttled and refused a second", "By quota, credential, or because the service has enough to do.",
          [Query("quota {{limit}}", rate("kvasir_quota_throttled_total", "limit"), quiet=True),
           Query("credential {{reason}}", rate("kvasir_auth_refused_total", "reason"), quiet=True),
           Query("other {{status}}", rate("kvasir_http_requests_total", "status", 'status=~"4..|501|507",status!~"401|403|404|412|416"'), quiet=True)], width=8),
    Panel("Queue", "Requests whose answer has not begun, and open connections, by replica.",
          [Query("in flight {{instance}}", "kvasir_http_requests_in_flight{@}"),
           Query("connections {{instance}}", "kvasir_http_connections{@}")], width=8),
    Panel("The store's answers", "Time to the head of the answer, 99 of 100, by kind.",
          [Query("{{op}}", quantile(0.99, "kvasir_store_request_duration_seconds", "op"))], unit="s", width=8),
    Panel("What more memory would have", "Share of the bytes asked for in the last hour that memory of 0.5 to 4 times the size would have, as estimated from a sample.",
          [Query("{{memory}} x", "avg by (memory) (kvasir_hot_estimated_hit_ratio{@} >= 0)")], unit="percentunit", width=8, ceiling=1),
    Panel("Age of what is evicted", "Half of the frames that left memory or disk for lack of room were younger. Minutes: the hot tier is too small.",
          [Query("{{medium}}", "histogram_quantile(0.5, sum by (le, medium) (rate(kvasir_hot_eviction_age_seconds_bucket{@,reason=~\"capacity|not_admitted\"}"
                 + R + ")))", quiet=True)], unit="s", width=8),
    Panel("Collector", "What its passes did a second: removals by reason, and bytes' ends.",
          [Query("{{action}}", rate("kvasir_gc_actions_total", "action"))], width=8),
    Panel("Hours since a collector's pass", "By replica: each makes passes of its own, over its share of the store. None is shown before a replica's first.",
          [Query("{{instance}}", "(time() - (kvasir_gc_last_pass_time_seconds{@} > 0)) / 3600")], width=8),
]

QUALITY = [
    Panel("Tokens a second, by level they were served at", "0 is the coarsest. Lower levels than usual: links are slower than they were.",
          [Query("level {{level}}", rate("kvasir_load_level_tokens_total", "level"))], width=12, stacked=True),
    Panel("Level served, mean", "Over loaded tokens.", [Query("level", mean_level())], width=6),
    Panel("Tokens computed instead of loaded", "Share of tokens of loads that the client had the engine compute: too slow, damaged or missing.",
          [Query("", share(rate("kvasir_load_tokens_total", labels='result="recomputed"'), rate("kvasir_load_tokens_total")))],
          unit="percentunit", width=6, ceiling=1),
    Panel("Bytes a second, by level", "What was read of each level; a token at level 2 has bytes of 0, 1 and 2.",
          [Query("level {{level}}", rate("kvasir_load_bytes_total", "level"))], unit="Bps", width=12, stacked=True),
    Panel("Bytes in the hot tier, by level", "In memory and on disk. Coarse levels stay longest.",
          [Query("{{medium}} level {{level}}", "sum by (medium, level) (kvasir_hot_bytes{@}) > 0")], unit="bytes", width=12, stacked=True),
    Panel("Profiles in the last day", "New profiles, and trainings that trainers reported, by outcome. A training that was refused changes nothing: its profile would not have made loads smaller, or would have made them slower.",
          [Query("stored", "sum(increase(kvasir_profiles_stored_total{@}[1d]))"),
           Query("training: {{outcome}}", "sum by (outcome) (increase(kvasir_profile_trainings_total{@}[1d]))", quiet=True)], width=24),
]

SPREADS = [
    Panel("Members, as each replica knows them", "All equal, but for seconds while replicas come and go. 0: the replica has no list.",
          [Query("{{instance}}", "kvasir_cluster_members{@}")], width=6),
    Panel("Requests with a route a second, by place", "first: the replica that keeps the prompt. second: the first was slow or away, or this one is in the client's zone. other: the client has another list. unknown, if it lasts: cluster.advertise is not in the list.",
          [Query("{{place}}", rate("kvasir_route_requests_total", "place"))], unit="reqps", width=6, stacked=True),
    Panel("Busiest replica, of the mean", "Requests a second of the busiest replica by the mean of all: 1 is even.",
          [Query("", "max(sum by (instance) (rate(kvasir_http_requests_total{@}" + R + "))) / avg(sum by (instance) (rate(kvasir_http_requests_total{@}" + R + ")))")], width=6),
    Panel("Splits in the last hour", "Routes that too many prompts share, such as one system prompt: their prompts are spread by what follows.",
          [Query("{{instance}}", "increase(kvasir_route_splits_total{@}[1h])")], width=6),
    Panel("Routes moved in the last hour", "Share of all routes that other replicas keep since the members changed, as each replica saw it. Two of ten that restart, leave the list and come back: 40 %. What moved is read from the store once.",
          [Query("{{instance}}", "increase(kvasir_route_moves_total{@}[1h])")], unit="percentunit", width=6),
    Panel("Hot tier at the route's first replica", "Share of the bytes in memory and on disk that the first replica of their route keeps. Other replicas do not keep them, except the shared prefix of a split route.",
          [Query("{{medium}}", "sum by (medium) (kvasir_hot_first_bytes{@}) / (sum by (medium) (kvasir_hot_bytes{@}) > 0)")], unit="percentunit", width=6, ceiling=1),
]

DASHBOARDS = [
    Dashboard("kvasir", "Kvasir", "What an operator asks, in that order. Each question is a row.", [
        ("Is it up?", UP), ("Does it help?", HELPS), ("What does it cost?", COSTS), ("What is wrong?", WRONG),
        ("How good is what it serves?", QUALITY), ("Does the work spread?", SPREADS),
    ]),
]
