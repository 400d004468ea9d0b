/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_store.c - the TCPStore as the place where ranks publish their addresses. */
#include "gloo.h"

#include "store.h"

static int own_set(void *ctx, const char *key, const void *value, size_t n, ws_deadline until,
                   struct ws_err *err)
{
	(void)until; /* our own store answers at once */
	return ws_store_set(ctx, key, value, n, true, err);
}

static int own_get(void *ctx, const char *key, ws_deadline until, const struct ws_cancel *cancel,
                   struct ws_buf *value, struct ws_err *err)
{
	return ws_store_get(ctx, key, until, cancel, value, err);
}

struct ws_gloo_kv ws_gloo_kv_store(struct ws_store *s)
{
	return (struct ws_gloo_kv){ .ctx = s, .set = own_set, .get = own_get };
}

static int client_set(void *ctx, const char *key, const void *value, size_t n, ws_deadline until,
                      struct ws_err *err)
{
	return ws_store_client_set(ctx, key, value, n, until, err);
}

static int client_get(void *ctx, const char *key, ws_deadline until, const struct ws_cancel *cancel,
                      struct ws_buf *value, struct ws_err *err)
{
	return ws_store_client_get(ctx, key, until, cancel, value, err);
}

struct ws_gloo_kv ws_gloo_kv_client(struct ws_store_client *c)
{
	return (struct ws_gloo_kv){ .ctx = c, .set = client_set, .get = client_get };
}
