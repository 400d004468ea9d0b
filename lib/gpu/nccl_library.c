/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_library.c - loads NCCL and reports its errors. */
#include "nccl_core.h"

#include "wsync/tool/str.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The loader does not search the last two. */
static const char *const usual_places[] = { "libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2",
	                                    "/usr/local/cuda/lib/libnccl.so.2" };
static const int LEAST_VERSION = 21400;

/* ---- errors ---- */

static void hint_at(const struct ws_nccl *n, int rc, struct ws_err *err)
{
	if (rc == NCCL_INVALID_USAGE)
		ws_err_hint(err,
		            "the ranks must have one version of NCCL, and this one has %s (%s): "
		            "load the servers' own by {nccl_library} or {nccl_from}; and no two "
		            "ranks may be on one GPU",
		            n->version_text, n->path);
	else if (rc == NCCL_SYSTEM_ERROR || rc == NCCL_REMOTE_ERROR)
		ws_err_hint(err, "NCCL_DEBUG=WARN, here and at the servers, makes NCCL say why; "
		                 "where its choice "
		                 "of network is wrong, NCCL_SOCKET_IFNAME names another");
	else if (rc == NCCL_CUDA_ERROR)
		ws_err_hint(
			err,
			"NCCL_DEBUG=WARN makes NCCL say which call failed; a GPU without memory to "
			"spare is a usual reason");
}

int ws_nccl_check(const struct ws_nccl *n, int rc, void *comm, const char *what, struct ws_err *err)
{
	if (rc == NCCL_SUCCESS || rc == NCCL_IN_PROGRESS)
		return 0;
	char words[128], last[256];
	const char *said = n->call.error_string(rc);
	const char *more = n->call.last_error ? n->call.last_error(comm) : NULL;
	said = said ? said : "an error without words";
	more = more ? more : "";
	ws_printable(words, sizeof words, said, strlen(said));
	ws_printable(last, sizeof last, more, strcspn(more, "\n"));
	ws_err_set(err, rc == NCCL_CUDA_ERROR ? WS_EDEVICE : WS_EDATA, "%s: NCCL: %s (%d)%s%s",
	           what, words, rc, last[0] ? ": " : "", last);
	if (err)
		err->native = rc;
	hint_at(n, rc, err);
	return -1;
}

/* ---- the library ---- */

static void *load(const char *name, struct ws_err *err)
{
	/* NODELETE: NCCL keeps threads. LOCAL: another NCCL in this process keeps its symbols. */
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (library)
		return library;
	char why[512];
	const char *said = dlerror();
	ws_printable(why, sizeof why, said ? said : "unknown", said ? strlen(said) : 7);
	ws_err_set(err, WS_EDEVICE, "NCCL cannot be loaded: %s", why);
	ws_err_hint(err, "{nccl_from} PYTHON takes the one that the servers' torch uses, "
	                 "{nccl_library} FILE any");
	return NULL;
}

static void *load_any(const char *name, struct ws_err *err)
{
	if (name)
		return load(name, err);
	for (size_t i = 0; i < sizeof usual_places / sizeof usual_places[0]; i++) {
		void *library = dlopen(usual_places[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
		if (library)
			return library;
	}
	return load(usual_places[0], err); /* for the loader's message */
}

static void name_path(struct ws_nccl *n)
{
	Dl_info info;
	void *f;
	memcpy(&f, &n->call.get_version, sizeof f);
	const char *path = dladdr(f, &info) && info.dli_fname ? info.dli_fname : "?";
	ws_printable(n->path, sizeof n->path, path, strlen(path));
}

static int find_functions(struct ws_nccl *n, struct ws_err *err)
{
	const struct {
		void *place;
		const char *symbol;
		bool may_lack;
	} wanted[] = {
#define WANTED(member, symbol, args) { &n->call.member, symbol, false },
		NCCL_FUNCTIONS(WANTED)
#undef WANTED
			{ &n->call.error_string, "ncclGetErrorString", false },
		{ &n->call.last_error, "ncclGetLastError", true },
	};
	for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
		void *f = dlsym(n->library, wanted[i].symbol);
		if (f) {
			memcpy(wanted[i].place, &f, sizeof f);
		} else if (!wanted[i].may_lack) {
			ws_err_set(err, WS_EDEVICE, "NCCL: the library has no function %s",
			           wanted[i].symbol);
			return ws_err_hint(err, "NCCL 2.14 or later is needed");
		}
	}
	return 0;
}

/* 2.8.4 was 2804, 2.9.6 is 20906. */
static int read_version(struct ws_nccl *n, struct ws_err *err)
{
	const int rc = n->call.get_version(&n->version);
	if (ws_nccl_check(n, rc, NULL, "asking for the version", err))
		return -1;
	snprintf(n->version_text, sizeof n->version_text, "%d.%d.%d", n->version / 10000,
	         n->version / 100 % 100, n->version % 100);
	if (n->version >= LEAST_VERSION)
		return 0;
	return ws_err_set(err, WS_EDEVICE,
	                  "NCCL of number %d is too old: 2.14 or later is needed (%s)", n->version,
	                  n->path);
}

int ws_nccl_open(const struct ws_nccl_opts *opts, struct ws_nccl **out, struct ws_err *err)
{
	struct ws_nccl *n = calloc(1, sizeof *n);
	if (!n)
		return ws_oom(err);
	n->library = load_any(opts ? opts->library : NULL, err);
	if (!n->library || find_functions(n, err))
		goto fail;
	name_path(n);
	if (read_version(n, err))
		goto fail;
	*out = n;
	return 0;
fail:
	ws_nccl_close(n);
	return -1;
}

void ws_nccl_close(struct ws_nccl *n)
{
	if (!n)
		return;
	if (n->library)
		dlclose(n->library);
	free(n);
}

int ws_nccl_version(const struct ws_nccl *n)
{
	return n->version;
}

const char *ws_nccl_version_text(const struct ws_nccl *n)
{
	return n->version_text;
}

const char *ws_nccl_path(const struct ws_nccl *n)
{
	return n->path;
}

int ws_nccl_id_new(const struct ws_nccl *n, struct ws_nccl_id *out, struct ws_err *err)
{
	struct ws_nccl_id id;
	memset(&id, 0, sizeof id);
	if (ws_nccl_check(n, n->call.id_new(&id), NULL, "making the id of a communicator", err))
		return -1;
	*out = id;
	return 0;
}
