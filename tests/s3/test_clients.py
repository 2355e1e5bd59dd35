"""Tests the S3 front with boto3, the aws command line and s3cmd."""

import base64
import http.client
import io
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
import zlib

import boto3
import botocore
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from front import front as start

BUCKET = "kv-cache"
LARGE = os.urandom(20 << 20)
PARTS = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20)


@pytest.fixture(scope="module")
def front():
    with start() as running:
        yield running


def client(front, name="writer", url=None, **config):
    access_key, secret = front.keys[name]
    return boto3.client(
        "s3",
        endpoint_url=url or front.url,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 0}, **config),
    )


@pytest.fixture(scope="module")
def s3(front):
    return client(front)


def refusal(call, **arguments):
    """The code and status of a call that must fail."""
    with pytest.raises(botocore.exceptions.ClientError) as error:
        call(Bucket=BUCKET, **arguments)
    answer = error.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def keys(page):
    return [entry["Key"] for entry in page.get("Contents", [])]


def prefixes(page):
    return [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]


def test_a_key_keeps_its_bytes(s3):
    key = "a/b c/ä<&>+%2F"
    stored = s3.put_object(Bucket=BUCKET, Key=key, Body=b"hello")
    assert s3.put_object(Bucket=BUCKET, Key=key, Body=b"hello")["ETag"] == stored["ETag"]
    assert refusal(s3.put_object, Key=key, Body=b"other") == ("PreconditionFailed", 412)
    assert refusal(s3.put_object, Key=key, Body=b"hello", IfNoneMatch="*") == ("PreconditionFailed", 412)
    s3.put_object(Bucket=BUCKET, Key="created", Body=b"once", IfNoneMatch="*")
    read = s3.get_object(Bucket=BUCKET, Key=key)
    assert (read["Body"].read(), read["ETag"], read["ContentLength"]) == (b"hello", stored["ETag"], 5)
    head = s3.head_object(Bucket=BUCKET, Key=key)
    assert (head["ETag"], head["LastModified"]) == (read["ETag"], read["LastModified"])
    s3.delete_object(Bucket=BUCKET, Key=key)
    assert refusal(s3.get_object, Key=key) == ("NoSuchKey", 404)
    assert refusal(s3.head_object, Key=key) == ("404", 404)
    s3.delete_object(Bucket=BUCKET, Key=key)
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"other")
    assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"other"
    s3.put_object(Bucket=BUCKET, Key="empty", Body=b"")
    assert s3.get_object(Bucket=BUCKET, Key="empty")["Body"].read() == b""
    assert refusal(s3.put_object, Key="k" * 513, Body=b"") == ("KeyTooLongError", 400)


