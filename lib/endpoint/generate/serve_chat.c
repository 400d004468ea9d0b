/* SPDX-License-Identifier: Apache-2.0 */
/* serve_chat.c - /open_session and /close_session: an ID under which a server keeps the
 * cache of a chat. This endpoint keeps only the ID. It refuses an ID that is already open, with
 * the servers' message. */
#include "serve_call.h"
#include "serve_http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With the lock held: returns the place of id, or a free place if id is NULL; NULL if not found. */
static char **find(struct ws_serve *s, const char *id)
{
	for (size_t i = 0; i < WS_SERVE_MAX_CHATS; i++)
		if (id ? s->chats[i] && strcmp(s->chats[i], id) == 0 : !s->chats[i])
			return &s->chats[i];
	return NULL;
}

static bool open_chat(struct ws_serve *s, const char *id)
{
	pthread_mutex_lock(&s->lock);
	char **place = find(s, id) ? NULL : find(s, NULL);
	if (place)
		*place = strdup(id);
	const bool opened = place && *place;
	pthread_mutex_unlock(&s->lock);
	return opened;
}

void ws_serve_route_open_chat(struct ws_serve_call *c)
{
	const char *id = NULL;
	int64_t capacity;
	char fresh[32];
	if (ws_serve_field_int(c->body, "capacity_of_str_len", &capacity, &c->invalid) ||
	    ws_serve_field_str(c->body, "session_id", false, &id, &c->invalid))
		return;
	snprintf(fresh, sizeof fresh, "%016llx", (unsigned long long)ws_now_ns());
	if (!open_chat(c->serve, id ? id : fresh)) {
		ws_serve_answer_error(c, 400, "Failed to open the session. Check if a session with "
		                              "the same id is still open.");
		return;
	}
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_str(&jw, NULL, id ? id : fresh);
}

void ws_serve_route_close_chat(struct ws_serve_call *c)
{
	const char *id = NULL;
	if (ws_serve_field_str(c->body, "session_id", true, &id, &c->invalid))
		return;
	pthread_mutex_lock(&c->serve->lock);
	char **place = find(c->serve, id);
	if (place) {
		free(*place);
		*place = NULL;
	}
	pthread_mutex_unlock(&c->serve->lock);
	c->rp->type = "";
}
