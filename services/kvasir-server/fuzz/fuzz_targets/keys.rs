//! Names of objects in the bucket, whoever wrote them there, and of frames on the disk.
#![no_main]

use kvasir_server_fuzz as _;
use kvasir_store::layout::Layout;
use libfuzzer_sys::fuzz_target;
use object_store::path::Path;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    kvasir_storage::fuzzing::frame_name(text);
    let layout = Layout::new(&Path::from("root"));
    let Ok(path) = Path::parse(format!("root/2/{text}")) else { return };
    if let Some(key) = layout.parse(&path) {
        assert_eq!(layout.path(&key), path, "one key has one name");
    }
});
