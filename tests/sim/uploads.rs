//! Clients that store objects in parts, as S3 clients do. Each request goes to any replica, and some die meanwhile. The
//! model judges a completion as a PUT by key; of an upload that is not completed, nobody sees anything.

use std::{rc::Rc, time::Duration};

use futures::TryStreamExt;
use kvasir_storage::{ObjectError, PutError, PutPart, StoredPart};
use kvasir_store::layout::Key;
use kvasir_tests::{faulty::Dice, model::Outcome};
use object_store::ObjectStore;
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    client::{Book, body, tenant},
    keys::{KEYS, UNCOMPLETED, VALUES, payload, put_object},
    node::{Node, UPLOAD_TTL},
    world::World,
};

/// Requests of a client until one of them says what became of it.
const ATTEMPTS: usize = 3;
/// Longest pause before what ends an upload.
const PAUSE_MS: usize = 4_000;

/// Ends of uploads, which are counted, because a simulation without them shows nothing.
const COMPLETED: &str = "completed";
const COMPLETED_AFTER_A_DEATH: &str = "completed after a replica had died";
const COMPLETED_TWICE: &str = "completed, and refused when its parts were gone";
const REFUSED: &str = "refused, because its key has other bytes";
const ABORTED: &str = "aborted";
const REFUSED_AFTER_ABORTION: &str = "aborted, and not completed after that";
const LEFT_OPEN: &str = "left open";

/// All of them.
pub(crate) const UPLOAD_ENDS: [&str; 7] = [
    COMPLETED,
    COMPLETED_AFTER_A_DEATH,
    COMPLETED_TWICE,
    REFUSED,
    ABORTED,
    REFUSED_AFTER_ABORTION,
    LEFT_OPEN,
];

/// How a client means to end its upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Complete,
    Abort,
    Disappear,
}

/// The answer to a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Stored,
    OtherBytes,
    PartsGone,
    /// None, or an error that leaves it open.
    Open,
}

impl From<Answer> for Outcome {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Stored => Self::Acknowledged,
            Answer::OtherBytes | Answer::PartsGone => Self::Refused,
            Answer::Open => Self::Unknown,
        }
    }
}

/// A client of one upload.
#[derive(Debug)]
pub(crate) struct UploadClient {
    book: Rc<Book>,
    /// The replicas that it knows.
    nodes: Vec<Node>,
    dice: Dice,
    plan: Plan,
    id: Uuid,
    key: u8,
    value: u8,
    begun: Duration,
    /// Replicas that had ended when it began.
    deaths: usize,
    /// Whether no request for a part may take effect later.
    is_settled: bool,
}

impl UploadClient {
    pub(crate) fn new(book: Rc<Book>, nodes: Vec<Node>, mut dice: Dice) -> Self {
        let plan = match dice.below(6) {
            0 => Plan::Disappear,
            1 => Plan::Abort,
            _ => Plan::Complete,
        };
        let id = Uuid::from_u64_pair(dice.number(), dice.number());
        let key = dice.below(KEYS.into()) as u8;
        let value = if plan == Plan::Complete { dice.below(VALUES.into()) as u8 } else { UNCOMPLETED };
        let (begun, deaths) = (book.now(), deaths(&nodes));
        Self { book, nodes, dice, plan, id, key, value, begun, deaths, is_settled: true }
    }

    pub(crate) async fn run(mut self) {
        let Some(parts) = self.send_parts().await else { return self.count(LEFT_OPEN) };
        sleep(Duration::from_millis(self.dice.below(PAUSE_MS) as u64)).await;
        match self.plan {
            Plan::Complete => self.complete(&parts).await,
            Plan::Abort => self.abort(&parts).await,
            Plan::Disappear => self.count(LEFT_OPEN),
        }
    }

    fn count(&self, end: &'static str) {
        *self.book.uploads.borrow_mut().entry(end).or_default() += 1;
    }

    fn any(&mut self) -> Node {
        self.nodes[self.dice.below(self.nodes.len())].clone()
    }

    /// Stores two parts in any order. `None` if one was not acknowledged, or the client disappears before the second.
    async fn send_parts(&mut self) -> Option<Vec<StoredPart>> {
        let bytes = payload(self.key, self.value);
        let (first, last) = bytes.split_at(1 + self.dice.below(bytes.len() - 1));
        let mut order = [(1, first), (2, last)];
        if self.dice.chance(500) {
            order.reverse();
        }
        let mut stored = Vec::new();
        for (number, part) in order {
            if self.dice.chance(300) {
                // Sent again below with the bytes that count.
                self.send_part(number, &vec![u8::MAX; part.len()]).await?;
            }
            stored.push(self.send_part(number, part).await?);
            if self.dice.chance(200) {
                self.send_part(number, part).await?;
            }
            if self.plan == Plan::Disappear && self.dice.chance(300) {
                return None;
            }
        }
        stored.sort_by_key(|part| part.number);
        Some(stored)
    }

