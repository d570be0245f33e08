"""A small stand-in for the Hugging Face hub on the loopback address, with one branch."""

import base64
import hashlib
import http.server
import json
import threading

COMMIT = "7" * 40  # of each repository


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

            def answer(self, status, body=b"", cut=False, **headers):
                """Sends an answer, or half of its body."""
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[: len(body) // 2] if cut else body)
                    self.close_connection |= cut

            def do_HEAD(self):
                self.do_GET()

            def do_GET(self):
                first, *path = self.path.partition("?")[0].strip("/").split("/")
                if first != "api":  # USER/NAME/resolve/COMMIT/FILE
                    name, (_, commit, *file) = f"{first}/{path[0]}", path[1:]
                    content, cut = server.files[name]["/".join(file)], file[-1] in server.cut
                    etag = f'"{hashlib.sha256(content).hexdigest()}"'
                    self.answer(200, content, cut, ETag=etag, X_Repo_Commit=commit)
                elif (name := "/".join(path[1:3])) not in server.files:
                    self.answer(404, {}, X_Error_Code="RepoNotFound")
                elif "tree" in path:
                    file = {"type": "file", "oid": "0" * 40}
                    files = server.files[name].items()
                    self.answer(200, [{**file, "path": at, "size": len(x)} for at, x in files])
                else:
                    siblings = [{"rfilename": file} for file in server.files[name]]
                    self.answer(200, {"id": name, "sha": COMMIT, "siblings": siblings})

            def do_POST(self):
                sent = self.rfile.read(int(self.headers["Content-Length"]))
                name = "/".join(self.path.split("/")[3:5])
                if self.path == "/api/repos/create":
                    given = json.loads(sent)
                    name = "/".join(filter(None, (given.get("organization"), given["name"])))
                    server.files.setdefault(name, {})
                    self.answer(200, {"url": f"{server.url}/{name}"})
                elif self.path == "/api/validate-yaml":
                    self.answer(200, {"errors": [], "warnings": []})
                elif "/preupload/" in self.path:
                    mode = {"uploadMode": "regular", "shouldIgnore": False}
                    files = [{**mode, "path": file["path"]} for file in json.loads(sent)["files"]]
                    self.answer(200, {"files": files})
                else:
                    for entry in map(json.loads, sent.decode().splitlines()):
                        if entry["key"] == "file":
                            content = base64.b64decode(entry["value"]["content"])
                            server.files[name][entry["value"]["path"]] = content
                    url = f"{server.url}/{name}/commit/{COMMIT}"
                    self.answer(200, {"commitUrl": url, "commitOid": COMMIT})

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        """Stops the server."""
        self._server.shutdown()
        self._server.server_close()
