"""A page read as its script reads it, by other means."""

import base64
import gzip
import json
import re
import struct


def parts_of(page):
    """The index of a page and the records of its chunks, with their columns as functions of place and count."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(
        r'<script type="application/octet-stream" id="([\w-]+)">([A-Za-z0-9+/=]*)</script>', text
    )
    blobs = {name: gzip.decompress(base64.b64decode(packed)) for name, packed in found}
    heads = {name: split(blob)[0] for name, blob in blobs.items()}
    index = heads.pop("index")
    records = [record for name in sorted(heads, key=number) for record in heads[name]]
    return index, records, {name: split(blob)[1] for name, blob in blobs.items()}


def number(name):
    return int(name.rpartition("-")[2])


def split(blob):
    (length,) = struct.unpack_from("<I", blob)
    return json.loads(blob[4 : 4 + length]), blob[4 + length :]


def floats(data, place, count):
    return list(struct.unpack_from(f"<{count}f", data, 4 * place))


def integers(data, place, count):
    return list(struct.unpack_from(f"<{count}i", data, 4 * place))
