//! Kvasir's wire format: requests, responses and error codes of the `/v1` REST API.
//!
//! The server and the client share these types, so they cannot disagree. [`routes`] builds paths; errors are
//! RFC 9457 problem documents with a stable [`ErrorCode`].

#![forbid(unsafe_code)]

mod access;
mod admin;
mod audit;
mod chunk;
mod context;
mod error;
mod event;
mod explain;
mod load;
mod lookup;
mod member;
mod model;
mod object;
mod plan;
pub mod routes;
mod series;
mod training;
mod upload;

pub use access::{Role, required_role};
pub use admin::{Job, JobKind, JobList, JobRequest, JobState, UsageResponse};
pub use audit::{AUDIT_CALLS_MAX, AuditList, AuditQuery, AuditedCall};
pub use chunk::{ChunkQuery, ChunkSample, ChunkStatus, ChunkUse, ObjectUrl, SampleQuery, StoredChunk};
pub use context::{
    CONTEXT_CHUNKS_MAX, CONTEXT_LABELS_MAX, CONTEXTS_PAGE_MAX, Context, ContextChange, ContextList,
    ContextQuery, ContextRequest, ContextVersions, ContextsQuery, LABEL_VALUE_BYTES_MAX, Labels,
};
pub use error::{ErrorCode, Problem};
pub use event::{Event, EventType, EventsDropped, EventsQuery};
pub use explain::{
    Cause, ChunkEviction, ExplainRequest, ExplainResponse, FieldDifference, MatchedProfile, MissReason,
};
pub use load::{
    BandwidthSample, LOAD_TIMELINE_MAX, LOADS_KEPT_MAX, LoadList, LoadRecord, LoadTimeline, LoadedChunk,
    LoadsQuery, ReportedLoad,
};
pub use lookup::{
    ChunkErrors, ChunkMatch, LOOKUP_BLOCKS_MAX, LOOKUP_TOKENS_MAX, LookupQuery, LookupRequest,
    LookupResponse, Via,
};
pub use member::{Member, MembersResponse, ROUTE_REPLICAS};
pub use model::{
    ConfigResponse, MeasuredLevel, ModelInfo, ModelList, NamespaceRequest, NamespaceResponse,
    NamespaceRotation, ProfileInfo, ProfileLevels, ProfileList, RegisteredModel, StoreCapabilities,
};
pub use object::{
    ExplainObjectsResponse, NewObject, ObjectInfo, ObjectsLookup, ObjectsRequest, ObjectsResponse,
    PayloadRange, ReadObjectsRequest, StoredObject, WriteObjectsRequest, WriteObjectsResponse, WrittenObject,
};
pub use plan::{
    PLAN_BANDWIDTHS_MAX, PlanBytes, PlanGpu, PlanLevel, PlanLink, PlanModel, PlanNumber, PlanOptions,
    PlanRate, PlanRequest, PlanResponse, PlanWay,
};
pub use series::{CurvePoint, HotTenant, Series, SeriesNow, SeriesQuery, SeriesResponse};
pub use training::{
    ReportedTraining, TRAINING_REASON_BYTES_MAX, TRAININGS_KEPT_MAX, TrainingList, TrainingOutcome,
    TrainingRecord,
};
pub use upload::{UploadRequest, UploadTicket};

/// Media type of a chunk object.
pub const MEDIA_CHUNK: &str = "application/vnd.kvasir.chunk";
/// Media type of a profile.
pub const MEDIA_PROFILE: &str = "application/vnd.kvasir.profile";
/// Media type of raw tokens: u32 little endian, one after the other.
pub const MEDIA_TOKENS: &str = "application/vnd.kvasir.tokens";
/// Media type of block hashes: 32 bytes each, one after the other.
pub const MEDIA_BLOCKS: &str = "application/vnd.kvasir.blocks";
/// Media type of several opaque objects: of each, how many of its bytes follow, as u64 little endian, then these; one
/// after the other.
pub const MEDIA_OBJECTS: &str = "application/vnd.kvasir.objects";
/// Media type of several opaque objects to be stored: the length of a [`WriteObjectsRequest`] as u32 little
/// endian, the request as JSON, then the objects' bytes, one after another.
pub const MEDIA_NEW_OBJECTS: &str = "application/vnd.kvasir.new-objects";
/// Media type of an error.
pub const MEDIA_PROBLEM: &str = "application/problem+json";
/// Media type of server-sent events.
pub const MEDIA_EVENTS: &str = "text/event-stream";

/// Header of lookups, reads and writes of chunks: type of the request that they serve (text, file, agent, …),
/// for eviction.
pub const HEADER_REQUEST_TYPE: &str = "kvasir-request-type";
/// Header of lookups, reads and writes of chunks: turn of the conversation, from 1, for eviction.
pub const HEADER_TURN: &str = "kvasir-turn";
/// Header of reads: milliseconds until the first token of the load is due. Where a service's egress has a rate, a tenant's
/// answers are sent in this order.
pub const HEADER_DEADLINE: &str = "kvasir-deadline-ms";
/// Header of writes of chunks: the namespace of the chunk's chain, used as a label of events.
pub const HEADER_NAMESPACE: &str = "kvasir-namespace";
/// Header of writes of chunks: BLAKE3 of the body; requires a declared length. The body is forwarded to the
/// store while it arrives.
pub const HEADER_OBJECT_DIGEST: &str = "kvasir-object-digest";

/// Header of lookups, reads and writes of chunks: the [`RouteKey`](kvasir_types::RouteKey) of the prompt that they serve.
pub const HEADER_ROUTE: &str = "kvasir-route";
/// Header of answers to requests that have a route: the epoch of the replica's list of members.
pub const HEADER_MEMBERS: &str = "kvasir-members";
/// Header of answers to `GET /readyz`: the zone that the replica runs in, where it knows that.
pub const HEADER_ZONE: &str = "kvasir-zone";
/// Header of answers to lookups whose route is split: that route and the longer ones that are split with it, separated by
/// commas. The caller's next lookup goes by the shortest one that is not among them.
pub const HEADER_SPLIT: &str = "kvasir-split";

/// Stands for a body of bytes in the OpenAPI document.
#[derive(Debug)]
pub struct Binary;

impl utoipa::PartialSchema for Binary {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
        ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
    }
}

impl utoipa::ToSchema for Binary {}
