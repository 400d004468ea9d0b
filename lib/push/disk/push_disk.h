/* SPDX-License-Identifier: Apache-2.0 */
/* push_disk.h - shared by push_disk.c, which sends the load request, and push_disk_write.c, which
 * writes the files. */
#ifndef WS_PUSH_PUSH_DISK_H
#define WS_PUSH_PUSH_DISK_H

#include "disk.h"
#include "push_protocol.h"

struct push_disk {
	char *dir;        /* our --disk-dir; NULL: the source itself is loaded */
	char *path;       /* of the loaded checkpoint, on this machine */
	char *model_path; /* and on the servers */
	uint64_t bytes;   /* to be written, estimated */
	struct ws_disk store;
	/* of the published checkpoint, in dir; NULL: none yet. In push_write.c it is known from
	 * the beginning */
	char *name;
	const char *load_format; /* in the request */
	uint64_t id;      /* of the files that were written (ws_disk_files_id); 0: none */
	bool foreign;     /* other files are there now: they are not ours to remove */
	bool asked;       /* the servers were asked to load it */
	int64_t told_ns;  /* time of the last progress event */
};

static inline struct push_disk *push_disk_of(const struct ws_push *p)
{
	return p->own;
}

/* path in directory dir; NULL: out of memory. */
char *push_disk_join(const char *dir, const char *name);
/* The absolute path; of a missing directory, by its parent. Slashes at the end are ignored. `what`
 * is the field to name in the error. The caller frees it; NULL: *err says why. */
char *push_disk_absolute(const char *path, const char *what, struct ws_err *err);
/* Splits d->path, which is absolute, into dir and name. */
int push_disk_split(struct push_disk *d, struct ws_err *err);
/* Frees p->own. Also removes a checkpoint that was written and not published. */
void push_disk_forget(struct ws_push *p, bool ended);
/* Before anything is written: may the source's config.json be copied? */
int push_disk_check_config(const struct ws_push *p, struct ws_err *err);
/* Writes the plan into the directory. */
int push_disk_write(struct ws_push *p, struct ws_err *err);

#endif
