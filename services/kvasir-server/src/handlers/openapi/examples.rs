//! Examples: matching requests and responses. A test sends each one to a service whose tenant has a salt of
//! zeros, so that even the hashes are those of a real exchange.

use kvasir_api::LOOKUP_TOKENS_MAX;
use serde_json::{Map, Value, json};

const MODEL_ID: &str = "32d592866195a18bc464f1d261f02d8339737604cb81c12ad220974ee23c4b44";
const PROFILE_HASH: &str = "8c7ca581adbed37354278223c2f53b2cc4a1f347598be32ffb899c32512f1300";
const ROOT: &str = "359638c51e6d1efce75d55cfa81a4b88f003b01415d8519abbb23a9643dfa808";
/// An arbitrary root: the salt of a rotation is random.
const ROTATED: &str = "5b1a2c9d3e4f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9";
const SEQ_HASH: &str = "3de327b8c283ec80fcfe40ee573fcccfe4286adf90023504e2091a0a51f54afc";
const OBJECT_DIGEST: &str = "8b9aec3a641833c775dfb622b81dc9538e5e9ec6839ed18f65c3b47eaa070c9b";
const SHA256: &str = "062509cdecf0cb52dbb7dc4de437e7e996b450306d1fe465662cf7c965c624bc";
const OBJECT_BYTES: u64 = 483;
const HEAD_BYTES: u64 = 355;
const LEVEL_0_BYTES: u64 = 419;
const KEY: &str = "llama-7f3a";
const UUID: &str = "0199f0c4-5b7e-7c3a-9d1e-3f8a2b6c4d50";

/// Examples by operation.
pub(super) struct Examples(Map<String, Value>);

impl Examples {
    /// The operations that have examples.
    #[cfg(test)]
    pub(super) fn operations(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Inserts an operation's examples into the document: request body, parameters, response.
    pub(super) fn insert_into(&self, operation: &mut Value) {
        let name = operation["operationId"].as_str().unwrap_or_default().to_owned();
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            let known = parameter["name"].as_str().and_then(parameter_value);
            if let (Some(example), Some("path")) = (known, parameter["in"].as_str()) {
                parameter["example"] = example;
            }
        }
        let Some(example) = self.0.get(&name) else { return };
        if let (Some(request), Some(content)) =
            (example.get("request"), operation.pointer_mut("/requestBody/content/application~1json"))
        {
            content["example"] = request.clone();
        }
        let status = example["status"].as_u64().unwrap_or(200);
        let answer = format!("/responses/{status}/content/application~1json");
        if let (Some(response), Some(content)) = (example.get("response"), operation.pointer_mut(&answer)) {
            content["example"] = response.clone();
        }
    }
}

/// The value of a path parameter in all examples.
fn parameter_value(name: &str) -> Option<Value> {
    let value = match name {
        "model_id" => MODEL_ID,
        "profile_hash" => PROFILE_HASH,
        "seq_hash" => SEQ_HASH,
        "object_digest" => OBJECT_DIGEST,
        "context_id" | "upload_id" | "job_id" => UUID,
        "namespace" => "team-a",
        "key" => KEY,
        _ => return None,
    };
    Some(value.into())
}

/// 32 tokens: two blocks.
fn tokens() -> Value {
    (1000..1032).collect()
}

fn spec() -> Value {
    let layers = json!({"count": 2, "layout": {"kind": "gqa", "kv_heads": 2, "head_dim": 64}});
    json!({"weights": "kvasir/synthetic", "revision": "1", "kv_dtype": "bf16", "ropes": [], "layers": [layers],
           "reuse": "prefix"})
}

fn stored() -> Value {
    json!({"seq_hash": SEQ_HASH, "object_digest": OBJECT_DIGEST, "bytes": OBJECT_BYTES, "created": true})
}

fn context() -> Value {
    json!({"context_id": UUID, "version": 1, "model_id": MODEL_ID, "namespace": "team-a", "chunks": [SEQ_HASH],
           "tokens": 32, "labels": {"app": "chat"}, "created_at_ms": 1_763_740_800_000_u64, "pinned": true})
}

