#!/usr/bin/env bash

# The run {{ name }}, written by `render --to=hosts`; change what you like. Start it on
# {{ host }} with
#   bash {{ file }}
# The launcher starts the processes on the other machines over ssh. Without
# --config.launch.remote_python they have this Python at the same path. The trainer's machines, and
# with checkpoint transfer all of them, reach the work directory; others need no directory.
# {{ memory }}

set -eu
cd {{ directory | sh }}
{% for devices in visible %}
export CUDA_VISIBLE_DEVICES={{ devices }} # The launcher gives each process here its own.
{% endfor %}
exec {{ program }} \
{% for word in words[:-1] %}
  {{ word | sh }} \
{% endfor %}
  {{ words[-1] | sh }}