def test_ranges_and_conditions(s3):
    s3.put_object(Bucket=BUCKET, Key="ranged", Body=b"0123456789")
    for asked, bytes_, said in [
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=8-", b"89", "bytes 8-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=5-99", b"56789", "bytes 5-9/10"),
    ]:
        read = s3.get_object(Bucket=BUCKET, Key="ranged", Range=asked)
        assert (read["Body"].read(), read["ContentRange"]) == (bytes_, said)
    assert refusal(s3.get_object, Key="ranged", Range="bytes=10-") == ("InvalidRange", 416)
    head = s3.head_object(Bucket=BUCKET, Key="ranged")
    same = {"IfMatch": head["ETag"], "IfUnmodifiedSince": head["LastModified"]}
    assert s3.get_object(Bucket=BUCKET, Key="ranged", **same)["ContentLength"] == 10
    assert refusal(s3.get_object, Key="ranged", IfMatch='"x"') == ("PreconditionFailed", 412)
    assert refusal(s3.get_object, Key="ranged", IfNoneMatch=head["ETag"]) == ("304", 304)
    assert refusal(s3.get_object, Key="ranged", IfModifiedSince=head["LastModified"]) == ("304", 304)
    with pytest.raises(botocore.exceptions.ClientError) as same:
        s3.get_object(Bucket=BUCKET, Key="ranged", IfNoneMatch=head["ETag"])
    assert same.value.response["ResponseMetadata"]["HTTPHeaders"]["etag"] == head["ETag"]
    assert refusal(s3.delete_object, Key="ranged", IfMatch='"x"') == ("NotImplemented", 501)
    conditional = {"Objects": [{"Key": "ranged", "ETag": '"x"'}]}
    assert s3.delete_objects(Bucket=BUCKET, Delete=conditional)["Errors"][0]["Code"] == "NotImplemented"
    assert s3.head_object(Bucket=BUCKET, Key="ranged")["ETag"] == head["ETag"]
    assert refusal(s3.put_object, Key="ranged", Body=b"", IfMatch=head["ETag"]) == ("NotImplemented", 501)


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_checksums(s3, algorithm):
    try:
        s3.put_object(Bucket=BUCKET, Key=f"sum/{algorithm}", Body=b"hello", ChecksumAlgorithm=algorithm)
    except botocore.exceptions.MissingDependencyException:
        pytest.skip("boto3 needs another package to compute it")
    wrong = {f"Checksum{algorithm}": "AAAAAA==" if algorithm.startswith("CRC32") else "A" * 11 + "="}
    if algorithm.startswith("SHA"):
        wrong = {f"Checksum{algorithm}": "A" * (27 if algorithm == "SHA1" else 43) + "="}
    code, status = refusal(s3.put_object, Key=f"wrong/{algorithm}", Body=b"hello", **wrong)
    assert (code, status) == ("BadDigest", 400)
    assert refusal(s3.get_object, Key=f"wrong/{algorithm}") == ("NoSuchKey", 404)


def test_content_md5(s3):
    sum_of_hello = "XUFAKrxLKna5cZ2REBfFkg=="
    s3.put_object(Bucket=BUCKET, Key="md5", Body=b"hello", ContentMD5=sum_of_hello)
    assert refusal(s3.put_object, Key="md5-2", Body=b"hellO", ContentMD5=sum_of_hello) == ("BadDigest", 400)


