/* SPDX-License-Identifier: Apache-2.0 */
/* push_write.c - {write_dir}: the checkpoint that would be sent, in a directory of its own. No
 * endpoint takes part. It is written under a hidden name beside that directory, so the directory
 * is complete or missing, and a killed writer's remains are removed by the next one there. */
#include "push_disk.h"

#include "plan_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* 0: nothing is there, or an empty directory. */
static int check_free(const char *path, const char *given, struct ws_err *err)
{
	DIR *dir = opendir(path);
	if (!dir && errno == ENOENT)
		return 0;
	if (!dir)
		return ws_err_errno(err, "{write_dir} %s", given);
	size_t n = 0;
	for (const struct dirent *e; n == 0 && (e = readdir(dir));)
		n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	closedir(dir);
	if (n == 0)
		return 0;
	ws_err_set(err, WS_EUSAGE, "{write_dir} %s: the directory has files", given);
	return ws_err_hint(err, "name a new directory, or an empty one");
}

/* Splits the path of the new directory into its parent and its name. */
static int split(struct push_disk *d, struct ws_err *err)
{
	const char *slash = strrchr(d->path, '/'); /* the path is absolute */
	if (!slash[1])
		return ws_err_set(err, WS_EUSAGE, "{write_dir} /: the directory has files");
	d->name = strdup(slash + 1);
	d->dir = slash == d->path ? strdup("/") : strndup(d->path, (size_t)(slash - d->path));
	return d->name && d->dir ? 0 : ws_oom(err);
}

static int plan_write(struct ws_push *p, struct ws_err *err)
{
	push_disk_forget(p, false);
	struct push_disk *d = push_own(p, sizeof *d, err);
	if (!d)
		return -1;
	d->store = (struct ws_disk)WS_DISK_INIT;
	d->bytes = ws_plan_files_bytes(p->from.plan);
	if (p->from.input.packed_scales)
		return ws_err_set(err, WS_EUSAGE, "{packed_scales}: no server loads packed scales "
		                  "from a checkpoint");
	d->path = push_disk_absolute(p->opts.write_dir, "write_dir", err);
	return !d->path || check_free(d->path, p->opts.write_dir, err) || split(d, err) ||
	                       ws_disk_room(d->dir, d->bytes, err) ?
	               -1 :
	               0;
}

static void tell_plan(const struct ws_push *p, struct ws_ev_plan *plan)
{
	plan->load_format = "safetensors";
	plan->disk_path = push_disk_of(p)->path;
	plan->disk_bytes = push_disk_of(p)->bytes;
}

static bool takes(const struct ws_capabilities *can)
{
	(void)can;
	return true;
}

const struct push_protocol push_write = {
	.name = "write",
	.routes = "",
	.takes = takes,
	.groupless = true,
	.files = true,
	.planned = plan_write,
	.tell_plan = tell_plan,
	.prepare = push_disk_write,
	.forget = push_disk_forget,
};
