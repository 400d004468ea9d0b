/* SPDX-License-Identifier: Apache-2.0 */
/* push_write.c - {write_dir}: the checkpoint that would be sent, in a directory of its own. No
 * endpoint takes part. It is written under a hidden name beside that directory, so the directory
 * is complete or missing, and a killed writer's remains are removed by the next one there. */
#include "push_disk.h"

#include "plan_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A directory that exists has a mode and an owner that a rename would lose, or is a mount point. */
static int check_new(const char *path, const char *given, struct ws_err *err)
{
	struct stat st;
	if (lstat(path, &st))
		return errno == ENOENT ? 0 : ws_err_errno(err, "{write_dir} %s", given);
	ws_err_set(err, WS_EUSAGE, "{write_dir} %s: it exists already", given);
	return ws_err_hint(err, "name a new directory");
}

/* Servers load no FP8 whose config.json does not describe it. */
static int check_config(struct ws_push *p, struct ws_err *err)
{
	if (p->from.input.config)
		return push_disk_check_config(p, err);
	if (p->opts.transform && p->opts.transform->quantize != WS_QUANTIZE_NONE) {
		ws_err_set(err, WS_EUSAGE, "{write_dir} with {quantize} needs a config.json, which "
		           "describes the quantization to servers");
		return ws_err_hint(err, "name one with {config}");
	}
	push_warn(p, NULL, "there is no config.json to write: servers need one to start from the "
	          "checkpoint");
	return 0;
}

static int plan_write(struct ws_push *p, struct ws_err *err)
{
	push_disk_forget(p, false);
	struct push_disk *d = push_own(p, sizeof *d, err);
	if (!d)
		return -1;
	d->store = (struct ws_disk)WS_DISK_INIT;
	d->bytes = ws_plan_files_bytes(p->from.plan);
	if (p->from.input.packed_scales) {
		ws_err_set(err, WS_EUSAGE, "{packed_scales}: no server loads packed scales from a "
		           "checkpoint");
		return ws_err_hint(err, "leave it out");
	}
	d->path = push_disk_absolute(p->opts.write_dir, "write_dir", err);
	return !d->path || check_new(d->path, p->opts.write_dir, err) || push_disk_split(d, err) ||
	                       ws_disk_room(d->dir, d->bytes, err) || check_config(p, err) ?
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
