"""Takes some files out of a wheel of the Python Package Index without downloading the rest of it.

    wheel_members.py PACKAGE VERSION SHA256 FOLDER OUT MEMBER...

pip says where the wheel is and what its hash is; the hash must be SHA256. A wheel is a zip file: its table of contents is
at its end, and each member is read by itself with HTTP range requests. If the server does not answer those, pip downloads
the whole wheel. Members are named relative to FOLDER and written below OUT. Whoever calls this verifies them.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile

PIP = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input"]
CHUNK = 1 << 18


class RemoteFile(io.RawIOBase):
    """A file on an HTTP server, read by ranges."""

    def __init__(self, url):
        super().__init__()
        self.url, self.position, self.requested = url, 0, 0
        answer = self.request("bytes=0-0")
        self.size = int(answer.headers["Content-Range"].rpartition("/")[2])

    def request(self, byte_range):
        request = urllib.request.Request(self.url, headers={"Range": byte_range, "Accept-Encoding": "identity"})
        answer = urllib.request.urlopen(request, timeout=60)
        if answer.status != 206 or "Content-Range" not in answer.headers:
            raise OSError("the server does not send parts of files")
        return answer

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        self.position = base + offset
        return self.position

    def readinto(self, buffer):
        count = min(len(buffer), self.size - self.position)
        if count <= 0:
            return 0
        data = self.request(f"bytes={self.position}-{self.position + count - 1}").read()
        if len(data) != count:
            raise OSError(f"asked for {count} bytes, got {len(data)}")
        buffer[:count] = data
        self.position += count
        self.requested += count
        return count


def locate(package, version, sha256):
    """The wheel's address, once pip has resolved exactly this version to exactly this hash."""
    command = [*PIP, "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:"]
    command += ["--report", "-", f"{package}=={version}"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    download = report["install"][0]["download_info"]
    found = download["archive_info"]["hashes"]["sha256"]
    if found != sha256:
        sys.exit(f"{package} {version}: the index has a wheel with sha256 {found}, pinned is {sha256}")
    return download["url"]


def extract(archive, folder, out, members):
    for member in members:
        path = os.path.join(out, *member.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with archive.open(f"{folder}/{member}") as source, open(path, "wb") as target:
            target.write(source.read())


def main(package, version, sha256, folder, out, *members):
    try:
        remote = RemoteFile(locate(package, version, sha256))
        with zipfile.ZipFile(io.BufferedReader(remote, CHUNK)) as archive:
            extract(archive, folder, out, members)
        print(f"read {remote.requested / 1e6:.1f} MB of {remote.size / 1e6:.1f} MB", file=sys.stderr)
    except (OSError, KeyError, subprocess.CalledProcessError) as error:
        print(f"{package}: reading parts of the wheel failed ({error}); downloading all of it", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=out) as staging:
            requirements = os.path.join(staging, "requirements.txt")
            with open(requirements, "w") as file:
                file.write(f"{package}=={version} --hash=sha256:{sha256}\n")
            download = [*PIP, "download", "--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
            subprocess.run([*download, "-r", requirements, "-d", staging], check=True)
            wheel = next(name for name in os.listdir(staging) if name.endswith(".whl"))
            with zipfile.ZipFile(os.path.join(staging, wheel)) as archive:
                extract(archive, folder, out, members)


main(*sys.argv[1:])
