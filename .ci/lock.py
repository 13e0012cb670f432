"""pip's installation report → the lines of a lock: name, version and hash of each package but our own."""

import json
import sys
from pathlib import Path

locked = [
    (one["metadata"], one["download_info"]["archive_info"]["hashes"]["sha256"])
    for one in json.loads(Path(sys.argv[1]).read_text())["install"]
    if "archive_info" in one["download_info"]
]
print(*sorted(f"{data['name'].lower()}=={data['version']} --hash=sha256:{digest}" for data, digest in locked), sep="\n")
