"""A plugin for ceph's s3-tests: their results for a front without access lists, versions, copies and overwriting.

    pytest -p ceph_suite …      with AWS_ENDPOINT_URL and an access key in the environment

Tests that end because an operation or a header is not implemented count as skipped, by operation. Buckets are namespaces, which nobody
deletes, so the suite's cleaning up is left out.
"""

import collections
import os
import pathlib
import tempfile
import urllib.parse

import botocore.exceptions
import pytest

SECTIONS = ["s3 main", "s3 alt", "s3 tenant", "iam", "iam root", "iam alt root"]


def _settings() -> str:
    """A configuration of the suite's: one access key for all of its users."""
    address = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
    user = {
        "access_key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret_key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "api_name": "us-east-1",
        "display_name": "tester",
        "user_id": "tester",
        "email": "tester@example.com",
        "tenant": "tester",
    }
    common = {"host": address.hostname, "port": address.port, "is_secure": False, "ssl_verify": False}
    prefixes = {"bucket prefix": "s3-tests-{random}-", "iam name prefix": "s3-tests-", "iam path prefix": "/s3-tests/"}
    sections = {"DEFAULT": common, "fixtures": prefixes} | dict.fromkeys(SECTIONS, user)
    lines = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {value}" for key, value in values.items())]
    file = pathlib.Path(tempfile.mkdtemp()) / "s3tests.conf"
    file.write_text("\n".join(lines))
    return str(file)


os.environ["S3TEST_CONF"] = _settings()
import s3tests.functional  # noqa: E402, it reads the configuration

s3tests.functional.nuke_prefixed_buckets = lambda *_, **__: None

LACKING = collections.Counter()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report, failure = outcome.get_result(), call.excinfo and call.excinfo.value
    if not report.failed:
        return
    if isinstance(failure, botocore.exceptions.ClientError):
        lacks = failure.response["Error"]["Code"] in ("NotImplemented", "501")
        lacking = failure.operation_name
    else:
        # Tests compare the status with the one that they hope for.
        lacks, lacking = "501" in str(failure) or "NotImplemented" in str(failure), "of what an assertion asks for"
    if lacks:
        LACKING[lacking] += 1
        report.outcome, report.longrepr = "skipped", (item.path, None, f"not implemented: {lacking}")


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("not implemented")
    for operation, count in LACKING.most_common():
        terminalreporter.write_line(f"{count:4} {operation}")
