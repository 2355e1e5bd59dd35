"""Kvasir's own media types are bytes."""

import schemathesis

for media in ("chunk", "profile", "tokens"):
    schemathesis.serializer.alias(f"application/vnd.kvasir.{media}", "application/octet-stream")
