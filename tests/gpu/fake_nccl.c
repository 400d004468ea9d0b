/* SPDX-License-Identifier: Apache-2.0 */
/* fake_nccl.c - a recording double of libnccl.so.2, for error paths and for what is asked of NCCL.
 *
 * It is no proof of transport: a broadcast notes the root's bytes in its stream's turn, and
 * nothing leaves the process, unless FAKE_NCCL_TOGETHER is set: then ranks are those of several
 * processes (fake_wire_nccl.c). It holds its caller to what NCCL's manual says of non-blocking
 * communicators: only their state may be asked for while they are in progress, what is destroyed
 * was finalized, nothing is used after its end, ids were made here, the config is one that NCCL
 * takes, and a GPU is current. Beside the double of libcuda it also wants device memory and does
 * its broadcasts as late as that says. */
#include "fake_nccl.h"
#include "fake_cuda.h"
#include "fake_wire_nccl.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

struct comm {
	struct comm *next;
	unsigned pending; /* queries until it is ready */
	bool finalized;
	struct fake_wire *wire; /* NULL: alone */
};

struct config {
	size_t size;
	uint32_t magic, version;
	int blocking;
};

static struct {
	pthread_mutex_t lock;
	char record[1 << 16];
	size_t length;
	char failing[64];
	unsigned after, busy;
	int rc, broken, version;
	int told; /* when asked; 0: the truth */
	bool hanging;
	char mistake[128];
	struct comm *comms;
	struct fake_id made; /* by the last ncclGetUniqueId */
	bool together;
	unsigned char *received;
	size_t n_received;
} fake = { .lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP, .version = 22809 };

static void unlock(const int *held)
{
	(void)held;
	pthread_mutex_unlock(&fake.lock);
}
#define LOCKED \
	__attribute__((cleanup(unlock))) const int locked_ = pthread_mutex_lock(&fake.lock); \
	(void)locked_

/* ---- what a test says ---- */

static void reset(void)
{
	LOCKED;
	fake.length = fake.n_received = 0;
	fake.record[0] = '\0';
	fake.rc = fake.broken = FAKE_SUCCESS;
	fake.busy = 0;
	fake.hanging = false;
	fake.version = 22809;
}

static void refuse(const char *function, unsigned n, int rc)
{
	LOCKED;
	snprintf(fake.failing, sizeof fake.failing, "%s", function);
	fake.after = n;
	fake.rc = rc;
}

static void set_version(int number)
{
	fake.version = number;
}

static void set_busy(unsigned n)
{
	LOCKED;
	fake.busy = n;
}

static void set_hanging(bool on)
{
	LOCKED;
	fake.hanging = on;
}

static void set_broken(int rc)
{
	LOCKED;
	fake.broken = rc;
}

static const char *record(void)
{
	return fake.record;
}

static size_t live(void)
{
	LOCKED;
	size_t n = 0;
	for (const struct comm *c = fake.comms; c; c = c->next)
		n++;
	return n;
}

static const char *mistake(void)
{
	static char told[sizeof fake.mistake];
	LOCKED;
	memcpy(told, fake.mistake, sizeof told);
	fake.mistake[0] = '\0';
	return told;
}

static const unsigned char *received(size_t *n)
{
	*n = fake.n_received;
	return fake.received;
}

EXPORT extern const struct fake_nccl fake_nccl;
const struct fake_nccl fake_nccl = { reset, refuse, set_version, set_busy, set_hanging, set_broken,
	                             record, live, mistake, received };

/* For programs, which no test can speak to. FAKE_NCCL_REFUSE="ncclBroadcast 3 6" is
 * refuse() of that. FAKE_NCCL_TELLS: the version that a program is told, whatever
 * ranks find out of each other. */
__attribute__((constructor)) static void read_environment(void)
{
	const char *version = getenv("FAKE_NCCL_VERSION"), *text = getenv("FAKE_NCCL_REFUSE");
	const char *told = getenv("FAKE_NCCL_TELLS");
	char function[64] = "";
	unsigned n = 0;
	int rc = 0;
	fake.together = getenv("FAKE_NCCL_TOGETHER") != NULL;
	if (version)
		fake.version = atoi(version);
	if (told)
		fake.told = atoi(told);
	if (text && sscanf(text, "%63s %u %d", function, &n, &rc) == 3)
		refuse(function, n, rc);
}

