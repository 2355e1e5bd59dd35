//! Clients that store objects in parts over S3. Each request goes to any replica, some of which are killed in between. The model
//! judges a completion as a PUT; before it, and after an abortion, nobody may see anything of an upload.

use std::{
    cell::{Cell, Ref, RefCell},
    collections::BTreeMap,
    time::{Duration, Instant},
};

use kvasir_tests::{faulty::Dice, model::Outcome};
use reqwest::{Method, Response, StatusCode};
use tokio::time::sleep;

use super::{
    History,
    group::Group,
    judge,
    keys::{Door, KEYS, VALUES, payload},
};

/// The value of uploads that are aborted: nobody may read it.
const ABORTED: u8 = VALUES;
/// Longest pause between two requests.
const PAUSE: usize = 60;
/// Longest pause before what ends an upload, for kills in between.
const LONG_PAUSE: usize = 2_000;
/// Completions that a client sends whose outcome stays open.
const ATTEMPTS: usize = 3;

/// The uploads of a history: the values that they have used, and how they ended.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    values: Cell<u8>,
    ended: RefCell<BTreeMap<&'static str, u64>>,
}

impl Uploads {
    /// How often an upload ended in which way.
    pub(super) fn ended(&self) -> Ref<'_, BTreeMap<&'static str, u64>> {
        self.ended.borrow()
    }

    fn count(&self, what: &'static str) {
        *self.ended.borrow_mut().entry(what).or_default() += 1;
    }

    /// A value that no other upload has, until the numbers are used up and begin again.
    fn new_value(&self) -> u8 {
        let value = self.values.get();
        self.values.set((value + 1) % (u8::MAX - ABORTED));
        ABORTED + 1 + value
    }
}

/// An upload whose parts were acknowledged.
#[derive(Debug)]
struct Upload {
    key: u8,
    value: u8,
    id: String,
    /// Of the parts, in their order.
    etags: [String; 2],
    begun: Instant,
    /// Replicas that had been killed when it began.
    kills: u64,
}

/// The answer to a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Stored,
    OtherBytes,
    PartsGone,
    /// None, or one that leaves it open.
    Open,
}

impl From<End> for Outcome {
    fn from(end: End) -> Self {
        match end {
            End::Stored => Self::Acknowledged,
            End::OtherBytes | End::PartsGone => Self::Refused,
            End::Open => Self::Unknown,
        }
    }
}

pub(super) struct UploadClient<'a> {
    history: &'a History,
    group: &'a Group<'a>,
    dice: RefCell<Dice>,
}

impl<'a> UploadClient<'a> {
    pub(super) fn new(history: &'a History, group: &'a Group<'a>, seed: u64) -> Self {
        Self { history, group, dice: RefCell::new(Dice::new(seed)) }
    }

    fn below(&self, n: usize) -> usize {
        self.dice.borrow_mut().below(n)
    }

    async fn pause(&self, longest: usize) {
        sleep(Duration::from_millis(self.below(longest) as u64)).await;
    }

    /// Until the history is over.
    pub(super) async fn run(self) {
        while !self.history.is_over.get() {
            self.pause(PAUSE).await;
            let is_aborted = self.below(4) == 0;
            let Some(upload) = self.send_parts(is_aborted).await else { continue };
            self.pause(LONG_PAUSE).await;
            if is_aborted {
                self.abort(&upload).await;
            } else {
                self.complete(&upload).await;
            }
        }
    }

    /// The answer of any replica, if one runs and answers.
    async fn send(&self, method: Method, key: u8, query: &str, body: Vec<u8>) -> Option<Response> {
        let doors = self.group.doors();
        if doors.is_empty() {
            return None;
        }
        let (life, api, s3) = &doors[self.below(doors.len())];
        let door = Door::new(self.group, &self.history.namespace, (*life, api), Some(*s3));
        door.send(door.upload_request(method, key, query).body(body)).await
    }

    /// A success. A replica whose store is away may refuse; none finds fault with the request.
    async fn accepted(&self, answer: Option<Response>) -> Option<Response> {
        let answer = answer?;
        let status = answer.status();
        if status.is_client_error() {
            let (url, text) = (answer.url().clone(), answer.text().await);
            panic!("{url} is {status}: {text:?}");
        }
        Some(answer).filter(|_| status.is_success())
    }

