/* SPDX-License-Identifier: Apache-2.0 */
/* push_disk.h - between push_disk.c, which has the servers load files, and push_disk_write.c, which
 * writes them. */
#ifndef WS_PUSH_PUSH_DISK_H
#define WS_PUSH_PUSH_DISK_H

#include "disk.h"
#include "push_protocol.h"

struct push_disk {
	char *dir;        /* that we write into; NULL: the source itself is loaded */
	char *path;       /* of what is loaded, here, */
	char *model_path; /* and as the servers call it */
	uint64_t bytes;   /* that are written, about */
	struct ws_disk store;
	char *name;       /* of what was written, in dir; NULL: nothing yet */
	bool asked;       /* the servers were told to load it */
	int64_t told_ns;  /* when the writing was last told of */
};

static inline struct push_disk *push_disk_of(const struct ws_push *p)
{
	return p->own;
}

/* path in directory dir; NULL: out of memory. */
char *push_disk_join(const char *dir, const char *name);
/* Writes the plan into the directory. */
int push_disk_write(struct ws_push *p, struct ws_err *err);

#endif
