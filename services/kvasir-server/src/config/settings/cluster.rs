//! Settings of the cluster of replicas.

use super::{Setting, quoted};
use crate::cluster::{MemberSource, canonical_url};

pub(super) const MEMBERS: Setting = Setting {
    key: "cluster.members",
    help: "The replicas that share the bucket, so that each keeps a different part hot: dns+srv://NAME, or their URLs separated by commas.",
    example: "\"dns+srv://_api._tcp.kvasir-headless\"",
    set: |c, t| {
        c.cluster.members = Some(MemberSource::parse(t)?);
        Ok(())
    },
    get: |c| c.cluster.members.as_ref().and_then(|members| quoted(members.text())),
};

pub(super) const ADVERTISE: Setting = Setting {
    key: "cluster.advertise",
    help: "The URL of this replica, as cluster.members lists it.",
    example: "\"http://kvasir-0.kvasir-headless:7480\"",
    set: |c, t| {
        c.cluster.advertise = Some(canonical_url(t)?);
        Ok(())
    },
    get: |c| c.cluster.advertise.as_ref().and_then(quoted),
};

pub(super) const ZONE: Setting = Setting {
    key: "cluster.zone",
    help: "The zone that this replica runs in: of two replicas that keep a prompt, clients of the same zone ask it first. Empty: not known.",
    example: "\"eu-central-1a\"",
    set: |c, t| {
        // Kubernetes gives an empty text where it knows no zone of a pod.
        if !t.is_empty() {
            c.cluster.zone = Some(t.parse().map_err(|error| format!("{error}"))?);
        }
        Ok(())
    },
    get: |c| c.cluster.zone.as_ref().and_then(|zone| quoted(zone.as_str())),
};
