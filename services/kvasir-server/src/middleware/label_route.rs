//! Around requests that have a route: counts them, and says which list of members this replica has.

use axum::{
    extract::{Request, State},
    http::HeaderValue,
    middleware::Next,
    response::Response,
};
use kvasir_api::{HEADER_MEMBERS, HEADER_ROUTE};

use crate::state::AppState;

/// Adds the epoch of the list to the answer: a client whose own is another asks for the list.
pub(crate) async fn label_route(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let route = request.headers().get(HEADER_ROUTE).and_then(|value| value.to_str().ok()?.parse().ok());
    let Some(route) = route else { return next.run(request).await };
    state.metrics().cluster().routed(state.cluster().place(&route));
    let mut response = next.run(request).await;
    if let Some(epoch) = state.cluster().epoch().and_then(|epoch| HeaderValue::try_from(epoch).ok()) {
        response.headers_mut().insert(HEADER_MEMBERS, epoch);
    }
    response
}
