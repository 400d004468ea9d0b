# SPDX-License-Identifier: Apache-2.0
"""wsync_vllm.py - lets wsync push weights into vLLM over gloo (TCP), without NCCL.

Stock vLLM receives weights over NCCL or CUDA IPC only. With this worker extension it also receives
them over gloo, which needs no GPU at the sender and runs on servers with and without GPUs. Put the
folder of this file on PYTHONPATH of the server (in every container and on every node) and start:

    VLLM_SERVER_DEV_MODE=1 PYTHONPATH=/usr/local/share/wsync vllm serve MODEL \\
        --weight-transfer-config '{"backend":"nccl"}' \\
        --worker-extension-cls wsync_vllm.WorkerExtension

For vLLM 0.16 to 0.33. The extension replaces the communicator of the "nccl" engine, and on CPUs it
packs weights again after an update; nothing else: vLLM's own code still joins the sender's store,
allocates the tensors and loads them. A sender asks for gloo with the key "wsync/gloo" in its store.
Without that key vLLM makes its stock NCCL communicator, so senders that use NCCL keep working.

Environment: WSYNC_GLOO_TIMEOUT is how many seconds a worker waits for a sender that is silent
(default 300); the end of a sender is noticed within seconds. GLOO_SOCKET_IFNAME names the
network interface; by default the workers use the address from which they reach the store.

The connections are TCP without authentication or encryption, like those of NCCL and vLLM's dev
mode: use them in a network that you trust.
"""
import contextlib
import datetime
import functools
import importlib
import os
import select
import socket
import threading
import time
import types

import torch
import torch.distributed as dist

KEY = "wsync/gloo"  # in the sender's store: the prefix of the keys of its gloo group
GRACE = 5  # seconds to read what a closed connection still has
ABANDONED = []  # groups with a broadcast that hangs: to destroy one would wait for it


