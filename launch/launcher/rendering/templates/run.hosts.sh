#!/usr/bin/env bash

# The run {{ name }}, written by `render --to=hosts`; change what you like. Start it on
# {{ host }} with
#   bash {{ file }}
# The launcher starts the processes on the other machines over ssh. All machines share this
# directory, its Python, and the work directory.
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
