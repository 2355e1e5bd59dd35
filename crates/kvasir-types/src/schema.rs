//! Schemas of types that serialise as text.

use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

/// A string that matches `pattern`.
pub(crate) fn text(about: &str, pattern: &str) -> RefOr<Schema> {
    let schema =
        ObjectBuilder::new().schema_type(Type::String).description(Some(about)).pattern(Some(pattern));
    RefOr::T(Schema::Object(schema.build()))
}