def test_parts(front, s3):
    s3.upload_fileobj(io.BytesIO(LARGE), BUCKET, "large", Config=PARTS)
    read = io.BytesIO()
    s3.download_fileobj(BUCKET, "large", read, Config=PARTS)
    assert read.getvalue() == LARGE
    # Stored as it would be in one.
    s3.put_object(Bucket=BUCKET, Key="large", Body=LARGE)
    upload = {"Key": "parts", "UploadId": s3.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]}
    part = s3.upload_part(Bucket=BUCKET, PartNumber=3, Body=b"abc", **upload)
    for parts, code in [
        ([{"PartNumber": 3, "ETag": '"x"'}], "InvalidPart"),
        ([{"PartNumber": 2, "ETag": part["ETag"]}], "InvalidPart"),
        ([{"PartNumber": 3, "ETag": part["ETag"]}] * 2, "InvalidPartOrder"),
    ]:
        assert refusal(s3.complete_multipart_upload, MultipartUpload={"Parts": parts}, **upload)[0] == code
    s3.abort_multipart_upload(Bucket=BUCKET, **upload)
    parts = {"Parts": [{"PartNumber": 3, "ETag": part["ETag"]}]}
    assert refusal(s3.complete_multipart_upload, MultipartUpload=parts, **upload) == ("InvalidPart", 400)
    assert refusal(s3.upload_part, Key="parts", UploadId="none", PartNumber=1, Body=b"") == ("NoSuchUpload", 404)

    def uploaded():
        """Another upload of the same bytes under the same key, up to its completion."""
        begun = s3.create_multipart_upload(Bucket=BUCKET, Key="completed")
        upload = {"Key": "completed", "UploadId": begun["UploadId"]}
        part = s3.upload_part(Bucket=BUCKET, PartNumber=1, Body=b"abc", **upload)
        return upload | {"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}}

    stored = s3.complete_multipart_upload(Bucket=BUCKET, IfNoneMatch="*", **uploaded())
    assert s3.complete_multipart_upload(Bucket=BUCKET, **uploaded())["ETag"] == stored["ETag"]
    refused = refusal(s3.complete_multipart_upload, IfNoneMatch="*", **uploaded())
    assert refused == ("PreconditionFailed", 412)


def test_lists(s3):
    bucket = "lists"
    for number in range(12):
        s3.put_object(Bucket=bucket, Key=f"p/{number % 3}/{number:02}", Body=b"%d" % number)
    s3.put_object(Bucket=bucket, Key="a&<b\r", Body=b"")
    everything = ["a&<b\r", *sorted(f"p/{number % 3}/{number:02}" for number in range(12))]
    for version in ["list_objects_v2", "list_objects"]:
        pages = s3.get_paginator(version).paginate(Bucket=bucket, PaginationConfig={"PageSize": 5})
        assert [key for page in pages for key in keys(page)] == everything
        page = getattr(s3, version)(Bucket=bucket, Delimiter="/")
        assert (keys(page), prefixes(page)) == (["a&<b\r"], ["p/"])
        pages = s3.get_paginator(version).paginate(
            Bucket=bucket, Prefix="p/", Delimiter="/", PaginationConfig={"PageSize": 1}
        )
        assert [prefix for page in pages for prefix in prefixes(page)] == ["p/0/", "p/1/", "p/2/"]
    entry = s3.list_objects_v2(Bucket=bucket, Prefix="p/1/10")["Contents"][0]
    head = s3.head_object(Bucket=bucket, Key="p/1/10")
    assert (entry["Size"], entry["ETag"]) == (head["ContentLength"], head["ETag"])
    assert "Owner" not in entry
    owned = s3.list_objects_v2(Bucket=bucket, Prefix="p/1/10", FetchOwner=True, Delimiter="")
    assert owned["Contents"][0]["Owner"]["ID"] == "a"
    assert "Delimiter" not in owned
    assert keys(s3.list_objects_v2(Bucket=bucket, StartAfter="p/2/05")) == ["p/2/08", "p/2/11"]
    removed = [{"Key": f"p/0/{number:02}"} for number in (0, 3, 6)] + [{"Key": "never there"}]
    assert len(s3.delete_objects(Bucket=bucket, Delete={"Objects": removed})["Deleted"]) == 4
    assert keys(s3.list_objects_v2(Bucket=bucket, Prefix="p/0/")) == ["p/0/09"]
    assert bucket in [entry["Name"] for entry in s3.list_buckets()["Buckets"]]


def test_who_may_what(front, s3):
    s3.put_object(Bucket=BUCKET, Key="mine", Body=b"bytes")
    reader, sealed = client(front, "reader"), client(front, "sealed")
    assert reader.get_object(Bucket=BUCKET, Key="mine")["Body"].read() == b"bytes"
    for call, arguments in [
        (reader.put_object, {"Key": "mine", "Body": b"bytes"}),
        (reader.delete_object, {"Key": "mine"}),
        (reader.delete_objects, {"Delete": {"Objects": [{"Key": "mine"}]}}),
        (reader.create_multipart_upload, {"Key": "mine"}),
    ]:
        assert refusal(call, **arguments) == ("AccessDenied", 403)
    assert refusal(sealed.get_object, Key="mine") == ("NoSuchKey", 404)
    sealed.upload_fileobj(io.BytesIO(LARGE), BUCKET, "large", Config=PARTS)
    assert sealed.get_object(Bucket=BUCKET, Key="large")["Body"].read() == LARGE
    assert refusal(sealed.list_objects_v2) == ("NotImplemented", 501)
    front.keys["wrong"] = (front.keys["writer"][0], front.keys["reader"][1])
    front.keys["unknown"] = ("KVUNKNOWN", front.keys["reader"][1])
    assert refusal(client(front, "wrong").get_object, Key="mine") == ("SignatureDoesNotMatch", 403)
    assert refusal(client(front, "unknown").get_object, Key="mine") == ("InvalidAccessKeyId", 403)
    assert refusal(client(front, signature_version="s3").get_object, Key="mine") == ("InvalidRequest", 400)
    unsigned = client(front, signature_version=botocore.UNSIGNED)
    assert refusal(unsigned.get_object, Key="mine") == ("AccessDenied", 403)


def test_presigned_urls(front):
    signer = client(front, signature_version="s3v4")
    signer.put_object(Bucket=BUCKET, Key="signed", Body=b"bytes")
    url = signer.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "signed"}, ExpiresIn=60)
    assert urllib.request.urlopen(url).read() == b"bytes"
    for wrong in [url.replace("signed", "mine"), url[:-1] + ("0" if url[-1] != "0" else "1")]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(wrong)
        assert refused.value.code == 403


