# SPDX-License-Identifier: Apache-2.0
"""loopback.py - NCCL over sockets of this machine's loopback, whatever networks and fabrics it
has, between ranks that share a GPU."""
ENVIRONMENT = {
    "NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_FAMILY": "AF_INET",
    "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "none",
    "NCCL_MNNVL_ENABLE": "0",
    # Processes take turns on a GPU, for milliseconds each. This protocol needs the fewest turns.
    "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple",
}
