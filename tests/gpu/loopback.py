# SPDX-License-Identifier: Apache-2.0
"""loopback.py - NCCL over sockets of this machine's loopback, whatever networks and fabrics it
has."""
ENVIRONMENT = {
    "NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_FAMILY": "AF_INET",
    "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "none",
    "NCCL_MNNVL_ENABLE": "0",
}