    /// Stores a part through any replicas, until one acknowledges it.
    async fn send_part(&mut self, number: u16, part: &[u8]) -> Option<StoredPart> {
        for _ in 0..ATTEMPTS {
            let node = self.any();
            let (tenant, upload_id, bytes) = (tenant(), self.id, part.len() as u64);
            let put = PutPart { tenant, upload_id, number, bytes, reservation: None };
            let faults = node.life.faults();
            let storing = node.storage.ingest().put_part(put, body(part));
            let content = node.run(Box::pin(storing)).await.and_then(Result::ok);
            self.is_settled &= content.is_some() && node.life.faults() == faults;
            if let Some(content) = content {
                return Some(StoredPart { number, content });
            }
        }
        None
    }

    /// Completes the upload: twice at once, twice in turn, or until an answer says what became of it.
    async fn complete(&mut self, parts: &[StoredPart]) {
        let (one, other) = (self.any(), self.any());
        let mut answers = match self.dice.below(4) {
            0 => {
                let (one, other) =
                    tokio::join!(self.complete_once(&one, parts), self.complete_once(&other, parts));
                vec![one, other]
            }
            1 => vec![self.complete_once(&one, parts).await, self.complete_once(&other, parts).await],
            _ => vec![self.complete_once(&one, parts).await],
        };
        while answers.len() < ATTEMPTS && answers.iter().all(|answer| *answer == Answer::Open) {
            let node = self.any();
            answers.push(self.complete_once(&node, parts).await);
        }
        let has = |answer| answers.contains(&answer);
        if !has(Answer::Stored) {
            // The collector takes them no earlier, and a refused completion leaves them.
            let are_kept = self.book.now() < self.begun + UPLOAD_TTL && !has(Answer::Open);
            if are_kept && has(Answer::PartsGone) {
                let (id, key) = (self.id, self.key);
                let wrong = format!("acknowledged parts of upload {id} of key {key} are gone: {answers:?}");
                self.book.judge(Err(wrong));
            }
            return self.count(if has(Answer::OtherBytes) { REFUSED } else { LEFT_OPEN });
        }
        self.count(COMPLETED);
        if deaths(&self.nodes) > self.deaths {
            self.count(COMPLETED_AFTER_A_DEATH);
        }
        if has(Answer::PartsGone) {
            self.count(COMPLETED_TWICE);
        }
    }

    async fn complete_once(&self, node: &Node, parts: &[StoredPart]) -> Answer {
        let put = self.book.keys.borrow_mut().put_begins(self.key, self.value, self.book.now());
        let answer = self.ask_to_complete(node, parts).await;
        self.book.put_of_key_ends(put, answer.into());
        answer
    }

    async fn ask_to_complete(&self, node: &Node, parts: &[StoredPart]) -> Answer {
        let bytes = parts.iter().map(|part| part.content.bytes()).sum();
        let put = put_object(self.key, bytes);
        let completing = node.storage.ingest().complete_parts(self.id, put, parts.to_vec());
        match node.run(Box::pin(completing)).await {
            Some(Ok(_)) => Answer::Stored,
            Some(Err(ObjectError::Exists { .. })) => Answer::OtherBytes,
            Some(Err(ObjectError::Put(PutError::UnknownPart { .. }))) => Answer::PartsGone,
            _ => Answer::Open,
        }
    }

    /// Aborts the upload, and tries to complete it all the same.
    async fn abort(&mut self, parts: &[StoredPart]) {
        let node = self.any();
        let aborted = node.run(node.storage.ingest().abort_parts(&tenant(), self.id)).await;
        if !matches!(aborted, Some(Ok(()))) {
            return self.count(LEFT_OPEN);
        }
        self.count(ABORTED);
        // A request for a part that was lost may take effect after the deletion.
        if !self.is_settled {
            return;
        }
        let node = self.any();
        match self.ask_to_complete(&node, parts).await {
            Answer::PartsGone => self.count(REFUSED_AFTER_ABORTION),
            Answer::Open => {}
            answer => {
                let (id, key) = (self.id, self.key);
                let wrong = format!("upload {id} of key {key} was aborted, and its completion is {answer:?}");
                self.book.judge(Err(wrong));
            }
        }
    }
}

fn deaths(nodes: &[Node]) -> usize {
    nodes.iter().filter(|node| node.life.is_over()).count()
}

impl World {
    /// Checks that the collector left no part of an upload, however that ended.
    pub(crate) async fn find_no_parts(&self, node: &Node) {
        let layout = node.storage.store().layout();
        let listed: Vec<_> = self.store.inner().list(None).try_collect().await.expect("memory");
        let mut parts = listed.iter().map(|meta| &meta.location);
        if let Some(part) = parts.find(|path| matches!(layout.parse(path), Some(Key::Part(_)))) {
            self.book.judge(Err(format!("nobody collects {part}")));
        }
    }
}