fn job() -> Value {
    json!({"job_id": UUID, "kind": "gc", "state": "running", "dry_run": true, "started_at_ms": 1_763_740_800_000_u64,
           "elapsed_ms": 0, "counts": {}})
}

/// All examples by operation: `request`, `status` of the response, and the response itself if it is JSON.
pub(super) fn all() -> Examples {
    let mut all = Map::new();
    for part in [setup(), objects(), chunks(), direct(), contexts(), service(), console()] {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    Examples(all)
}

fn setup() -> Value {
    json!({
        "register_model": {
            "request": spec(), "status": 201, "response": {"model_id": MODEL_ID, "created": true},
        },
        "list_models": {
            "status": 200,
            "response": {"models": [{"model_id": MODEL_ID, "model_name": "kvasir/synthetic", "revision": "1"}]},
        },
        "get_model": {"status": 200, "response": spec()},
        "put_profile": {"status": 201, "response": {"profile_hash": PROFILE_HASH, "bytes": 24}},
        "list_profiles": {
            "status": 200, "response": {"profiles": [{"profile_hash": PROFILE_HASH, "bytes": 24, "stored_at_ms": 1_763_740_800_000_u64}]},
        },
        "get_profile_levels": {"status": 200, "response": {
            "profile_hash": PROFILE_HASH, "made": "first_save", "recipe": "starter", "note": "", "trained_tokens": 1536,
            "held_out_tokens": 0, "exact_tokens": 4,
            "levels": [{"level": 0, "bits_per_element": 0.61, "nmse": 0.11, "kl": 0.02},
                       {"level": 1, "bits_per_element": 2.1, "nmse": 0.004, "quality": "transparent"}],
        }},
        "report_training": {"request": training(), "status": 204},
        "list_trainings": {"status": 200, "response": {"trainings": [reported_training()]}},
        "open_namespace": {
            "request": {"namespace": "team-a", "model_id": MODEL_ID}, "status": 200, "response": {"root": ROOT},
        },
        "rotate_namespace": {
            "request": {"namespace": "team-c", "model_id": MODEL_ID, "keep_s": 86_400}, "status": 200,
            "response": {"root": ROTATED},
        },
    })
}

fn training() -> Value {
    json!({
        "outcome": "refused", "reason": "it needs 97 % of the bytes of the profile in force", "sampled_chunks": 40,
        "sampled_tokens": 20_480, "in_force": PROFILE_HASH, "trained": PROFILE_HASH, "held_out_chunks": 8,
        "in_force_bits": 5.5, "trained_bits": 5.25,
    })
}

fn reported_training() -> Value {
    let mut reported = training();
    reported["received_at_ms"] = 1_763_740_800_000_u64.into();
    reported
}

fn objects() -> Value {
    let keys = json!({"keys": [KEY, "llama-81c0"]});
    json!({
        "put_opaque_object": {"status": 201, "response": {"key": KEY, "bytes": 4, "created": true}},
        "lookup_opaque_objects": {"request": keys, "status": 200, "response": {"objects": [{"bytes": 4}]}},
        "read_opaque_objects": {
            "request": {"keys": [KEY, "llama-81c0"], "ranges": [{"first": 0, "bytes": 2}, null]}, "status": 200,
        },
        "write_opaque_objects": {"status": 200, "response": {"objects": [{"created": true}]}},
        "explain_opaque_objects": {
            "request": keys, "status": 200,
            "response": {"keys": 2, "found": 1, "key": "llama-81c0", "causes": [{
                "reason": "never_stored",
                "detail": "no trace of this key: never stored, or removed so long ago that its traces are collected. \
                           Check that namespace and key are those of the engine that stores",
                "tokens": 0,
            }]},
        },
    })
}

fn chunks() -> Value {
    json!({
        "put_chunk": {"status": 201, "response": stored()},
        "get_object_status": {"status": 200, "response": {
            "stored_at_ms": 1_763_740_800_000_u64, "expires_at_ms": 1_764_345_600_000_u64, "use_here": {"uses": 3, "last_ago_ms": 42_000},
        }},
        "sample_chunks": {"status": 200, "response": {"chunks": [SEQ_HASH], "stored_at_ms": [1_763_740_800_000_u64]}},
        "lookup": {
            "request": {"model_id": MODEL_ID, "namespace": "team-a", "tokens": tokens(), "fresh": false},
            "status": 200,
            "response": {"matched_tokens": 32, "chunks": [{
                "seq_hash": SEQ_HASH, "object_digest": OBJECT_DIGEST, "profile_hash": PROFILE_HASH, "first_token": 0,
                "tokens": 32, "matched_tokens": 32, "bytes": OBJECT_BYTES, "head_bytes": HEAD_BYTES,
                "level_bytes": [LEVEL_0_BYTES, OBJECT_BYTES], "kl_beneath": 0.0, "medium": "object", "via": "proxy",
            }]},
        },
        "explain": {
            "request": {"model_id": MODEL_ID, "namespace": "team-b", "tokens": tokens()},
            "status": 200,
            "response": {"tokens": 32, "matched_tokens": 0, "causes": [{
                "reason": "other_namespace",
                "detail": "32 of these tokens are stored in namespace team-a; namespaces never match each other: look \
                           up in the one where the engine stores",
                "tokens": 32, "namespace": "team-a",
            }]},
        },
    })
}

fn direct() -> Value {
    json!({
        "announce_upload": {
            "request": {"model_id": MODEL_ID, "seq_hash": SEQ_HASH, "object_digest": OBJECT_DIGEST,
                        "bytes": OBJECT_BYTES, "sha256": SHA256},
            "status": 201,
            "response": {
                "upload_id": UUID,
                "url": "https://s3.example.com/bucket/2/t/default/u/0199f0c4?X-Amz-Signature=e3b0",
                "headers": {"x-amz-checksum-sha256": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="}, "expires_in_s": 300,
            },
        },
        "commit_upload": {"status": 200, "response": stored()},
        "get_object_url": {"status": 200, "response": {
            "url": "https://s3.example.com/bucket/2/t/default/m/object.kvc?X-Amz-Signature=e3b0", "expires_in_s": 300,
        }},
    })
}

fn contexts() -> Value {
    let create = json!({"model_id": MODEL_ID, "namespace": "team-a", "chunks": [SEQ_HASH],
                        "labels": {"app": "chat"}, "pinned": true});
    json!({
        "create_context": {"request": create, "status": 201, "response": context()},
        "list_contexts": {"status": 200, "response": {"contexts": [context()]}},
        "get_context": {"status": 200, "response": context()},
        "change_context": {
            "request": {"labels": {"app": "support"}, "pinned": true}, "status": 200, "response": context(),
        },
        "list_context_versions": {"status": 200, "response": {"versions": [1, 2]}},
    })
}

fn service() -> Value {
    json!({
        "get_config": {"status": 200, "response": {
            "version": env!("CARGO_PKG_VERSION"), "format_versions": ["1.0"], "block_tokens": 16,
            "chunk_bytes_max": 1 << 30, "lookup_tokens_max": LOOKUP_TOKENS_MAX,
            "store": {"kind": "s3", "conditional_create": true, "direct": true, "checksums": true},
        }},
        "get_usage": {"status": 200, "response": {
            "objects": 1, "bytes": OBJECT_BYTES, "removed_objects": 0, "removed_bytes": 0, "profiles": 1,
            "profile_bytes": 24, "context_versions": 2, "waiting_uploads": 0, "records": 2,
            "other_bytes": 900, "bytes_by_model": {MODEL_ID: OBJECT_BYTES}, "as_of_s_ago": 0,
        }},
        "report_load": {"request": load(), "status": 204},
        "start_job": {"request": {"kind": "gc", "dry_run": true}, "status": 202, "response": job()},
        "list_jobs": {"status": 200, "response": {"jobs": [job()]}},
        "get_job": {"status": 200, "response": job()},
        "cancel_job": {"status": 202, "response": job()},
    })
}

fn load() -> Value {
    json!({"slo_ms": 500, "elapsed_ms": 180, "loaded_tokens": 1536, "recomputed_tokens": 0,
    "bytes_by_level": {"0": 60112, "1": 35198}, "direct_bytes": 0,
    "tokens_by_level": {"1": 1536}, "saved_gpu_ms": 57,
    "timeline": {
        "chunks": [{"first_token": 0, "tokens": 1536, "level": 1, "bytes": 95310, "started_ms": 4, "fetched_ms": 141,
                    "ready_ms": 180}],
        "bandwidth": [{"at_ms": 90, "bytes_per_second": 695_000}],
    }})
}

/// The console's other requests.
fn console() -> Value {
    let mut kept = load();
    kept["received_at_ms"] = 1_763_740_800_000_u64.into();
    kept["missed"] = false.into();
    let bytes = |fp16: u64| json!({"fp16": fp16, "fp8": fp16 / 2, "int4": fp16 / 4});
    let rates = json!({"value": 0.6, "source": "assumed"});
    json!({
        "list_loads": {"status": 200, "response": {"loads": [kept]}},
        "get_members": {"status": 200, "response": {
            "epoch": "9b2f0c61d4a85e37",
            "members": [
                {"url": "http://kvasir-0.kvasir-headless.ns.svc.cluster.local:7480", "weight": 1.0},
                {"url": "http://kvasir-1.kvasir-headless.ns.svc.cluster.local:7480", "weight": 1.0},
            ],
            "this": "http://kvasir-0.kvasir-headless.ns.svc.cluster.local:7480",
            "splits": ["7c5e01b2aa94f3d8"],
        }},
        "get_series": {"status": 200, "response": {
            "version": env!("CARGO_PKG_VERSION"), "started_at_ms": 1_763_740_790_000_u64, "step_s": 10,
            "times_ms": [1_763_740_800_000_u64],
            "series": [{"name": "requests", "labels": {"class": "lookup"}, "unit": "per_second", "values": [12.5]}],
            "now": {
                "hit_ratio_curve": [{"memory": 0.5, "hit_ratio": 0.41}],
                "hot_tenants": [{"tenant": "acme", "cpu_bytes": 1_048_576, "disk_bytes": 0}],
                "breaker_open": 0,
            },
        }},
        "list_audited_calls": {"status": 200, "response": {"calls": [{
            "at_ms": 1_763_740_800_000_u64, "tenant": "default", "credential": "on call", "role": "operator",
            "method": "POST", "path": "/v1/admin/jobs", "status": 202,
        }]}},
        "list_plan_options": {"status": 200, "response": {
            "models": [{"name": "llama-3.1-8b", "parameters": 8.03, "active_parameters": 8.03, "context_tokens": 131_072,
                        "source": "meta-llama/Llama-3.1-8B config.json"}],
            "gpus": [{"name": "h100", "memory_bytes": 80_000_000_000_u64, "flops": 989e12, "usd_per_hour": 3.0}],
        }},
        "plan": {
            "request": {"model": "llama-3.1-8b", "tokens": 8192, "bandwidths": [3e9], "slo_s": 0.25, "gpu": "h100"},
            "status": 200,
            "response": {
                "model": "llama-3.1-8b", "model_source": "meta-llama/Llama-3.1-8B config.json", "context_tokens": 131_072,
                "tokens": 8192, "bytes_per_token": bytes(131_072), "bytes": bytes(1 << 30), "bytes_stored": 153_681_495,
                "weight_bytes": 16_060_000_000_u64, "gpus_needed": 1, "recompute_s": 0.29, "recompute_usd": 0.00024,
                "load_usd": 0.0000024, "month_usd": 0.0035, "break_even_reuses": 14.8,
                "levels": [{"bits_per_element": rates}],
                "links": [{"bits_per_second": 3e9, "fits": 1, "ways": [
                    {"name": "level 0", "bytes": 40_265_319, "seconds": 0.137, "within_slo": true},
                ]}],
                "rates": [{"name": "gpu_hour", "value": 3.0, "unit": "USD", "source": "assumed"}],
            },
        },
    })
}
