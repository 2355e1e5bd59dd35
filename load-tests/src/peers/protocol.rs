//! How the servers are spoken to: answers that carry a value, and answers to a write.

use anyhow::{Context as _, Result, ensure};

use crate::http::ResponseHead;

/// How answers begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1 with a Content-Length.
    Http,
    /// The same over TLS.
    Https,
    /// Redis: `$length\r\n`, the bytes, `\r\n`.
    Redis,
    /// LMCache's `lm://`: nine 32-bit numbers, then the bytes.
    Lmcache,
}

/// Bytes of an answer's head, and of a request's key, in LMCache's protocol (`lmcache/v1/protocol.py`, 0.5.6).
const LM_HEAD: usize = 36;
const LM_KEY: usize = 150;
/// The code of a good answer.
const LM_SUCCESS: i32 = 200;

/// Commands of LMCache's protocol.
#[derive(Debug, Clone, Copy)]
pub(super) enum LmCommand {
    Put = 1,
    Get = 2,
    Exist = 3,
}

/// A request of LMCache's protocol: command, length, format, dtype, location, shape, key. Packed in the machine's byte order.
pub(super) fn lm_request(command: LmCommand, key: &str, bytes: usize) -> Vec<u8> {
    // Format 1 is KV_2LTD, dtype 6 one byte: the server stores them with the value and ignores both.
    let numbers = [command as i32, bytes as i32, 1, 6, 0, bytes as i32, 1, 1, 1];
    let mut request: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    request.extend(key.bytes());
    request.resize(LM_HEAD + LM_KEY, b' ');
    request
}

fn lm_answer(bytes: &[u8]) -> Result<Option<usize>> {
    let Some((head, _)) = bytes.split_at_checked(LM_HEAD) else { return Ok(None) };
    let numbers: Vec<i32> = head.as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect();
    ensure!(numbers[0] == LM_SUCCESS, "LMCache answers {}", numbers[0]);
    Ok(Some(usize::try_from(numbers[1])?))
}

/// The end of an HTTP head, and the length of the body.
fn http_head(bytes: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(head) = ResponseHead::parse(bytes)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes[..head.head_bytes]);
    ensure!((200..210).contains(&head.status), "{}", text.trim_end());
    Ok(Some((head.head_bytes, head.body_bytes)))
}

impl Protocol {
    /// The end of the head of an answer with a value, and the bytes of the value.
    pub(super) fn head(self, bytes: &[u8]) -> Result<Option<(usize, usize)>> {
        match self {
            Self::Http | Self::Https => http_head(bytes),
            Self::Redis => {
                let Some(at) = bytes.windows(2).position(|w| w == b"\r\n") else { return Ok(None) };
                let text = String::from_utf8_lossy(&bytes[..at]);
                let length = text.strip_prefix('$').with_context(|| text.to_string())?;
                Ok(Some((at + 2, length.parse()?)))
            }
            Self::Lmcache => Ok(lm_answer(bytes)?.map(|length| (LM_HEAD, length))),
        }
    }

    /// Bytes after a value.
    pub(super) const fn trailer(self) -> usize {
        if matches!(self, Self::Redis) { 2 } else { 0 }
    }

    /// Whether the answer to a write is whole.
    pub(super) fn is_acknowledged(self, bytes: &[u8]) -> Result<bool> {
        match self {
            Self::Http | Self::Https => {
                Ok(http_head(bytes)?.is_some_and(|(head, length)| bytes.len() >= head + length))
            }
            Self::Redis => {
                let text = String::from_utf8_lossy(bytes);
                ensure!("+OK\r\n".starts_with(&*text), "SET: {text}");
                Ok(bytes.len() == 5)
            }
            Self::Lmcache => Ok(lm_answer(bytes)?.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_found_when_they_are_whole() {
        let http = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nbody";
        assert_eq!(Protocol::Http.head(http).unwrap(), Some((http.len() - 4, 12)));
        assert_eq!(Protocol::Http.head(&http[..30]).unwrap(), None);
        assert!(Protocol::Http.head(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n").is_err());
        assert_eq!(Protocol::Redis.head(b"$5\r\nhello\r\n").unwrap(), Some((4, 5)));
        assert!(Protocol::Redis.head(b"-ERR\r\n").is_err());
        let answer: Vec<u8> =
            [200, 77, 1, 6, 77, 1, 1, 1, 0].iter().flat_map(|n: &i32| n.to_ne_bytes()).collect();
        assert_eq!(Protocol::Lmcache.head(&answer).unwrap(), Some((36, 77)));
        assert_eq!(Protocol::Lmcache.head(&answer[..35]).unwrap(), None);
        let failed: Vec<u8> = [400i32; 9].iter().flat_map(|n| n.to_ne_bytes()).collect();
        assert!(Protocol::Lmcache.head(&failed).is_err());
        assert_eq!(lm_request(LmCommand::Get, "m@1@0@a@uint8", 0).len(), 186);
    }

    #[test]
    fn writes_are_acknowledged_by_whole_answers_only() {
        let http = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}";
        assert!(Protocol::Http.is_acknowledged(http).unwrap());
        assert!(!Protocol::Http.is_acknowledged(&http[..http.len() - 1]).unwrap());
        assert!(Protocol::Http.is_acknowledged(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(!Protocol::Redis.is_acknowledged(b"+O").unwrap());
        assert!(Protocol::Redis.is_acknowledged(b"+OK\r\n").unwrap());
        assert!(Protocol::Redis.is_acknowledged(b"-OOM").is_err());
    }
}
