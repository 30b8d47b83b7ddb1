"""One of several processes that train together, a few steps on each mesh. `test_processes.py`
starts it.

python every_mesh.py COORDINATOR PROCESSES PROCESS MESHES FIELDS, the last two as JSON: [[data,
fsdp, tensor, stride], ...] and {field of the config: value}. Devices come in steps of `stride`:
with 1, those of a process are neighbours. The last printed line has, for each mesh, the number of
tokens and the loss of every step.
"""

import json
import math
import os
import sys

from conftest import FAST_COMPILER, tiny_config

COORDINATOR = sys.argv[1]
PROCESSES, PROCESS, MESHES, FIELDS = map(json.loads, sys.argv[2:])
LOCAL_DEVICES = math.prod(MESHES[0][:3]) // PROCESSES
os.environ["XLA_FLAGS"] = f"{FAST_COMPILER} --xla_force_host_platform_device_count={LOCAL_DEVICES}"

import jax  # noqa: E402
from test_step import train_on_mesh  # noqa: E402

from memsinks_jax.config import MeshConfig, with_fields  # noqa: E402
from memsinks_jax.training import hosts, sharding  # noqa: E402


def main():
    if PROCESSES > 1:
        hosts.start(COORDINATOR, PROCESSES, PROCESS)
    config, found = with_fields(tiny_config(), FIELDS), []
    for *shape, stride in MESHES:
        config = with_fields(config, {"mesh": MeshConfig(*shape)})
        devices = [device for first in range(stride) for device in jax.devices()[first::stride]]
        _, lines = train_on_mesh(config, sharding.make_mesh(config.mesh, devices), count=2)
        found.append([[line["tokens"], line["train_loss"]] for line in lines])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
