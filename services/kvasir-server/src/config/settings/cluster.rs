//! Settings of the cluster of replicas.

use super::{Setting, quoted};
use crate::cluster::{MemberSource, canonical_url};

pub(super) const MEMBERS: Setting = Setting {
    key: "cluster.members",
    help: "The replicas that share the bucket, so that each keeps its part hot: dns+srv://NAME, or their URLs with commas between.",
    example: "\"dns+srv://_api._tcp.kvasir-headless\"",
    set: |c, t| {
        c.cluster.members = Some(MemberSource::parse(t)?);
        Ok(())
    },
    get: |c| c.cluster.members.as_ref().and_then(|members| quoted(members.text())),
};

pub(super) const ADVERTISE: Setting = Setting {
    key: "cluster.advertise",
    help: "The URL of this replica as it stands among the members.",
    example: "\"http://kvasir-0.kvasir-headless:7480\"",
    set: |c, t| {
        c.cluster.advertise = Some(canonical_url(t)?);
        Ok(())
    },
    get: |c| c.cluster.advertise.as_ref().and_then(quoted),
};