__attribute__((destructor)) static void judge(void)
{
	const size_t n = live();
	free(fake.received);
	if (!fake.mistake[0] && n == 0)
		return;
	fprintf(stderr, "# the double of libnccl: %s (%zu communicators left)\n",
	        fake.mistake[0] ? fake.mistake : "something is left", n);
	_exit(99);
}

/* ---- each call ---- */

static void wrong(const char *what)
{
	if (!fake.mistake[0])
		snprintf(fake.mistake, sizeof fake.mistake, "%s", what);
}

static int called(const char *function, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int called(const char *function, const char *fmt, ...)
{
	char args[96];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(args, sizeof args, fmt, ap);
	va_end(ap);
	const size_t left = sizeof fake.record - fake.length;
	const int n = snprintf(fake.record + fake.length, left, "%s%s%s\n", function,
	                       args[0] ? " " : "", args);
	if (n > 0 && (size_t)n < left)
		fake.length += (size_t)n;
	if (fake.rc == FAKE_SUCCESS || (fake.failing[0] && strcmp(fake.failing, function) != 0))
		return FAKE_SUCCESS;
	if (fake.after == 0)
		return fake.rc;
	fake.after--;
	return FAKE_SUCCESS;
}

#define CALLED(...) \
	do { \
		const int rc_ = called(__func__, __VA_ARGS__); \
		if (rc_ != FAKE_SUCCESS) \
			return rc_; \
	} while (0)

/* The double of libcuda beside this one, where it is loaded. */
static const struct fake_cuda *cuda(void)
{
	static const struct fake_cuda *found;
	static bool looked;
	Dl_info info;
	char path[4096];
	if (looked || !dladdr(&fake_nccl, &info))
		return found;
	looked = true;
	snprintf(path, sizeof path, "%.*sfake_cuda.so",
	         (int)(strrchr(info.dli_fname, '/') + 1 - info.dli_fname), info.dli_fname);
	void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	found = library ? dlsym(library, "fake_cuda") : NULL;
	if (library)
		dlclose(library);
	return found;
}

static void want_a_gpu(void)
{
	if (cuda() && !cuda()->has_context())
		wrong("no GPU is current on a thread that calls NCCL");
}

/* NULL: it was aborted or destroyed, or never was. */
static struct comm *comm_of(void *handle)
{
	struct comm *c = fake.comms;
	while (c && c != handle)
		c = c->next;
	if (!c)
		wrong("a communicator is used that is none");
	return c;
}

static bool is_pending(const struct comm *c)
{
	return c->pending || (c->wire && fake_wire_state(c->wire) == FAKE_IN_PROGRESS);
}

static struct comm *idle_comm(void *handle)
{
	struct comm *c = comm_of(handle);
	if (c && is_pending(c))
		wrong("a communicator is used while it is in progress");
	return c;
}

static void forget(struct comm *c)
{
	struct comm **at = &fake.comms;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	if (c->wire)
		fake_wire_leave(c->wire);
	free(c);
}

static int begin(struct comm *c)
{
	c->pending = fake.busy;
	return is_pending(c) ? FAKE_IN_PROGRESS : FAKE_SUCCESS;
}

EXPORT int ncclGetVersion(int *number)
{
	LOCKED;
	CALLED("%s", "");
	*number = fake.told ? fake.told : fake.version;
	return FAKE_SUCCESS;
}

EXPORT const char *ncclGetErrorString(int rc)
{
	/* clang-format off */
	static const char *const words[] = {
		"no error", "unhandled cuda error", "unhandled system error", "internal error",
		"invalid argument", "invalid usage",
		"remote process exited or there was a network error", "NCCL operation in progress"
	};
	/* clang-format on */
	return rc >= 0 && (size_t)rc < sizeof words / sizeof words[0] ? words[rc] :
	                                                                "unknown result code";
}

EXPORT const char *ncclGetLastError(void *handle)
{
	(void)handle;
	return fake.together ? fake_wire_words() : "what went wrong\x1b[31m\nmore of it";
}

/* As NCCL 2.14 to 2.30 do: the file is made anew, and not for the version alone. */
static void speak(void)
{
	static FILE *to;
	const char *level = getenv("NCCL_DEBUG"), *file = getenv("NCCL_DEBUG_FILE");
	if (!level)
		return;
	const bool more = strcasecmp(level, "VERSION") != 0;
	if (!to && more && file && (to = fopen(file, "w")))
		setlinebuf(to);
	fprintf(to ? to : stdout, "NCCL version %d of the double\n", fake.version);
	if (more)
		fprintf(to ? to : stdout, "here:%d:%d [0] NCCL INFO the double speaks\n",
		        (int)getpid(), (int)getpid());
	if (!to)
		fflush(stdout);
}

/* FAKE_NCCL_SEEN names a file for the environment that NCCL finds when it starts. */
static void show_environment(void)
{
	static const char *const names[] = { "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE",
		                             "NCCL_SOCKET_IFNAME", "NCCL_COMM_BLOCKING" };
	const char *file = getenv("FAKE_NCCL_SEEN");
	FILE *to = file ? fopen(file, "w") : NULL;
	for (size_t i = 0; to && i < sizeof names / sizeof names[0]; i++)
		fprintf(to, "%s=%s\n", names[i], getenv(names[i]) ? getenv(names[i]) : "(unset)");
	if (to)
		fclose(to);
}

EXPORT int ncclGetUniqueId(struct fake_id *out)
{
	LOCKED;
	CALLED("%s", "");
	speak();
	show_environment();
	if (fake.together)
		return fake_wire_id(out) ? FAKE_SUCCESS : FAKE_SYSTEM_ERROR;
	for (size_t i = 0; i < sizeof fake.made.bytes; i++)
		fake.made.bytes[i] = (char)(i * 7 + 1);
	*out = fake.made;
	return FAKE_SUCCESS;
}

EXPORT int ncclCommInitRankConfig(void **out, int n, struct fake_id id, int rank,
                                  const struct config *config)
{
	LOCKED;
	*out = NULL;
	CALLED("%d of %d, size %zu version %u %s", rank, n, config->size, config->version,
	       config->blocking ? "blocking" : "non-blocking");
	want_a_gpu();
	if (n < 1 || rank < 0 || rank >= n ||
	    (!fake.together && memcmp(&id, &fake.made, sizeof id) != 0))
		return FAKE_INVALID_ARGUMENT;
	if (config->magic != 0xcafebeef || config->size < 20 || config->version < 21400)
		return FAKE_INVALID_ARGUMENT;
	struct comm *c = calloc(1, sizeof *c);
	if (!c)
		return FAKE_SYSTEM_ERROR;
	if (fake.together) {
		const struct fake_wire_opts opts = { id, rank, n, fake.version,
			                             cuda() ? cuda()->device() : 0 };
		c->wire = fake_wire_join(&opts);
		if (!c->wire)
			return free(c), FAKE_INVALID_ARGUMENT;
	}
	c->next = fake.comms;
	fake.comms = c;
	*out = c;
	return begin(c);
}

EXPORT int ncclCommGetAsyncError(void *handle, int *state)
{
	LOCKED;
	if (fake.rc != FAKE_SUCCESS) /* else a poll would fill the record */
		CALLED("%s", "");
	struct comm *c = comm_of(handle);
	if (!c)
		return FAKE_INVALID_ARGUMENT;
	*state = c->pending ? FAKE_IN_PROGRESS : c->wire ? fake_wire_state(c->wire) : fake.broken;
	if (c->pending && c->pending != UINT_MAX)
		c->pending--;
	return FAKE_SUCCESS;
}

struct broadcast {
	const void *at;
	size_t bytes;
};

/* A lock of its own: the double of libcuda calls this with its lock held, and is called with
 * ours. */
static pthread_mutex_t receiving = PTHREAD_MUTEX_INITIALIZER;

static void receive(void *arg)
{
	const struct broadcast *b = arg;
	pthread_mutex_lock(&receiving);
	unsigned char *more = realloc(fake.received, fake.n_received + b->bytes);
	if (more) {
		memcpy(more + fake.n_received, b->at, b->bytes);
		fake.received = more;
		fake.n_received += b->bytes;
	}
	pthread_mutex_unlock(&receiving);
	free(arg);
}

static int move_together(struct comm *c, struct fake_move *m, void *stream)
{
	if (!m || !cuda())
		return FAKE_INTERNAL_ERROR;
	if (cuda()->enqueue_until(stream, fake_wire_moved, fake_wire_over, m))
		return begin(c);
	fake_wire_over(m);
	return FAKE_INVALID_ARGUMENT;
}

EXPORT int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, void *handle,
                         void *stream)
{
	LOCKED;
	CALLED("%zu type %d root %d", n, type, root);
	want_a_gpu();
	struct comm *c = idle_comm(handle);
	if (!c || c->finalized || from != to || n == 0 || type > 1 || root != 0)
		return FAKE_INVALID_ARGUMENT;
	if (cuda() && !cuda()->owns((uintptr_t)to, n))
		wrong("a broadcast of memory that is not the device's");
	if (c->wire)
		return move_together(c, fake_wire_move(c->wire, to, n), stream);
	struct broadcast *b = malloc(sizeof *b);
	if (!b)
		return FAKE_SYSTEM_ERROR;
	*b = (struct broadcast){ from, n };
	if (!cuda())
		receive(b);
	else if ((fake.hanging && !cuda()->hang(stream)) || !cuda()->enqueue(stream, receive, b))
		return free(b), FAKE_INVALID_ARGUMENT;
	return begin(c);
}

