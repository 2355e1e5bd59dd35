//! In a large cluster what was stored is written and read in every second turn alone.

use super::*;

/// Batches in the store: of removals, of what was stored, and of counts.
async fn batches(replica: &Storage) -> [usize; 3] {
    let mut batches = [0; 3];
    for (count, log) in batches.iter_mut().zip(JournalLog::ALL) {
        let prefix = replica.store().layout().log_prefix(log);
        let listed: Vec<_> =
            replica.store().objects().list(Some(&prefix)).try_collect().await.expect("lists");
        *count = listed.len();
    }
    batches
}

#[tokio::test]
async fn removals_are_appended_alone_unless_a_count_or_much_else_waits() {
    const MAX: usize = limits::JOURNAL_STORED_WAITING_MAX;
    let writer = storage().await;
    let changes = writer.changes();
    let append = async || (changes.journal_append_removals().await.expect("appends"), batches(&writer).await);
    changes.publish(removed(1));
    changes.publish(stored(1, None));
    assert_eq!(append().await, (1, [1, 0, 0]));
    // It names the batch that waits: nothing is added to that behind it.
    changes.begin_count(writer.store().now_ms().expect("was probed")).publish(Count::default());
    assert_eq!(append().await, (2, [1, 1, 1]));
    let publish = |objects: std::ops::Range<usize>| {
        objects.for_each(|object| changes.publish(stored(object as u64, None)));
    };
    publish(0..MAX);
    assert_eq!(append().await, (0, [1, 1, 1]));
    assert_eq!(changes.journal_append_counts().await.expect("appends"), 0);
    publish(MAX..MAX + 1);
    assert_eq!(append().await, (MAX + 1, [1, 2, 1]));
}

/// It would leave out what it does not know if it began anew, and events could not be resumed.
#[tokio::test]
async fn what_a_reader_leaves_it_reads_later_whoever_began_to_write_meanwhile() {
    let backend = Arc::new(InMemory::new());
    let reader = replica_over(Arc::clone(&backend)).await;
    let changes = reader.changes();
    let write = async |object: u8| {
        let writer = replica_over(Arc::clone(&backend)).await;
        writer.changes().publish(removed(object));
        writer.changes().publish(stored(object.into(), writer.store().now_ms()));
        assert_eq!(writer.changes().journal_append().await.expect("appends"), 2);
    };
    let leave = async |reading| changes.journal_tail_leaving_stored(reading).await.expect("reads");
    let tail = async || changes.journal_tail(JournalReading::Stored).await.expect("reads");
    assert_eq!(tail().await, 0);
    for object in 0..3 {
        write(object).await;
        assert_eq!(leave(JournalReading::Stored).await, 1, "the removal");
        assert!(changes.events().is_complete());
    }
    assert_eq!(tail().await, 3);
    write(3).await;
    assert_eq!(leave(JournalReading::Rows).await, 2, "rows wait for nothing");
}

/// To begin takes seconds, and lookups wait for a read that leaves what was stored.
#[tokio::test]
async fn a_reader_that_leaves_what_was_stored_begins_with_the_next_read() {
    let backend = Arc::new(InMemory::new());
    let (writer, reader) = (replica_over(Arc::clone(&backend)).await, replica_over(backend).await);
    let (others, changes) = (writer.changes(), reader.changes());
    let tail = async |reading| changes.journal_tail(reading).await.expect("reads");
    assert_eq!(tail(JournalReading::Removals).await, 0);
    let now = writer.store().now_ms().expect("was probed");
    others.publish(stored(0, Some(now)));
    others.begin_count(now).publish(Count::default());
    assert_eq!(others.journal_append().await.expect("appends"), 2);
    let left = changes.journal_tail_leaving_stored(JournalReading::Stored).await.expect("reads");
    assert_eq!((left, changes.events().is_complete()), (1, false));
    assert_eq!(changes.journal.stored.seen(others.replica()), Some(0), "the count includes it");
    others.publish(stored(1, Some(now)));
    assert_eq!(others.journal_append().await.expect("appends"), 1);
    assert_eq!(tail(JournalReading::Stored).await, 1);
    assert!(changes.events().is_complete());
}

/// A hundred replicas write 25 pages before the collector deletes them. Folder by folder they were a hundred listings. Where rows
/// are read, those do not wait for ten pages.
#[tokio::test]
async fn a_log_of_many_pages_is_listed_at_once_while_it_has_more_writers() {
    const WRITERS: usize = 16;
    const BATCHES: u64 = 750;
    let (backend, lists) = (Arc::new(InMemory::new()), Arc::new(AtomicU32::new(0)));
    let reader = observed_replica(Arc::clone(&backend), Arc::new(Lists(Arc::clone(&lists)))).await;
    let lists_of = async |reading| {
        let before = lists.load(Ordering::Relaxed);
        assert_eq!(reader.changes().journal_tail(reading).await.expect("reads"), 0);
        lists.load(Ordering::Relaxed) - before
    };
    // It begins before they write.
    lists_of(JournalReading::Stored).await;
    for writer in 0..WRITERS {
        let replica: Name = format!("writer-{writer}").parse().expect("a name");
        for n in 0..BATCHES {
            let key = Key::Journal { log: JournalLog::Stored, replica: replica.clone(), n };
            let path = reader.store().layout().path(&key);
            backend.put(&path, PutPayload::new()).await.expect("writes");
        }
        // The reader has read them.
        reader.changes().journal.stored.note_seen(&replica, BATCHES - 1);
    }
    assert_eq!(lists_of(JournalReading::Stored).await, 3, "one of each log");
    lists_of(JournalReading::Rows).await;
    assert!(lists_of(JournalReading::Rows).await > WRITERS as u32, "one of each folder");
}
