// Types of the API, from our OpenAPI document: tests/console/run generates ./openapi.d.ts from what a service serves.

/** @typedef {import("./openapi").components["schemas"]} Schemas */
/** @typedef {Schemas["SeriesResponse"]} Series */
/** @typedef {Schemas["Series"]} SeriesLine */
/** @typedef {Schemas["Event"]} ChunkEvent */
/** @typedef {Schemas["Context"]} Context */
/** @typedef {Schemas["ContextList"]} ContextList */
/** @typedef {Schemas["MembersResponse"]} Members */
/** @typedef {Schemas["Member"]} Member */
/** @typedef {Schemas["ChunkStatus"]} ChunkStatus */
/** @typedef {Schemas["LookupResponse"]} LookupResponse */
/** @typedef {Schemas["ChunkMatch"]} ChunkMatch */
/** @typedef {Schemas["ExplainResponse"]} ExplainResponse */
/** @typedef {Schemas["Cause"]} Cause */
/** @typedef {Schemas["Job"]} Job */
/** @typedef {Schemas["JobList"]} JobList */
/** @typedef {Schemas["UsageResponse"]} Usage */
/** @typedef {Schemas["ModelSpec"]} ModelSpec */
/** @typedef {Schemas["ProfileList"]} ProfileList */
/** @typedef {Schemas["ConfigResponse"]} Config */
/** @typedef {Schemas["ReportedLoad"]} Load */
/** @typedef {Schemas["BandwidthSample"]} BandwidthSample */
/** @typedef {Schemas["LoadList"]} LoadList */
/** @typedef {Schemas["AuditList"]} AuditList */
/** @typedef {Schemas["AuditedCall"]} AuditedCall */
/** @typedef {Schemas["ModelList"]} ModelList */
/** @typedef {Schemas["ModelInfo"]} ModelInfo */
/** @typedef {Schemas["ProfileLevels"]} ProfileLevels */
/** @typedef {Schemas["MeasuredLevel"]} MeasuredLevel */
/** @typedef {Schemas["PlanOptions"]} PlanOptions */
/** @typedef {Schemas["PlanResponse"]} Plan */
/** @typedef {Schemas["PlanLink"]} PlanLink */
/** @typedef {Schemas["PlanLevel"]} PlanLevel */
/** @typedef {Schemas["PlanRate"]} PlanRate */
export {};