    /// Sends an object in two parts. `None` if a request was not acknowledged.
    async fn send_parts(&self, is_aborted: bool) -> Option<Upload> {
        let key = self.below(KEYS.into()) as u8;
        let value = match (is_aborted, self.below(2)) {
            (true, _) => ABORTED,
            // As PUTs have them: the same bytes may be there.
            (false, 0) => self.below(VALUES.into()) as u8,
            (false, _) => self.history.uploads.new_value(),
        };
        let (begun, kills) = (Instant::now(), self.group.kills.get());
        let answer = self.send(Method::POST, key, "uploads", Vec::new()).await;
        let text = self.accepted(answer).await?.text().await.ok()?;
        let id = text.split("<UploadId>").nth(1)?.split('<').next()?.to_owned();
        let bytes = payload(key, value);
        let (first, last) = bytes.split_at(1 + self.below(bytes.len() - 1));
        let mut etags = [String::new(), String::new()];
        let mut order = [(0, first), (1, last)];
        if self.below(2) == 0 {
            order.reverse();
        }
        for (place, part) in order {
            if self.below(3) == 0 {
                // Sent again below with other bytes, which are those that count.
                self.send_part((key, id.as_str()), place, vec![key; part.len()]).await?;
            }
            etags[place] = self.send_part((key, id.as_str()), place, part.to_vec()).await?;
            self.pause(PAUSE).await;
        }
        Some(Upload { key, value, id, etags, begun, kills })
    }

    /// The ETag of a part.
    async fn send_part(&self, (key, id): (u8, &str), place: usize, bytes: Vec<u8>) -> Option<String> {
        let query = format!("partNumber={}&uploadId={id}", place + 1);
        let answer = self.send(Method::PUT, key, &query, bytes).await;
        let answer = self.accepted(answer).await?;
        Some(answer.headers()["etag"].to_str().expect("text").to_owned())
    }

    /// Completes an upload twice, at once or in turn, each time at any replica; or until an answer says what became of it.
    async fn complete(&self, upload: &Upload) {
        let ends = match self.below(4) {
            0 => {
                let (one, other) = tokio::join!(self.complete_once(upload), self.complete_once(upload));
                vec![one, other]
            }
            1 => vec![self.complete_once(upload).await, self.complete_once(upload).await],
            _ => self.complete_at_last(upload).await,
        };
        let has = |end| ends.contains(&end);
        if has(End::PartsGone) && !has(End::Stored) && !has(End::Open) {
            judge(Err(format!("acknowledged parts of {upload:?} are gone: {ends:?}")));
        }
        let uploads = &self.history.uploads;
        if !has(End::Stored) {
            uploads.count(if has(End::OtherBytes) { "upload refused" } else { "upload left open" });
            return;
        }
        uploads.count("upload completed");
        if self.group.kills.get() > upload.kills {
            uploads.count("upload completed after a kill");
        }
        if ends.len() > 1 && !has(End::Open) {
            uploads.count("upload completed twice");
        }
    }

    /// As clients do that get no answer.
    async fn complete_at_last(&self, upload: &Upload) -> Vec<End> {
        let mut ends = Vec::new();
        while ends.len() < ATTEMPTS && ends.iter().all(|end| *end == End::Open) {
            self.pause(PAUSE).await;
            ends.push(self.complete_once(upload).await);
        }
        ends
    }

    async fn complete_once(&self, upload: &Upload) -> End {
        let history = self.history;
        let put = history.keys.borrow_mut().put_begins(upload.key, upload.value, history.now());
        let end = self.ask_to_complete(upload).await;
        let ended = history.now();
        judge(history.judged(|| history.keys.borrow_mut().put_ends(put, ended, end.into())));
        end
    }

    async fn ask_to_complete(&self, upload: &Upload) -> End {
        let parts = upload.etags.iter().zip(1..);
        let parts =
            parts.map(|(etag, n)| format!("<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>"));
        let body =
            format!("<CompleteMultipartUpload>{}</CompleteMultipartUpload>", parts.collect::<String>());
        let query = format!("uploadId={}", upload.id);
        let Some(answer) = self.send(Method::POST, upload.key, &query, body.into_bytes()).await else {
            return End::Open;
        };
        let status = answer.status();
        let Ok(text) = answer.text().await else { return End::Open };
        match status {
            StatusCode::OK => End::Stored,
            StatusCode::PRECONDITION_FAILED => End::OtherBytes,
            StatusCode::BAD_REQUEST if text.contains("<Code>InvalidPart</Code>") => End::PartsGone,
            // It was stored, and removed before its ETag was read.
            StatusCode::NOT_FOUND => End::Open,
            _ if status.is_server_error() => End::Open,
            _ => panic!("the completion of {upload:?} is {status}: {text}"),
        }
    }

    /// Aborts an upload, and tries to complete it all the same.
    async fn abort(&self, upload: &Upload) {
        let query = format!("uploadId={}", upload.id);
        let answer = self.send(Method::DELETE, upload.key, &query, Vec::new()).await;
        let is_aborted = self.accepted(answer).await.is_some();
        // Where requests to the store are lost, one that stores a part may come after its deletion.
        if !is_aborted || !self.group.reached_the_store(upload.begun) {
            return;
        }
        self.history.uploads.count("upload aborted");
        let end = self.ask_to_complete(upload).await;
        if !matches!(end, End::PartsGone | End::Open) {
            judge(Err(format!("{upload:?} was aborted, and its completion is answered {end:?}")));
        }
    }
}
