// Types of the API, from our OpenAPI document: tests/console/run generates ./openapi.d.ts from what a service serves.

/** @typedef {import("./openapi").components["schemas"]} Schemas */
/** @typedef {any} Series */
/** @typedef {Schemas["Event"]} ChunkEvent */
/** @typedef {Schemas["Context"]} Context */
/** @typedef {Schemas["ContextList"]} ContextList */
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
/** @typedef {any} Load */
/** @typedef {any} LoadList */
/** @typedef {any} AuditList */
/** @typedef {any} ModelList */
/** @typedef {any} ProfileLevels */
/** @typedef {any} PlanOptions */
/** @typedef {any} Plan */
export {};