class Chunked(S3SigV4Auth):
    """Signs the head of a request whose body comes in chunks, as AWS's SDK for C++ does by default."""

    def payload(self, request):
        return "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


SUM_OF_BYTES = base64.b64encode(zlib.crc32(b"bytes").to_bytes(4, "big")).decode()


def put_in_chunks(front, path, length="5", trailer=SUM_OF_BYTES):
    """Puts `bytes` in a transfer without a length: the status, the ETag and the text of the answer."""
    host = front.url.removeprefix("http://")
    headers = {"Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": length, "x-amz-trailer": "x-amz-checksum-crc32"}
    request = AWSRequest("PUT", f"{front.url}/{BUCKET}/{path}", headers=headers | {"Host": host})
    Chunked(Credentials(*front.keys["writer"]), "s3", "us-east-1").add_auth(request)
    connection = http.client.HTTPConnection(host)
    body = iter([f"5\r\nbytes\r\n0\r\nx-amz-checksum-crc32:{trailer}\r\n\r\n".encode()])
    connection.request("PUT", f"/{BUCKET}/{path}", body, dict(request.headers.items()), encode_chunked=True)
    answer = connection.getresponse()
    return answer.status, answer.headers["ETag"], answer.read().decode()


def test_chunks_in_a_transfer_without_a_length(front, s3):
    status, etag, text = put_in_chunks(front, "chunked")
    assert status == 200, text
    read = s3.get_object(Bucket=BUCKET, Key="chunked")
    assert (read["Body"].read(), read["ETag"]) == (b"bytes", etag)
    upload = {"Key": "chunked-part", "UploadId": s3.create_multipart_upload(Bucket=BUCKET, Key="chunked-part")["UploadId"]}
    status, etag, text = put_in_chunks(front, f"chunked-part?partNumber=1&uploadId={upload['UploadId']}")
    assert status == 200, text
    s3.complete_multipart_upload(Bucket=BUCKET, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]}, **upload)
    assert s3.get_object(Bucket=BUCKET, Key="chunked-part")["Body"].read() == b"bytes"


@pytest.mark.parametrize(
    ("wrong", "status", "code"),
    [
        ({"trailer": "AAAAAA=="}, 400, "BadDigest"),
        ({"length": "4"}, 400, "IncompleteBody"),
        ({"length": "6"}, 400, "IncompleteBody"),
        ({"length": str(1 << 40)}, 413, "EntityTooLarge"),
    ],
)
def test_chunks_that_are_not_what_was_declared(front, s3, wrong, status, code):
    begun = s3.create_multipart_upload(Bucket=BUCKET, Key="wrong-chunks")
    for path in ["wrong-chunks", f"wrong-chunks?partNumber=1&uploadId={begun['UploadId']}"]:
        answer = put_in_chunks(front, path, **wrong)
        assert answer[0] == status and f"<Code>{code}</Code>" in answer[2], answer
    assert refusal(s3.get_object, Key="wrong-chunks") == ("NoSuchKey", 404)


def test_virtual_hosts(front, monkeypatch):
    resolve = socket.getaddrinfo
    here = lambda host, *rest, **more: resolve("127.0.0.1" if host.endswith(".localhost") else host, *rest, **more)
    monkeypatch.setattr(socket, "getaddrinfo", here)
    port = front.url.rsplit(":", 1)[1]
    virtual = client(front, url=f"http://s3.localhost:{port}", s3={"addressing_style": "virtual"})
    virtual.put_object(Bucket="virtual", Key="a/b", Body=b"bytes")
    assert client(front).get_object(Bucket="virtual", Key="a/b")["Body"].read() == b"bytes"


