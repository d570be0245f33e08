"""Serves artefacts over HTTP: one process, or replicas on Ray. Extra `service`.

    python -m keras_transformer.export.serving en-de=out/onnx --port 8080

Contents, from the bottom up:

- `limits`: all sizes and times; `refusals`: reasons, with their statuses;
- `admission`: counts the open requests;
- `engine`: an artefact and its sessions; `line_queue`: makes batches of lines of similar length;
- `pools`: the workers that compute batches, threads of this process; `ray_pool`: replicas on Ray;
- `models`: counts requests and gives them deadlines; `metrics`: Prometheus; `request_log`: the log;
- `bodies`: reads HTTP requests; `fields`: checks their fields by tables; `request_options` and
  `glossaries`: check options;
- `endpoints`: the path of a request, from its body to its answer;
- `protocols`: a table of fields and two functions for each protocol;
- `app` and `connections`: HTTP; `front_end`: the server; `service`: all of it, until a signal;
  `__main__`: the command.

This package may import `export.runtime`, `export.ray_cluster` and the packages of the extra, Ray
only where a model needs it. A new protocol is a file in `protocols`.
"""

from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.service import MissingExtra, ServedArtefact, serve

__all__ = ["Limits", "MissingExtra", "ServedArtefact", "serve"]
