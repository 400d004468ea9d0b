/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_kv.h - the store of a gloo group, for ranks that are threads of one process. */
#ifndef TESTS_GLOO_KV_H
#define TESTS_GLOO_KV_H

#include "gloo.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct kv {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	size_t n;
	struct { char *key; void *value; size_t n; } entries[256];
};

static inline void kv_init(struct kv *kv)
{
	*kv = (struct kv){ .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
}

static inline void kv_fini(struct kv *kv)
{
	for (size_t i = 0; i < kv->n; i++) {
		free(kv->entries[i].key);
		free(kv->entries[i].value);
	}
}

static inline int kv_set(void *ctx, const char *key, const void *value, size_t n, ws_deadline until,
                         struct ws_err *err)
{
	struct kv *kv = ctx;
	(void)until, (void)err;
	pthread_mutex_lock(&kv->lock);
	kv->entries[kv->n].key = strdup(key);
	kv->entries[kv->n].value = memcpy(malloc(n + 1), value, n);
	kv->entries[kv->n++].n = n;
	pthread_cond_broadcast(&kv->changed);
	pthread_mutex_unlock(&kv->lock);
	return 0;
}

static inline int kv_get(void *ctx, const char *key, ws_deadline until,
                         const struct ws_cancel *cancel, struct ws_buf *value, struct ws_err *err)
{
	struct kv *kv = ctx;
	pthread_mutex_lock(&kv->lock);
	for (int rc = 1;;) {
		for (size_t i = 0; i < kv->n && rc > 0; i++)
			if (strcmp(kv->entries[i].key, key) == 0)
				rc = ws_buf_add(value, kv->entries[i].value, kv->entries[i].n);
		if (rc > 0 && (ws_deadline_passed(until) || ws_cancelled(cancel)))
			rc = ws_err_set(err, WS_ETIMEOUT,
			                "wait for key \"%s\": the deadline passed", key);
		if (rc <= 0) {
			pthread_mutex_unlock(&kv->lock);
			return rc;
		}
		struct timespec soon;
		clock_gettime(CLOCK_REALTIME, &soon);
		soon.tv_nsec += 20 * 1000 * 1000;
		soon.tv_sec += soon.tv_nsec / 1000000000;
		soon.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&kv->changed, &kv->lock, &soon);
	}
}

#endif