def test_what_is_not_there_says_so(s3):
    source = f"{BUCKET}/large"
    for call, arguments in [
        (s3.copy_object, {"Key": "x", "CopySource": source}),
        (s3.get_bucket_acl, {}),
        (s3.delete_bucket, {}),
        (s3.list_multipart_uploads, {}),
        (s3.put_object_tagging, {"Key": "x", "Tagging": {"TagSet": []}}),
        (s3.put_object, {"Key": "x", "Body": b"", "ServerSideEncryption": "AES256"}),
        (s3.get_object, {"Key": "large", "VersionId": "1"}),
    ]:
        assert refusal(call, **arguments) == ("NotImplemented", 501)


def test_the_aws_command_line(front, tmp_path):
    (tmp_path / "large").write_bytes(LARGE)

    def aws(*arguments):
        command = ["aws", "s3", *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=tmp_path, env=front.environment("writer")
        ).stdout

    aws("cp", "large", "s3://aws/folder/large")
    aws("cp", "s3://aws/folder/large", "back")
    assert (tmp_path / "back").read_bytes() == LARGE
    assert aws("ls", "s3://aws/").split() == ["PRE", "folder/"]
    assert aws("ls", "s3://aws/folder/").split()[2:] == [str(len(LARGE)), "large"]
    aws("rm", "--recursive", "s3://aws/")
    with pytest.raises(subprocess.CalledProcessError):
        aws("ls", "s3://aws/folder/large")


def test_a_refusal_leaves_the_connection_open_or_says_that_it_is_closed(front):
    """Of what nobody reads the body: a client would send its next request on a connection that ends."""
    host, port = front.url.removeprefix("http://").split(":")

    def said(*parts):
        with socket.create_connection((host, int(port)), 30) as connection:
            for part in parts:
                connection.sendall(part)
                # The body is on its way when the request is refused.
                time.sleep(0.3)
            return connection.makefile("rb").read()

    head = f"%s HTTP/1.1\r\nhost: {host}:{port}\r\n%s\r\n"
    removal = (head % (f"POST /{BUCKET}?delete", "content-length: 5\r\n")).encode()
    read = (head % (f"GET /{BUCKET}/mine", "connection: close\r\n")).encode()
    answers = said(removal, b"<xml>" + read)
    assert answers.count(b"HTTP/1.1 403") == 2, answers
    for waiting in ("", "expect: 100-continue\r\n"):
        answer = said((head % (f"PUT /{BUCKET}/mine", "content-length: 5\r\n" + waiting)).encode())
        assert answer.startswith(b"HTTP/1.1 403") and b"\r\nconnection: close\r\n" in answer.lower(), answer


def test_s3cmd(front, tmp_path):
    (tmp_path / "large").write_bytes(LARGE)
    host = front.url.removeprefix("http://")
    access_key, secret = front.keys["writer"]
    settings = {
        "access_key": access_key,
        "secret_key": secret,
        "host_base": host,
        "host_bucket": host,
        "use_https": False,
    }
    lines = [f"{name} = {value}" for name, value in settings.items()]
    (tmp_path / "s3cfg").write_text("\n".join(["[default]", *lines, ""]))

    def s3cmd(*arguments):
        command = ["s3cmd", "-c", "s3cfg", "--no-progress", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout

    s3cmd("put", "large", "s3://s3cmd/folder/large")
    s3cmd("get", "s3://s3cmd/folder/large", "back")
    assert (tmp_path / "back").read_bytes() == LARGE
    assert s3cmd("ls", "s3://s3cmd/").split() == ["DIR", "s3://s3cmd/folder/"]
    s3cmd("del", "s3://s3cmd/folder/large")
    assert s3cmd("ls", "s3://s3cmd/") == ""
