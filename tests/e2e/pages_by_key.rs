//! Pages of a declared layout, encoded by the client, through a service.

use bytes::Bytes;
use half::bf16;
use kvasir_client::{
    Error,
    objects::{PageError, PageLayout, PageStore},
    rest::{Client, ClientConfig},
};
use kvasir_tests::{
    s3::{Lacks, S3Server},
    service::Service,
};
use kvasir_types::{KvDtype, KvLayout, ObjectKey, Quality};
use tempfile::TempDir;

const SHAPE: KvLayout = KvLayout::Gqa { kv_heads: 2, head_dim: 64 };
const LAYERS: usize = 5;
const ELEMENTS_A_TOKEN: usize = LAYERS * 2 * 2 * 64;

fn key(page: usize) -> ObjectKey {
    format!("page/{page}").parse().expect("a key")
}

/// Pages of 48 tokens of random values with a scale of each element's own.
fn page(number: usize) -> Bytes {
    let mut state = number as u64 + 1;
    let value = |index: usize| {
        let sum: f32 = (0..4)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
            })
            .sum();
        bf16::from_f32(sum * (1 + index % 64) as f32).to_le_bytes()
    };
    (0..48 * ELEMENTS_A_TOKEN).flat_map(value).collect()
}

fn store(service: &Service, quality: Quality, order: &str, revision: &str) -> PageStore {
    let url = format!("http://{}", service.address).parse().expect("a url");
    let client = Client::new(url, ClientConfig::default()).expect("an address");
    let layout = PageLayout::new(KvDtype::Bf16, SHAPE, LAYERS, 48, order).expect("possible");
    let namespace = "pages".parse().expect("a name");
    PageStore::new(client, namespace, layout, quality, ("m", revision)).expect("possible")
}

async fn read(store: &PageStore, keys: &[ObjectKey]) -> Vec<Result<Vec<u8>, PageError>> {
    let mut pages = Vec::new();
    let take = |place: usize, page: Result<&[u8], PageError>| {
        assert_eq!(place, pages.len(), "in order");
        pages.push(page.map(<[u8]>::to_vec));
    };
    let count = store.read(keys, take).await.expect("answers");
    assert_eq!(count, pages.len());
    pages
}

#[tokio::test]
async fn pages_are_encoded_once_a_profile_has_made_itself() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let service = Service::start(server.config("o"), directory.path()).await;
    let writer = store(&service, Quality::Transparent, "2LNHD", "1");
    let url = format!("http://{}", service.address).parse().expect("a url");
    let client = Client::new(url, ClientConfig::default()).expect("an address");
    let namespace = "pages".parse().expect("a name");
    let keys: Vec<ObjectKey> = (0..9).map(key).collect();
    // One page, one page, then the rest: what there is of the first two makes no profile.
    for pages in [0..1, 1..2, 2..8] {
        let pages: Vec<_> = pages.map(|number| (key(number), page(number))).collect();
        let written = writer.write(&pages).await.expect("stores");
        assert!(written.iter().all(|written| written.created && written.problem.is_none()), "{written:?}");
    }
    let raw = (48 * ELEMENTS_A_TOKEN * 2) as u64;
    let sizes = client.lookup_opaque(&namespace, &keys).await.expect("answers");
    assert_eq!(sizes.len(), 8);
    assert!(sizes[..2].iter().all(|size| (raw * 6 / 10..raw).contains(size)), "exact: {sizes:?} of {raw}");
    assert!(sizes[2..].iter().all(|size| *size < raw / 2), "encoded: {sizes:?} of {raw}");
    // The writer itself, and one that begins now, with a lower quality and another order of axes.
    let exact = |pages: &[Result<Vec<u8>, PageError>]| {
        pages[..2].iter().zip(0..).all(|(read, n)| *read == Ok(page(n).to_vec()))
    };
    let own = read(&writer, &keys).await;
    assert!(own.len() == 8 && exact(&own) && own.iter().all(Result::is_ok));
    let other = store(&service, Quality::Small, "L2HDN", "1");
    let theirs = read(&other, &keys[2..]).await;
    for (own, theirs) in own[2..].iter().zip(&theirs) {
        let (own, theirs) = (own.as_ref().expect("read"), theirs.as_ref().expect("read"));
        for (layer, token) in [(0, 0), (4, 47), (2, 20)] {
            let (plane, head, element) = (1, 1, 63);
            let at = ((((plane * LAYERS + layer) * 48 + token) * 2 + head) * 64 + element) * 2;
            let there = ((((layer * 2 + plane) * 2 + head) * 64 + element) * 48 + token) * 2;
            assert_eq!(own[at..at + 2], theirs[there..there + 2], "{layer} {token}");
        }
    }
    // One with a higher quality has misses where pages are below it, though lookups find them.
    let strict = read(&store(&service, Quality::Exact, "2LNHD", "1"), &keys).await;
    assert!(strict.len() == 8 && exact(&strict), "stored exactly");
    assert_eq!(strict[2..], vec![Err(PageError::BelowQuality); 6]);
    // Another model's reader has misses, and says why.
    let stranger = store(&service, Quality::Exact, "2LNHD", "2");
    let refused = read(&stranger, &keys[2..]).await;
    assert_eq!(refused, vec![Err(PageError::OtherLayout); 6]);
    client.put_opaque(&namespace, &key(8), "not a page".into()).await.expect("stores");
    assert_eq!(read(&writer, &keys[8..]).await, [Err(PageError::NoPage)]);
    let short = writer.write(&[(key(9), Bytes::from_static(b"short"))]).await.expect_err("too short");
    assert!(matches!(short, Error::Page(PageError::Length { actual: 5, .. })), "{short}");
    // A second writer takes the profile that is there.
    let again = store(&service, Quality::Transparent, "2LNHD", "1");
    again
        .write(&(10..13).map(|number| (key(number), page(number))).collect::<Vec<_>>())
        .await
        .expect("stores");
    let sizes = client.lookup_opaque(&namespace, &[key(10), key(12)]).await.expect("answers");
    assert!(sizes.iter().all(|size| *size < raw / 2), "{sizes:?}");
    service.stop().await;
}
