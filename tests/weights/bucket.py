"""Buckets of two object stores, served by emulators in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gcp_storage_emulator.handlers import objects
from gcp_storage_emulator.server import create_server

from rl_sync.cluster.ports import free_ports

URL = "gs://bucket"
S3_URL = "s3://bucket"
_HOST = "127.0.0.1"


@contextlib.contextmanager
def serving() -> Iterator[dict[str, str]]:
    """Returns the variables with which `URL` is the bucket."""
    (port,) = free_ports(_HOST, 1)
    with _naming_generations():
        server = create_server(_HOST, port, in_memory=True, default_bucket="bucket")
        server.start()
        address = f"http://{_HOST}:{port}"
        try:
            yield {
                "STORAGE_EMULATOR_HOST": address,
                "TENSORSTORE_GCS_HTTP_URL": address,
                "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # The emulator has no such buckets.
            }
        finally:
            server.stop()


@contextlib.contextmanager
def serving_s3() -> Iterator[dict[str, str]]:
    """Returns the variables with which `S3_URL` is the bucket.

    It takes packages of the extra `test_s3`.
    """
    import s3fs
    from moto.server import ThreadedMotoServer

    (port,) = free_ports(_HOST, 1)
    server = ThreadedMotoServer(_HOST, port, verbose=False)
    server.start()
    address = f"http://{_HOST}:{port}"
    keys = {"key": "key", "secret": "secret"}
    try:
        s3fs.S3FileSystem(endpoint_url=address, skip_instance_cache=True, **keys).mkdir("bucket")
        yield {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": keys["key"],
            "AWS_SECRET_ACCESS_KEY": keys["secret"],
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.stop()


@contextlib.contextmanager
def _naming_generations() -> Iterator[None]:
    """Adds the generation number to downloads, as the real service does."""
    download = objects.download

    def naming(request: Any, response: Any, storage: Any) -> Any:
        place = request.params["bucket_name"], request.params["object_id"]
        with contextlib.suppress(Exception):  # `download` says what is wrong.
            response["x-goog-generation"] = str(storage.get_file_obj(*place)["generation"])
        return download(request, response, storage)

    objects.download = naming
    try:
        yield
    finally:
        objects.download = download
