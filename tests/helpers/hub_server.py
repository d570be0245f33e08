"""A small stand-in for the Hugging Face hub on the loopback address, with one branch."""

import base64
import hashlib
import http.server
import json
import threading


class HubServer:
    """Repositories in memory.

    Attributes:
        files: dict from "user/name" to a dict from file names to bytes.
        cut: names of files whose download breaks off in the middle.
    """

    def __init__(self):
        self.files, self.cut = {}, set()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self, status, body=b"", **headers):
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                return body

            def do_HEAD(self):
                self.do_GET()

            def do_GET(self):
                path = self.path.partition("?")[0]
                if path.startswith("/api/models/"):
                    name = "/".join(path.split("/")[3:5])
                    if name not in server.files:
                        body = self.answer(404, {}, X_Error_Code="RepoNotFound")
                    else:
                        files = server.files[name]
                        tree = [
                            {"type": "file", "path": file, "size": len(data), "oid": "0" * 40}
                            for file, data in files.items()
                        ]
                        siblings = [{"rfilename": file} for file in files]
                        about = {"id": name, "sha": server.commit(name), "siblings": siblings}
                        body = self.answer(200, tree if "/tree/" in path else about)
                    self.wfile.write(body)
                    return
                user, name, _, commit, *file = path.strip("/").split("/")
                content = server.files[f"{user}/{name}"]["/".join(file)]
                etag = hashlib.sha256(content).hexdigest()
                body = self.answer(200, content, ETag=f'"{etag}"', X_Repo_Commit=commit)
                if self.command == "GET":
                    is_cut = file[-1] in server.cut
                    self.wfile.write(body[: len(body) // 2] if is_cut else body)
                    if is_cut:
                        self.wfile.flush()
                        self.connection.close()

            def do_POST(self):
                sent = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/api/repos/create":
                    given = json.loads(sent)
                    name = "/".join(filter(None, (given.get("organization"), given["name"])))
                    server.files.setdefault(name, {})
                    self.wfile.write(self.answer(200, {"url": f"{server.url}/{name}"}))
                    return
                if self.path == "/api/validate-yaml":
                    self.wfile.write(self.answer(200, {"errors": [], "warnings": []}))
                    return
                name = "/".join(self.path.split("/")[3:5])
                if "/preupload/" in self.path:
                    files = [
                        {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                        for file in json.loads(sent)["files"]
                    ]
                    self.wfile.write(self.answer(200, {"files": files}))
                    return
                for line in sent.decode().splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        content = base64.b64decode(entry["value"]["content"])
                        server.files[name][entry["value"]["path"]] = content
                url = f"{server.url}/{name}/commit/{server.commit(name)}"
                answer = {"commitUrl": url, "commitOid": server.commit(name)}
                self.wfile.write(self.answer(200, answer))

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def commit(self, name):
        """Returns the commit of a repository: 40 hexadecimal digits of its content."""
        content = sorted((file, data.hex()) for file, data in self.files[name].items())
        return hashlib.sha1(repr(content).encode()).hexdigest()

    def close(self):
        """Stops the server."""
        self._server.shutdown()
        self._server.server_close()
