//! A store behind presigned URLs that follows a script, byte by byte: what no HTTP library would send.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use kvasir_types::ObjectDigest;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use kvasir_client::testing::Server;

/// How one request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Good,
    /// Ends before what it announced.
    Short,
    /// Brings more than was asked for.
    Long,
    /// One bit is wrong.
    Corrupt,
    /// Another object's bytes.
    Misdirected,
    /// The right bytes of the wrong place.
    OtherRange,
    /// `Range` ignored: the whole object.
    Whole,
    /// The connection is reset in the middle.
    Reset,
    /// Nothing, ever.
    Silent,
    /// Half of it, then nothing.
    Stall,
    /// Not HTTP.
    Garbage,
    /// The URL is not accepted (any more).
    Refused,
    /// A good answer, 300 ms late.
    Late,
}

impl Answer {
    pub(crate) const BAD: [Self; 11] = [
        Self::Short,
        Self::Long,
        Self::Corrupt,
        Self::Misdirected,
        Self::OtherRange,
        Self::Whole,
        Self::Reset,
        Self::Silent,
        Self::Stall,
        Self::Garbage,
        Self::Refused,
    ];
}

/// The answers to come; when they are used up, `then` for ever.
#[derive(Debug)]
pub(crate) struct Script {
    pub answers: Vec<Answer>,
    pub then: Answer,
    pub served: u32,
    /// URLs of lookups before this one are refused.
    pub accepts_from: u32,
}

impl Script {
    pub(crate) fn of(answers: &[Answer], then: Answer) -> Arc<Mutex<Self>> {
        let answers = answers.iter().rev().copied().collect();
        Arc::new(Mutex::new(Self { answers, then, served: 0, accepts_from: 0 }))
    }
}

/// Starts the store; it stops with the test's runtime.
pub(crate) async fn start(server: &Server, script: Arc<Mutex<Script>>) -> SocketAddr {
    let objects = server.digests().into_iter().map(|digest| (digest, server.object(&digest).unwrap()));
    let objects: Arc<BTreeMap<ObjectDigest, Bytes>> = Arc::new(objects.collect());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (objects, script) = (Arc::clone(&objects), Arc::clone(&script));
            // A client that goes away is what the test is about.
            tokio::spawn(async move { serve(stream, &objects, &script).await.ok() });
        }
    });
    address
}

async fn serve(
    mut stream: TcpStream,
    objects: &BTreeMap<ObjectDigest, Bytes>,
    script: &Mutex<Script>,
) -> std::io::Result<()> {
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read).lines();
    loop {
        let Some(request) = lines.next_line().await? else { return Ok(()) };
        let mut range = None;
        while let Some(line) = lines.next_line().await?.filter(|line| !line.is_empty()) {
            if let Some(bytes) = line.to_lowercase().strip_prefix("range: bytes=") {
                let (start, last) = bytes.split_once('-').unwrap();
                range = Some((start.parse::<usize>().unwrap(), last.parse::<usize>().unwrap() + 1));
            }
        }
        let path = request.split(' ').nth(1).unwrap();
        let (digest, lookup) = path[1..].split_once("?lookup=").unwrap();
        let (answer, accepts_from) = {
            let mut script = script.lock().unwrap();
            script.served += 1;
            (script.answers.pop().unwrap_or(script.then), script.accepts_from)
        };
        let refused = lookup.parse::<u32>().unwrap() < accepts_from;
        let answer = if refused { Answer::Refused } else { answer };
        let object = object(objects, digest.parse().unwrap(), answer == Answer::Misdirected);
        if !respond(&mut write, &object, range.unwrap(), answer).await? {
            return Ok(());
        }
        write.flush().await?;
    }
}

fn object(objects: &BTreeMap<ObjectDigest, Bytes>, digest: ObjectDigest, other: bool) -> Vec<u8> {
    let found = objects.iter().find(|(name, _)| (**name == digest) != other);
    let mut bytes = found.unwrap().1.to_vec();
    if other {
        bytes.resize(1 << 20, 3);
    }
    bytes
}

/// Answers one request; false when the connection ends with it.
async fn respond(
    to: &mut (impl AsyncWriteExt + Unpin),
    object: &[u8],
    (start, end): (usize, usize),
    answer: Answer,
) -> std::io::Result<bool> {
    let mut part = object[start..end].to_vec();
    let mut first = start;
    match answer {
        Answer::Silent => std::future::pending().await,
        Answer::Garbage => {
            to.write_all(b"\x16\x03\x01 what?\r\n\r\n").await?;
            return Ok(false);
        }
        Answer::Refused => {
            to.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 7\r\n\r\nexpired").await?;
            return Ok(true);
        }
        Answer::Long => part.extend_from_slice(&[5; 3000]),
        Answer::Corrupt => {
            let middle = part.len() / 2;
            part[middle] ^= 1;
        }
        Answer::OtherRange => first += 1,
        Answer::Whole => part = object.to_vec(),
        Answer::Late => tokio::time::sleep(std::time::Duration::from_millis(300)).await,
        Answer::Good | Answer::Short | Answer::Misdirected | Answer::Reset | Answer::Stall => {}
    }
    let status = match answer {
        Answer::Whole => "200 OK".to_owned(),
        _ => format!("206 Partial Content\r\ncontent-range: bytes {first}-{}/{}", end - 1, object.len()),
    };
    to.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", part.len()).as_bytes()).await?;
    match answer {
        Answer::Short | Answer::Reset => {
            to.write_all(&part[..part.len() / 2]).await?;
            Ok(false)
        }
        Answer::Stall => {
            to.write_all(&part[..part.len() / 2]).await?;
            to.flush().await?;
            std::future::pending().await
        }
        _ => to.write_all(&part).await.map(|()| true),
    }
}
