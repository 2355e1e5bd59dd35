//! The event stream.

use std::{collections::VecDeque, convert::Infallible, sync::Arc};

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::HeaderMap,
    response::sse::{Event as SseEvent, KeepAlive, Sse},
};
use futures::{Stream, stream};
use kvasir_api::{Event, EventType, EventsDropped, EventsQuery, MEDIA_EVENTS, routes};
use kvasir_storage::{
    Storage,
    events::{LogPosition, Portion},
};
use kvasir_types::Name;
use tokio::sync::watch;

use crate::{api_error::ApiError, auth::Principal, limits, state::AppState};

/// Selects a reader's events: those of its own tenant, of some types, of one namespace or all.
#[derive(Debug)]
struct EventFilter {
    tenant: Name,
    namespace: Option<Name>,
    types: Vec<EventType>,
}

impl EventFilter {
    fn new(principal: Principal, query: &EventsQuery) -> Result<Self, ApiError> {
        let wanted = query.types.as_deref().unwrap_or_default().split(',').filter(|text| !text.is_empty());
        let types = wanted.map(|text| {
            let known = EventType::ALL.into_iter().find(|kind| kind.as_str() == text);
            known.ok_or_else(|| {
                ApiError::bad_request(format!(
                    "{text:?} is not an event type: use stored, removed, cleared or profile"
                ))
            })
        });
        Ok(Self {
            tenant: principal.tenant,
            namespace: query.namespace.clone(),
            types: types.collect::<Result<_, _>>()?,
        })
    }

    fn matches(&self, event: &Event) -> bool {
        // A reader that must discard its state is told so regardless of its filter.
        let is_for_all = event.event_type == EventType::Cleared && event.namespace.is_none();
        let namespace = is_for_all || self.namespace.is_none() || self.namespace == event.namespace;
        let kind = is_for_all || self.types.is_empty() || self.types.contains(&event.event_type);
        event.tenant_id == self.tenant && namespace && kind
    }
}

/// A reader of the event stream. Holds a position in the log and at most one batch.
struct EventReader {
    state: AppState,
    storage: Arc<Storage>,
    filter: EventFilter,
    position: LogPosition,
    changes: watch::Receiver<u64>,
    batch: VecDeque<Arc<Event>>,
    is_over: bool,
}

/// Server-sent events: changes of chunks, and what becomes of profiles, from now on or after a given event.
///
/// Each has its type as `event`, its id as `id` and an `Event` as `data`. If a reader that reconnects has
/// missed events, the first one is a `cleared`. A reader that is too slow gets `dropped` with
/// `EventsDropped`, and the stream ends.
#[utoipa::path(get, path = routes::EVENTS, operation_id = "events", tag = "events",
    params(EventsQuery, ("Last-Event-ID" = Option<String>, Header, description = "resume after this event")),
    responses((status = 200, description = "an endless stream of events", body = Event, content_type = MEDIA_EVENTS)))]
pub(in crate::handlers) async fn stream(
    State(state): State<AppState>,
    principal: Principal,
    query: Result<Query<EventsQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<SseEvent, Infallible>>>, ApiError> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.to_string()))?;
    let storage = Arc::clone(state.storage()?);
    let filter = EventFilter::new(principal, &query)?;
    let header = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let last = header.filter(|id| !id.is_empty()).or(query.after);
    let log = storage.changes().events();
    let changes = log.changes();
    // A replica that did not read what others stored begins now.
    state.journal().hear_stored(&state, &storage).await;
    let lag = state.journal().lag_max(state.cluster().len());
    let (position, batch) = match last.as_deref().map(|id| log.after(id, lag)) {
        None => (log.end(), VecDeque::new()),
        Some(Some(position)) => (position, VecDeque::new()),
        Some(None) => (log.end(), VecDeque::from([storage.changes().cleared_event(&filter.tenant)])),
    };
    state.metrics().api().event_reader(1);
    let reader = EventReader { state, storage, filter, position, changes, batch, is_over: false };
    let events = stream::unfold(reader, |mut reader| async move {
        let sent = reader.next().await?;
        Some((Ok(sent), reader))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(limits::EVENTS_KEEP_ALIVE)))
}

impl EventReader {
    /// The next event; `None` once the stream has ended.
    async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if self.is_over {
                return None;
            }
            while let Some(event) = self.batch.pop_front() {
                if self.filter.matches(&event) {
                    let sent = SseEvent::default().id(&event.event_id).event(event.event_type.as_str());
                    return sent.json_data(&*event).ok();
                }
            }
            // Before reading the log: a change in between then wakes the wait.
            self.changes.borrow_and_update();
            match self.storage.changes().events().read(&mut self.position) {
                Portion::Events(events) if events.is_empty() => {
                    let _ = tokio::time::timeout(limits::EVENTS_TICK, self.changes.changed()).await;
                    self.is_over = self.state.is_draining();
                }
                Portion::Events(events) => self.batch = events.into(),
                Portion::Missed(missed) => {
                    self.is_over = true;
                    self.state.metrics().api().event_reader_dropped();
                    let detail =
                        "this reader was too slow for the log; reconnect with the last id, and read faster";
                    let dropped = EventsDropped { missed, detail: detail.to_owned() };
                    return SseEvent::default().event("dropped").json_data(dropped).ok();
                }
            }
        }
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        self.state.metrics().api().event_reader(-1);
    }
}
