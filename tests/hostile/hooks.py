"""Kvasir's own media types are bytes."""

import schemathesis

for media in ("chunk", "profile", "tokens", "new-objects"):
    schemathesis.serializer.alias(f"application/vnd.kvasir.{media}", "application/octet-stream")
