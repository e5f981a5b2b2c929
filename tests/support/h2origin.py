"""An HTTP/2 origin in a process of its own: Node's, so that both ends of the gateway are somebody else's HTTP/2."""

from __future__ import annotations

import subprocess
from pathlib import Path

# GET /pub/big?n=N   N bytes.   GET /pub/trickle  one event, and the second after somebody asked for /pub/release.
# All else is answered with its own target.
SERVER = """
const pem = require('fs').readFileSync(process.argv[1]);
let release = null;
const settings = {maxConcurrentStreams: Number(process.argv[2])};
const server = require('http2').createSecureServer({key: pem, cert: pem, settings});
server.on('stream', (stream, headers) => {
  stream.on('error', () => {});
  const [path, argument] = headers[':path'].split('=');
  if (path === '/pub/big?n') {
    let left = Number(argument);
    const block = Buffer.alloc(1 << 16, 'x');
    stream.respond({':status': 200, 'content-length': left});
    const more = () => {
      while (left > 0) {
        const size = Math.min(left, block.length);
        left -= size;
        if (!stream.write(size === block.length ? block : block.subarray(0, size))) return stream.once('drain', more);
      }
      stream.end();
    };
    more();
  } else if (path === '/pub/trickle') {
    stream.respond({':status': 200, 'content-type': 'text/event-stream'});
    stream.write('data: one\\n\\n');
    release = () => stream.end('data: two\\n\\n');
  } else {
    if (path === '/pub/release' && release) release();
    stream.respond({':status': 200});
    stream.end(headers[':path']);
  }
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
process.stdin.on('end', () => process.exit(0)).resume();
"""


class H2Origin:
    """Serves TLS with the key and certificate in `pem` on 127.0.0.1:`port` until `close`. Speaks nothing but HTTP/2.

    streams: how many at a time on one connection.
    """

    def __init__(self, node: str, pem: Path, *, streams: int = 100) -> None:
        self._process = subprocess.Popen(
            [node, "-e", SERVER, str(pem), str(streams)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=10)