class GlooCommunicator:
    """Has the methods of vLLM's PyNcclCommunicator that weight transfer calls."""

    def __init__(self, store, prefix, rank, world_size, device):
        if isinstance(device, int):
            device = torch.device("cuda", device)
        self.device = torch.device(device or "cpu")
        self.rank, self.world_size = rank, world_size
        self.available, self.disabled = True, False
        self.host = None  # staging memory for tensors on a GPU
        seconds = float(os.environ.get("WSYNC_GLOO_TIMEOUT") or 300)
        timeout = datetime.timedelta(seconds=seconds)
        store.set_timeout(timeout)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        options._devices = [gloo_device(store)]
        ABANDONED[:] = [(g, work) for g, work in ABANDONED if not work.is_completed()]
        before = set(open_files().values())
        try:
            self.group = dist.ProcessGroupGloo(dist.PrefixStore(prefix, store), rank, world_size,
                                               options)
        except RuntimeError as e:
            raise RuntimeError("wsync: rank %d of %d cannot join the gloo group of the sender at "
                               "%s:%d: %s" % (rank, world_size, store.host, store.port, e)) from e
        self.connections = connections_since(before)

    def broadcast(self, tensor, src, stream=None):
        """Fills `tensor` with the bytes of rank `src`. For a tensor of 0 bytes nothing is sent.
        Raises RuntimeError when the sender ends or is silent; the group is closed then."""
        if self.group is None:
            raise RuntimeError("wsync: the gloo group is closed; call init_weight_transfer_engine "
                               "again")
        if not tensor.nbytes:
            return
        dense = tensor.detach().contiguous()
        data = dense.view(-1).view(torch.uint8)
        host = data if data.device.type == "cpu" else self.stage(data.numel())
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        try:
            if self.rank == src and host is not data:
                host.copy_(data)
            self.wait(self.group.broadcast([host], options))
        except RuntimeError as e:
            self.destroy()
            raise RuntimeError("wsync: a broadcast of %d bytes from rank %d failed, and the gloo "
                               "group is closed. Did the sender end? %s"
                               % (data.numel(), src, e)) from e
        if self.rank == src:
            return
        with torch.cuda.stream(stream) if self.device.type == "cuda" else contextlib.nullcontext():
            if host is not data:
                data.copy_(host)  # returns when the staging memory can be used again
            if dense.data_ptr() != tensor.data_ptr():
                tensor.copy_(dense)

    def wait(self, work):
        """Waits for a broadcast. gloo does not end one whose sender dies in the middle of a
        message, so this watches the connections too."""
        closed, done = None, threading.Event()
        work.get_future().add_done_callback(lambda _: done.set())
        while not done.wait(1):
            if closed is None and self.is_closed():
                closed = time.monotonic()
            if closed is not None and time.monotonic() - closed > GRACE:
                ABANDONED.append((self.group, work))
                raise RuntimeError("A connection was closed in the middle of a message")
        work.wait()

    def is_closed(self):
        """Whether another rank has closed a connection."""
        poll = select.poll()
        for connection in self.connections:
            poll.register(connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def stage(self, size):
        """The first `size` bytes of the staging memory, which is pinned where that is possible."""
        if self.host is None or self.host.numel() < size:
            self.host = None
            try:
                self.host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            except RuntimeError:
                self.host = torch.empty(size, dtype=torch.uint8)
        return self.host[:size]

    def destroy(self):
        """Closes the connections. May be called twice."""
        self.group = self.host = None
        for connection in self.connections:
            os.close(connection)
        self.connections = []
        self.available, self.disabled = False, True


def open_files():
    """Descriptor -> name, like "socket:[4711]", of each open file of this process."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing itself was one
            found[int(fd)] = os.readlink("/proc/self/fd/" + fd)
    return found


def connections_since(before):
    """Duplicates of the TCP connections of this process whose names are not in `before`. They
    share their flags with gloo's own: socket.dup() would make those block, and hang gloo."""
    found = []
    for fd, name in open_files().items():
        if name.startswith("socket:") and name not in before:
            with contextlib.suppress(OSError):
                connection = socket.socket(fileno=os.dup(fd))
                try:
                    connection.getpeername()  # fails for a socket that listens
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        found.append(connection.detach())
                finally:
                    connection.close()
    return found


def gloo_device(store):
    """The network device of the group: GLOO_SOCKET_IFNAME, or the address towards the store."""
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    if name:
        return dist.ProcessGroupGloo.create_device(interface=name.split(",")[0])
    family, kind, proto, _, address = socket.getaddrinfo(store.host, store.port,
                                                         type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, proto) as probe:
        probe.connect(address)  # sends nothing
        return dist.ProcessGroupGloo.create_device(hostname=probe.getsockname()[0])


# ---- where vLLM makes its communicator

def choosing(function):
    """Wraps the function of vLLM that makes the communicator of a weight transfer. While it runs,
    the class that it imports is one that asks the sender's store which communicator to make."""
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        pynccl = importlib.import_module("vllm.distributed.device_communicators.pynccl")
        stock = pynccl.PyNcclCommunicator

        def choose(group, device, *more, **options):
            store = getattr(group, "store", None)
            if store is None or not store.check([KEY]):
                if device is None:  # on a CPU
                    refuse_nccl()
                return stock(group, device, *more, **options)
            return GlooCommunicator(store, store.get(KEY).decode(), group.rank, group.world_size,
                                    device)

        pynccl.PyNcclCommunicator = choose
        try:
            return function(*args, **kwargs)
        finally:
            pynccl.PyNcclCommunicator = stock
    return wrapper


def module(name):
    """A module of this vLLM, or None: not every version has each."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def install():
    common = module("vllm.distributed.weight_transfer.nccl_common")  # since 0.25
    engine = module("vllm.distributed.weight_transfer.nccl_engine")
    old = getattr(engine, "NCCLWeightTransferEngine", None)
    if hasattr(common, "stateless_init_process_group"):
        common.stateless_init_process_group = choosing(common.stateless_init_process_group)
    elif hasattr(old, "_stateless_init_process_group"):
        old._stateless_init_process_group = staticmethod(
            choosing(old._stateless_init_process_group))
    else:
        vllm = module("vllm")
        raise RuntimeError("wsync: vLLM %s is not supported by wsync_vllm.py, which is for 0.16 to "
                           "0.33: it creates its weight transfer group in an unknown way"
                           % getattr(vllm, "__version__", "(unknown version)"))
    if importlib.import_module("vllm.platforms").current_platform.is_cpu():
        stub_cuda()
        pack_again()


# ---- weights that vLLM packs on a CPU when it starts, and not after an update

def packing_experts(setup):
    """Wraps what makes the kernel of unquantized experts of their weights: it packs them once."""
    @functools.wraps(setup)
    def wrapper(self, layer, *args, **kwargs):
        is_update = self.moe_kernel is not None
        setup(self, layer, *args, **kwargs)
        if is_update:
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)
    return wrapper


def packing_heads(finalize, embedding, pack):
    """Wraps the end of an update. A head that is tied to the embedding is no layer that an update
    loads, so it would keep its packed copy of the old embedding."""
    @functools.wraps(finalize)
    def wrapper(model, *args, **kwargs):
        finalize(model, *args, **kwargs)
        for layer in model.modules():
            if isinstance(layer, embedding) and hasattr(layer, "cpu_linear"):
                pack(layer, remove_weight=False)
    return wrapper


def pack_again():
    """Does nothing for a vLLM that has other functions. `wsync_packs` tells wsync that it was done:
    a push asks the workers for their dir(), which no version answers with an error."""
    layers = "vllm.model_executor.layers."
    experts = module(layers + "fused_moe.unquantized_fused_moe_method")
    experts = getattr(experts, "UnquantizedFusedMoEMethod", None)
    reload = module("vllm.model_executor.model_loader.reload.layerwise")
    embedding = module(layers + "vocab_parallel_embedding")
    embedding = getattr(embedding, "VocabParallelEmbedding", None)
    pack = getattr(module(layers + "utils"), "dispatch_cpu_unquantized_gemm", None)
    worker = module("vllm.v1.worker.worker_base")
    if (pack and embedding and hasattr(experts, "_setup_kernel")
            and hasattr(worker, "WorkerWrapperBase")
            and hasattr(reload, "finalize_layerwise_processing")):
        experts._setup_kernel = packing_experts(experts._setup_kernel)
        reload.finalize_layerwise_processing = packing_heads(
            reload.finalize_layerwise_processing, embedding, pack)
        worker.WorkerWrapperBase.wsync_packs = True


# ---- servers without a GPU: vLLM's engine uses CUDA streams, which do not exist there

def refuse_nccl(*_, **__):
    """The stock communicator would be made on a CPU too, and then receive nothing without an error.
    """
    raise RuntimeError("wsync: this server runs on a CPU and cannot join an NCCL group; the sender "
                       "must use gloo")


class Idle:
    """A stream or event of a CPU: nothing is ever pending in it."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def synchronize(self):
        pass

    wait_event = wait_stream = record = lambda self, *_: None


class HostTensor(torch.Tensor):
    """What torch.empty returns to vLLM's engine; results of its operations are plain tensors."""
    __torch_function__ = torch._C._disabled_torch_function_impl

    def record_stream(self, stream):
        pass


class Instead:
    """A module in which some names mean something else."""

    def __init__(self, original, **names):
        self.__dict__.update(names, _original=original)

    def __getattr__(self, name):
        return getattr(self._original, name)


def stub_cuda():
    """Gives the modules that receive weights a `torch` of their own. No other module sees it."""
    def empty(*args, **kwargs):
        return torch.empty(*args, **dict(kwargs, device="cpu")).as_subclass(HostTensor)

    cuda = Instead(torch.cuda, Stream=Idle, stream=Idle, current_stream=Idle)
    accelerator = Instead(torch.accelerator, current_device_index=lambda: None,
                          current_stream=Idle, device_index=Idle, synchronize=lambda *_: None)
    receiving = Instead(torch, cuda=cuda, accelerator=accelerator, Event=Idle, empty=empty)
    for name in ("base", "nccl_common", "nccl_engine", "packed_tensor", "sparse_nccl_engine"):
        found = module("vllm.distributed.weight_transfer." + name)
        if isinstance(getattr(found, "torch", None), types.ModuleType):
            found.torch = receiving
        if hasattr(found, "uid_init_process_group"):
            found.uid_init_process_group = refuse_nccl
    worker = module("vllm.v1.worker.gpu_worker")  # 0.16 to 0.20: synchronizes after an update
    if isinstance(getattr(worker, "torch", None), types.ModuleType):
        worker.torch = Instead(torch, accelerator=Instead(torch.accelerator,
                                                          synchronize=lambda *_: None))


class WorkerExtension:
    """Its methods become methods of vLLM's workers, for POST /collective_rpc."""

    def wsync_leave(self):
        """Leaves the sender's group, as /shutdown_weight_transfer_engine does since vLLM 0.32."""
        engine = getattr(self, "weight_transfer_engine", None)
        group = getattr(engine, "model_update_group", None)
        if group is not None:
            engine.model_update_group = None
            group.destroy()


install()
