"""A Ray cluster of two nodes on loopback, with GPUs that are only declared, until stdin ends.

Prints the address. Run it where only `lo` is: Ray listens on every interface.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

NODES = {"127.0.0.2": "A100", "127.0.0.3": "H100"}


def main() -> None:
    cluster = Cluster()
    for address, gpu in NODES.items():
        cluster.add_node(
            node_ip_address=address,
            num_cpus=4,
            num_gpus=2,
            resources={f"accelerator_type:{gpu}": 2},
            object_store_memory=100 << 20,
            include_dashboard=False,
        )
    print(cluster.address, flush=True)
    for line in sys.stdin:  # `remove`: the second node goes
        if line.strip() == "remove":
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            print("removed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
