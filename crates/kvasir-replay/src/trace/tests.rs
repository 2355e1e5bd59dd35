//! Traces read and made.

use super::*;

fn read(format: TraceFormat, text: &str) -> Result<Vec<Request>, TraceError> {
    let mut reader = TraceReader::new(text.as_bytes(), format);
    let (mut request, mut requests) = (Request::default(), Vec::new());
    while reader.read(&mut request)? {
        requests.push(request.clone());
    }
    Ok(requests)
}

const MOONCAKE: &str = r#"{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 30000, "input_length": 2000, "output_length": 5, "hash_ids": [0, 1, 3, 4]}
"#;

#[test]
fn both_formats_are_read() {
    let requests = read(TraceFormat::Mooncake, MOONCAKE).unwrap();
    assert_eq!((requests[0].turn, requests[0].pace_seconds), (1, None));
    assert_eq!((requests[1].turn, requests[1].pace_seconds), (2, Some(30.0)), "it continues [0, 1, partial]");
    assert_eq!(requests[1].at.as_micros(), 30_000_000);
    let row = r#"{"chat_id":7,"parent_chat_id":-1,"timestamp":1.5,"input_length":40,"output_length":1,"type":"file","turn":4,"hash_ids":[9,8,7]}"#;
    let requests = read(TraceFormat::Bailian, row).unwrap();
    let request = &requests[0];
    assert_eq!((request.kind.as_str(), request.turn, request.at.as_micros()), ("file", 4, 1_500_000));
    assert_eq!((request.input_tokens, request.blocks.as_slice()), (40, &[9, 8, 7][..]));
}

#[test]
fn malformed_lines_are_named() {
    let long = format!("{{\"pad\": \"{}\"}}", "x".repeat(LINE_BYTES_MAX));
    let bad = [
        "nonsense",
        "{}",
        r#"{"timestamp": -1, "input_length": 1, "hash_ids": []}"#,
        r#"{"timestamp": 1e300, "input_length": 1, "hash_ids": []}"#,
        r#"{"timestamp": 1, "input_length": 1099511627777, "hash_ids": [1]}"#,
        r#"{"timestamp": 1, "input_length": 1, "hash_ids": [-4]}"#,
        r#"{"timestamp": 1, "input_length": 1, "hash_ids": [1"#,
        "\u{0}",
        &long,
    ];
    for line in bad {
        let text = format!("{MOONCAKE}\n{line}\n{MOONCAKE}");
        match read(TraceFormat::Mooncake, &text) {
            Err(TraceError::Line { number: 4, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn synthetic_traces_repeat_and_are_prefix_trees() {
    let various: &[&str] = &["file", "api", "text", "agent", "batch"];
    let long: &[&str] = &["document", "one-shot"];
    for (callers, kinds) in
        [(Callers::Various, various), (Callers::LongContext, long), (Callers::SettledLongContext, long)]
    {
        let trace = SyntheticTrace { callers, requests: 3_000, ..SyntheticTrace::default() };
        let requests: Vec<Request> = trace.iter().collect();
        assert_eq!(requests, trace.iter().collect::<Vec<_>>());
        assert_ne!(requests, SyntheticTrace { seed: 2, ..trace }.iter().collect::<Vec<_>>());
        assert_eq!(requests.len(), 3_000);
        assert!(requests.is_sorted_by_key(|request| request.at));
        // Equal ids mean equal prefixes: a block always follows the same block.
        let mut before = std::collections::HashMap::new();
        for request in &requests {
            for (index, block) in request.blocks.iter().enumerate() {
                let parent = index.checked_sub(1).map(|parent| request.blocks[parent]);
                assert_eq!(*before.entry(*block).or_insert(parent), parent);
            }
        }
        for kind in kinds {
            assert!(requests.iter().filter(|request| request.kind == *kind).count() > 50, "{kind}");
        }
        let mut text = Vec::new();
        trace.write(&mut text).unwrap();
        let text = std::str::from_utf8(&text).unwrap();
        let read = read(TraceFormat::Bailian, text).unwrap();
        assert_eq!(read[2_999].blocks, requests[2_999].blocks);
        let times = [&read[2_999], &requests[2_999]].map(|request| request.at.as_micros() / 1_000);
        assert!(times[0].abs_diff(times[1]) <= 1);
    }
}

/// A policy that is compared with others has to find out who asks.
#[test]
fn without_labels_a_trace_says_neither_kind_nor_turn() {
    let trace = SyntheticTrace { requests: 1_000, labels: false, ..SyntheticTrace::default() };
    assert!(trace.iter().all(|request| request.kind.is_empty()));
    let mut text = Vec::new();
    trace.write(&mut text).unwrap();
    let text = std::str::from_utf8(&text).unwrap();
    assert!(!text.contains("type") && !text.contains("turn"));
    let read = read(TraceFormat::Bailian, text).unwrap();
    assert!(read.iter().any(|request| request.turn > 1), "turns are inferred");
}
