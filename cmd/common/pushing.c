/* SPDX-License-Identifier: Apache-2.0 */
#include "pushing.h"

/* Indexes are the values of the library's enums. */
const char *const pushing_backends[] = { "auto", "gloo", "nccl", NULL };
const char *const pushing_protocols[] = { "auto", "update", "session", "two-phase", "receive", NULL };
const char *const pushing_two_phases[] = { "bucket", "whole", NULL };
const char *const pushing_formats[] = { "auto", "none", "flattened_bucket", NULL };
const char *const pushing_flushes[] = { "last", "never", "every", NULL };
const char *const pushing_pauses[] = { "abort", "retract", "in_place", "none", NULL };
const char *const pushing_partials[] = { "resume", "pause", NULL };

void pushing_apply(const struct pushing *p, struct ws_push_opts *opts)
{
	opts->backend = p->backend;
	opts->protocol = p->protocol;
	opts->two_phase = p->two_phase;
	opts->format = p->format;
	opts->flush = p->flush;
	opts->pause = p->pause;
	opts->on_partial = p->partial;
	opts->master_address = p->master_address;
	opts->master_port = (uint16_t)p->master_port;
	opts->group_name = p->group_name;
	opts->bucket_size = p->bucket_size;
	opts->init_ns = p->init_ns;
	opts->bucket_ns = p->bucket_ns;
}
