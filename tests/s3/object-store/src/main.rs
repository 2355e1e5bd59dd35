//! Runs `object_store`'s integration suite against the bucket of `AWS_*`.
//!
//! Not here, because they overwrite what they have stored: `get_opts`, `multipart_race_condition`, `put_get_delete_list`, `put_opts` and
//! `stream_get`; because they copy: `copy_if_not_exists`, `copy_rename_nonexistent_object` and `rename_and_copy`; because they want
//! metadata back: `multipart_with_opts` and `put_get_attributes`.

use object_store::{aws::AmazonS3Builder, integration::*};

/// Runs a case and says that it passed.
macro_rules! run {
    ($($case:ident($($argument:expr),*)),* $(,)?) => {
        $($case($($argument),*).await; println!("{}: passed", stringify!($case));)*
    };
}

#[tokio::main]
async fn main() {
    let store = AmazonS3Builder::from_env().with_allow_http(true).build().expect("AWS_* name a bucket");
    run!(
        list_uses_directories_correctly(&store),
        list_with_delimiter(&store),
        list_with_offset_exclusivity(&store),
        list_paginated(&store, &store),
        multipart(&store, &store),
        multipart_put_part_out_of_order(&store, &store),
        multipart_out_of_order(&store),
    );
    let missing = get_nonexistent_object(&store, None).await;
    assert!(matches!(missing, Err(object_store::Error::NotFound { .. })), "{missing:?}");
    println!("get_nonexistent_object: passed");
}