static void sum_alone(void *arg)
{
	(void)arg;
}

/* Only the one number that vLLM's ranks sum. Alone, the sum is that of the other ranks' zeros. */
EXPORT int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *handle,
                         void *stream)
{
	LOCKED;
	CALLED("%zu type %d op %d", n, type, op);
	want_a_gpu();
	struct comm *c = idle_comm(handle);
	if (!c || c->finalized || from != to || n != 1 || type != 7 || op != 0)
		return FAKE_INVALID_ARGUMENT;
	if (cuda() && !cuda()->owns((uintptr_t)to, sizeof(float)))
		wrong("a sum of memory that is not the device's");
	if (c->wire)
		return move_together(c, fake_wire_sum(c->wire, to), stream);
	if (cuda() && ((fake.hanging && !cuda()->hang(stream)) ||
	               !cuda()->enqueue(stream, sum_alone, NULL)))
		return FAKE_INVALID_ARGUMENT;
	return begin(c);
}

EXPORT int ncclCommFinalize(void *handle)
{
	LOCKED;
	CALLED("%s", "");
	struct comm *c = idle_comm(handle);
	if (!c || c->finalized)
		return FAKE_INVALID_USAGE;
	c->finalized = true;
	if (c->wire)
		fake_wire_finalize(c->wire);
	return begin(c);
}

EXPORT int ncclCommDestroy(void *handle)
{
	LOCKED;
	/* where it fails, nothing is left to be tried again */
	const int rc = called(__func__, "%s", "");
	struct comm *c = idle_comm(handle);
	if (!c)
		return FAKE_INVALID_ARGUMENT;
	if (!c->finalized)
		wrong("a communicator is destroyed that was not finalized");
	forget(c);
	return rc;
}

/* Always possible, and never refused: a caller has no better answer. */
EXPORT int ncclCommAbort(void *handle)
{
	LOCKED;
	const int rc = fake.rc;
	fake.rc = FAKE_SUCCESS;
	called(__func__, "%s", "");
	fake.rc = rc;
	struct comm *c = comm_of(handle);
	if (!c)
		return FAKE_INVALID_ARGUMENT;
	forget(c);
	if (cuda())
		cuda()->let_go();
	return FAKE_SUCCESS;
}
